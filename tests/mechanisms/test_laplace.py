"""Laplace noise: scale Δ/ε, right law, honest events. False-alarm probability 1e-6 per test."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.laplace import LaplaceMechanism
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.randomness import RandomSource, SeededSource, SystemSource

N = 100_000
ALPHA = 1e-6


@pytest.mark.parametrize("hardened", [True, False])
@pytest.mark.parametrize("make", [partial(SeededSource, 12), SystemSource], ids=["seeded", "system"])
def test_noise_has_the_stated_scale(make: Callable[[], RandomSource], hardened: bool) -> None:
    mechanism = LaplaceMechanism(0.5, 3.0, hardened=hardened, source=make())
    assert mechanism.scale == 6.0
    noise = mechanism.add_noise(np.full(N, -2.0)) + 2.0
    # 2|x|/b of a Laplace draw is chi-square with two degrees of freedom.
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], 2 * N)
    assert low < 2 * np.sum(np.abs(noise)) / 6.0 < high
    assert stats.kstest(noise / 6.0, "laplace").pvalue > ALPHA


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_the_executed_scale_never_promises_more_than_epsilon(epsilon: float, sensitivity: float) -> None:
    mechanism = LaplaceMechanism(epsilon, sensitivity)
    assert Fraction(sensitivity) / Fraction(mechanism.scale) <= Fraction(epsilon)
    assert Fraction(mechanism.event.noise_multiplier) * Fraction(sensitivity) <= Fraction(mechanism.scale)
    assert mechanism.scale == pytest.approx(sensitivity / epsilon, rel=1e-15)


def test_a_replace_one_sensitivity_gives_an_event_for_replace_one_only() -> None:
    mechanism = LaplaceMechanism(0.5, Sensitivity(2.0, "l1", "replace_one"))
    assert mechanism.event == ev.PureDP(0.5, adjacency="replace_one")


def test_another_sensitivity_keeps_epsilon() -> None:
    mechanism = LaplaceMechanism(0.5, 1.0).for_sensitivity(Sensitivity(4.0, "l1", "replace_one"))
    assert mechanism.scale == 8.0
    assert mechanism.event == ev.PureDP(0.5, adjacency="replace_one")


def test_structure_and_precision_are_kept() -> None:
    noisy = LaplaceMechanism(1.0, 1.0).add_noise((np.zeros(3, dtype=np.float32), {"a": 1}))
    assert noisy[0].dtype == np.float32
    assert isinstance(noisy[1]["a"], float)


def test_a_seeded_mechanism_says_it_is_not_private() -> None:
    seeded = LaplaceMechanism(1.0, 1.0, source=SeededSource(1))
    assert not seeded.is_private
    assert "NOT PRIVATE" in repr(seeded)
    assert repr(LaplaceMechanism(0.5, 1.0)) == (
        "LaplaceMechanism(epsilon=0.5, sensitivity=1.0, scale=2.0, adjacency='add_remove')"
    )


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0.0, 1.0), "epsilon"),
        ((math.inf, 1.0), "epsilon"),
        ((1.0, -1.0), "sensitivity"),
        ((1.0, Sensitivity(1.0, "l2")), "sensitivity"),
        ((1.0, 1.0, True, 7), "source"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: tuple[object, ...], name: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        LaplaceMechanism(*arguments)
    assert refusal.value.argument == name
