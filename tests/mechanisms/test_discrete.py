"""Discrete mechanisms: integers in, integers out, the event of what ran. False alarms 1e-6 per test."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.discrete import DiscreteGaussianMechanism, DiscreteLaplaceMechanism
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.randomness import SeededSource

ALPHA = 1e-6


@pytest.mark.parametrize("scale", [0.7, 3.0])
def test_noise_on_an_array_has_the_stated_law(scale: float) -> None:
    size = 20_000
    gaussian = DiscreteGaussianMechanism(scale, 1, dimension=size, source=SeededSource(1))
    laplace = DiscreteLaplaceMechanism(scale, 1, source=SeededSource(2))
    support = np.arange(-500, 501)
    exponents = {gaussian: support**2 / (2 * scale**2), laplace: np.abs(support) / scale}
    for mechanism, exponent in exponents.items():
        noise = mechanism.add_noise(np.full(size, 7)) - 7
        expected = size * np.exp(-exponent) / np.exp(-exponent).sum()
        observed = np.array([np.count_nonzero(noise == k) for k in support])
        common = expected >= 5
        cells = [[*counts[common], counts[~common].sum()] for counts in (observed, expected)]
        assert stats.chisquare(*cells).pvalue > ALPHA


def test_a_count_stays_an_int_and_arrays_become_int64() -> None:
    mechanism = DiscreteLaplaceMechanism(2.0, 1)
    noisy = mechanism.add_noise({"n": 42, "h": np.array([1, 2], dtype=np.uint8), "f": np.array([3.0])})
    assert type(noisy["n"]) is int
    assert noisy["h"].dtype == np.int64
    assert noisy["f"].dtype == np.float64
    assert noisy["f"] == np.rint(noisy["f"])


def test_events_are_what_is_executed() -> None:
    assert DiscreteGaussianMechanism(3.0, 2, dimension=5).event == ev.DiscreteGaussian(3.0, 2, 5)
    assert DiscreteLaplaceMechanism(3.0, 2).event == ev.DiscreteLaplace(3.0, 2)


def test_a_replace_one_sensitivity_gives_an_event_for_replace_one_only() -> None:
    gaussian = DiscreteGaussianMechanism(3.0, Sensitivity(2, "l2", "replace_one"), dimension=5)
    assert gaussian.event == ev.ZeroConcentratedDP(math.nextafter(4 / 18, 1), adjacency="replace_one")
    laplace = DiscreteLaplaceMechanism(4.0, Sensitivity(2, "l1", "replace_one"))
    assert laplace.event == ev.PureDP(0.5, adjacency="replace_one")


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, math.pi])
def test_from_epsilon_never_promises_more_than_it_keeps(epsilon: float) -> None:
    mechanism = DiscreteLaplaceMechanism.from_epsilon(epsilon, 3)
    assert Fraction(3) / Fraction(mechanism.scale) <= Fraction(epsilon)
    assert mechanism.scale == pytest.approx(3 / epsilon)


def test_a_vector_of_another_dimension_than_is_charged_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"hold 1 numbers, .* got 2: give the mechanism dimension=2"):
        DiscreteGaussianMechanism(3.0, 1).add_noise(np.array([1, 2]))


@pytest.mark.parametrize("x", [0.5, np.array([1.0, 2.5]), [], "text", np.array([np.nan]), 2**60, 2.0**53])
def test_what_is_not_whole_is_refused(x: object) -> None:
    with pytest.raises(InvalidArgument):
        DiscreteLaplaceMechanism(3.0, 1).add_noise(x)


def test_neighbours_next_to_the_end_of_the_integers_are_refused_and_not_torn_apart() -> None:
    """2⁶³ − 1024 and 2⁶³ are both floats and 1024 apart; as 64-bit integers they would be 2⁶⁴ apart."""
    mechanism = DiscreteLaplaceMechanism(3.0, 1024)
    for x in (2.0**63 - 1024, 2.0**63):
        with pytest.raises(InvalidArgument, match="2⁵³"):
            mechanism.add_noise(x)


@pytest.mark.parametrize("kind", [DiscreteGaussianMechanism, DiscreteLaplaceMechanism])
@pytest.mark.parametrize(
    ("scale", "sensitivity", "name"),
    [
        (0.0, 1, "scale"),
        (math.nan, 1, "scale"),
        (2.0**51, 1, "scale"),
        (1.0, 0, "sensitivity"),
        (1.0, 1.5, "sensitivity"),
    ],
)
def test_bad_arguments_are_refused_by_name(kind: type, scale: float, sensitivity: float, name: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        kind(scale, sensitivity)
    assert refusal.value.argument == name


def test_a_seeded_mechanism_says_it_is_not_private() -> None:
    for kind in (DiscreteGaussianMechanism, DiscreteLaplaceMechanism):
        seeded = kind(2.0, 1, source=SeededSource(1))
        assert not seeded.is_private
        assert "NOT PRIVATE" in repr(seeded)
        assert kind(2.0, 1).is_private
