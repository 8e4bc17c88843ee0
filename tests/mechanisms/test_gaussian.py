"""Gaussian noise: known scales, right variance, honest events. False-alarm probability 1e-6 per test."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr

from dpfed import events as ev
from dpfed.accounting.closed_forms import gaussian_delta
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.gaussian import GaussianMechanism, add_noise
from dpfed.mechanisms.laplace import LaplaceMechanism
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.randomness import RandomSource, SeededSource, SystemSource

N = 100_000
ALPHA = 1e-6


def true_delta(scale: float, epsilon: float) -> float:
    """Balle and Wang's Theorem 8, written down a second time."""
    return ndtr(0.5 / scale - epsilon * scale) - math.exp(epsilon) * ndtr(-0.5 / scale - epsilon * scale)


@pytest.mark.parametrize(
    ("epsilon", "delta", "scale", "tolerance"),
    [(1.0, 1e-5, 3.7306, 2e-5), (8.0, 1e-5, 0.60023, 1e-5), (0.1, 1e-6, 36.304690426195194, 1e-9)],
)
def test_scale_is_the_known_analytic_one(epsilon: float, delta: float, scale: float, tolerance: float) -> None:
    assert GaussianMechanism(epsilon, delta, 1.0).scale == pytest.approx(scale, rel=tolerance)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 8.42, 30.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_scale_is_enough_and_no_more_than_enough(epsilon: float, delta: float) -> None:
    scale = GaussianMechanism(epsilon, delta, 1.0).scale
    assert true_delta(scale, epsilon) <= delta * (1 + 1e-9)
    assert true_delta(scale * (1 - 1e-6), epsilon) > delta


def test_scale_grows_with_the_sensitivity() -> None:
    assert GaussianMechanism(1.0, 1e-5, 2.5).scale == pytest.approx(2.5 * GaussianMechanism(1.0, 1e-5, 1.0).scale)


def test_the_classical_formula_is_used_only_on_request_and_needs_more_noise() -> None:
    classical = GaussianMechanism(1.0, 1e-5, 1.0, calibration="classical")
    assert classical.scale == pytest.approx(math.sqrt(2 * math.log(1.25e5)))
    assert classical.scale > GaussianMechanism(1.0, 1e-5, 1.0).scale


@pytest.mark.parametrize("epsilon", [1.0001, 8.42, 20.0])
def test_the_classical_formula_is_refused_above_one(epsilon: float) -> None:
    with pytest.raises(InvalidArgument, match="analytic"):
        GaussianMechanism(epsilon, 1e-5, 1.0, calibration="classical")


def test_the_classical_formula_would_be_false_at_large_epsilon() -> None:
    assert true_delta(math.sqrt(2 * math.log(1.25e5)) / 20.0, 20.0) > 1e-5


@pytest.mark.parametrize("hardened", [True, False])
@pytest.mark.parametrize("make", [partial(SeededSource, 11), SystemSource], ids=["seeded", "system"])
def test_noise_has_the_stated_scale(make: Callable[[], RandomSource], hardened: bool) -> None:
    mechanism = GaussianMechanism(0.7, 1e-5, 3.0, hardened=hardened, source=make())
    noise = mechanism.add_noise(np.full(N, 5.0)) - 5.0
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], N)
    assert low < np.sum(noise**2) / mechanism.scale**2 < high
    assert stats.kstest(noise / mechanism.scale, "norm").pvalue > ALPHA


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_the_executed_scale_is_never_below_what_the_event_says(multiplier: float, sensitivity: float) -> None:
    mechanism = GaussianMechanism.from_noise_multiplier(multiplier, sensitivity)
    assert Fraction(mechanism.scale) >= Fraction(multiplier) * Fraction(sensitivity)


@pytest.mark.parametrize(
    "mechanism", [GaussianMechanism.from_noise_multiplier(1e300, 1e300), LaplaceMechanism(1e-300, 1e300)]
)
def test_a_scale_beyond_the_floats_is_refused(mechanism: GaussianMechanism | LaplaceMechanism) -> None:
    with pytest.raises(InvalidArgument, match="scale"):
        mechanism.add_noise(1.0)


def test_the_event_is_what_is_executed() -> None:
    mechanism = GaussianMechanism(1.0, 1e-5, 2.0)
    assert isinstance(mechanism.event, ev.Gaussian)
    assert mechanism.scale >= mechanism.event.noise_multiplier * 2.0
    assert mechanism.scale == pytest.approx(mechanism.event.noise_multiplier * 2.0, rel=1e-15)
    assert gaussian_delta(1 / mechanism.event.noise_multiplier, 1.0) <= 1e-5


def test_a_replace_one_sensitivity_gives_an_event_for_replace_one_only() -> None:
    mechanism = GaussianMechanism(1.0, 1e-5, Sensitivity(2.0, "l2", "replace_one"))
    assert isinstance(mechanism.event, ev.ZeroConcentratedDP)
    assert mechanism.event.adjacency == "replace_one"
    assert mechanism.event.rho == pytest.approx(2.0**2 / (2 * mechanism.scale**2))


def test_a_noise_multiplier_gives_the_scale_directly() -> None:
    mechanism = GaussianMechanism.from_noise_multiplier(1.5, 2.0)
    assert mechanism.scale == 3.0
    assert mechanism.event == ev.Gaussian(1.5)
    assert mechanism.epsilon is None


def test_another_sensitivity_keeps_the_guarantee() -> None:
    mechanism = GaussianMechanism(1.0, 1e-5, 1.0, source=SeededSource(1)).for_sensitivity(4.0)
    assert mechanism.epsilon == 1.0
    assert mechanism.scale == pytest.approx(4 * 3.7306, rel=1e-4)
    assert not mechanism.is_private
    assert GaussianMechanism.from_noise_multiplier(2.0, 1.0).for_sensitivity(3.0).scale == 6.0


def test_structure_and_precision_are_kept() -> None:
    tree = {
        "w": np.ones((2, 3), dtype=np.float32),
        "b": [np.zeros(2, dtype=np.float16), 1.0],
        "n": np.array([1, 2]),
    }
    noisy = GaussianMechanism(1.0, 1e-5, 1.0).add_noise(tree)
    assert noisy["w"].shape == (2, 3)
    assert (noisy["w"].dtype, noisy["b"][0].dtype, noisy["n"].dtype) == (np.float32, np.float16, np.float64)
    assert isinstance(noisy["b"][1], float)
    everything = np.concatenate([noisy["w"].ravel(), noisy["b"][0], [noisy["b"][1]], noisy["n"]])
    assert np.unique(everything).size == everything.size


def test_a_number_gives_a_number() -> None:
    assert isinstance(GaussianMechanism(1.0, 1e-5, 1.0).add_noise(42), float)


def test_two_releases_never_share_noise() -> None:
    mechanism = GaussianMechanism(1.0, 1e-5, 1.0)
    assert not np.array_equal(mechanism.add_noise(np.zeros(4)), mechanism.add_noise(np.zeros(4)))


def test_a_seeded_mechanism_says_it_is_not_private() -> None:
    seeded = GaussianMechanism(1.0, 1e-5, 1.0, source=SeededSource(1))
    assert not seeded.is_private
    assert "NOT PRIVATE" in repr(seeded)
    real = GaussianMechanism(1.0, 1e-5, 1.0)
    assert real.is_private
    assert "NOT PRIVATE" not in repr(real)
    assert "epsilon=1.0, delta=1e-05, sensitivity=1.0, scale=3.73" in repr(real)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0.0, 1e-5, 1.0), "epsilon"),
        ((-1.0, 1e-5, 1.0), "epsilon"),
        ((math.nan, 1e-5, 1.0), "epsilon"),
        ((1.0, 0.0, 1.0), "delta"),
        ((1.0, 1.0, 1.0), "delta"),
        ((1.0, None, 1.0), "delta"),
        ((None, 1e-5, 1.0), "epsilon"),
        ((1.0, 1e-5, 0.0), "sensitivity"),
        ((1.0, 1e-5, math.inf), "sensitivity"),
        ((1.0, 1e-5, Sensitivity(1.0, "l1")), "sensitivity"),
        ((1.0, 1e-5, 1.0, "exact"), "calibration"),
        ((1.0, 1e-5, 1.0, "analytic", True, np.random.default_rng()), "source"),
        ((None, None, 1.0), "noise_multiplier"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: tuple[object, ...], name: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        GaussianMechanism(*arguments)
    assert refusal.value.argument == name


def test_a_multiplier_that_contradicts_the_promise_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="one or the other"):
        GaussianMechanism(1.0, 1e-5, 1.0, noise_multiplier=0.1)


def test_sensitivity_has_no_default() -> None:
    with pytest.raises(TypeError, match="sensitivity"):
        GaussianMechanism(1.0, 1e-5)


@pytest.mark.parametrize("x", [np.array([np.nan]), [], "text"])
def test_what_cannot_be_noised_is_refused(x: object) -> None:
    with pytest.raises(InvalidArgument):
        GaussianMechanism(1.0, 1e-5, 1.0).add_noise(x)


def test_add_noise_of_seed_001_scales_with_multiplier_and_clip() -> None:
    gradients = [torch.zeros(N // 2), torch.zeros(N // 2, dtype=torch.float64)]
    noisy = add_noise(gradients, noise_multiplier=1.5, clip_norm=0.2, source=SeededSource(5))
    assert [g.dtype for g in noisy] == [torch.float32, torch.float64]
    total = sum(float((g.double() ** 2).sum()) for g in noisy) / 0.3**2
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], N)
    assert low < total < high


@pytest.mark.parametrize(("noise_multiplier", "clip_norm"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, math.nan)])
def test_add_noise_refuses_no_noise(noise_multiplier: float, clip_norm: float) -> None:
    with pytest.raises(InvalidArgument):
        add_noise(np.zeros(2), noise_multiplier, clip_norm)
