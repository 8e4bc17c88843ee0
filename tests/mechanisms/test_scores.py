from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.exponential import ExponentialMechanism
from dpfed.mechanisms.selection import PermuteAndFlip, ReportNoisyMax, permute_and_flip, report_noisy_max
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.randomness import SeededSource


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.booleans())
def test_the_scale_is_never_below_what_epsilon_asks_for(epsilon: float, sensitivity: float, monotone: bool) -> None:
    owed = (1 if monotone else 2) * Fraction(sensitivity) / Fraction(epsilon)
    for kind in (ReportNoisyMax, ExponentialMechanism):
        assert Fraction(kind(epsilon, sensitivity, monotone).scale) >= owed


@pytest.mark.parametrize("kind", [ReportNoisyMax, PermuteAndFlip, ExponentialMechanism])
def test_scores_that_are_all_larger_by_a_constant_are_chosen_from_alike(kind: type) -> None:
    """At 2⁵² a float is a whole number: noise on the scores themselves would be rounded to one."""
    near, far = (kind(1.0, 1.0, source=SeededSource(4)) for _ in range(2))
    scores = np.array([3.0, 1.0, 4.0, 4.0])
    assert [near.select(scores) for _ in range(200)] == [far.select(scores + 2.0**52) for _ in range(200)]


def test_scores_beyond_a_float_are_refused_and_not_rounded_together_or_apart() -> None:
    for function in (report_noisy_max, permute_and_flip):
        for last in (2**60 + 128, 2**60 + 129):
            with pytest.raises(InvalidArgument, match="2⁵³"):
                function([2**60, last], 1.0, 1.0)


def test_events_carry_the_adjacency() -> None:
    sensitivity = Sensitivity(1.0, "linf", "replace_one")
    assert ReportNoisyMax(0.5, sensitivity).event == ev.PureDP(0.5, adjacency="replace_one")
    assert PermuteAndFlip(0.5, 1.0).event == ev.PureDP(0.5)


@pytest.mark.parametrize("kind", [ReportNoisyMax, PermuteAndFlip])
@pytest.mark.parametrize("scores", [[], [math.nan], [[1.0]], "ab"])
def test_bad_scores_are_refused(kind: type, scores: object) -> None:
    with pytest.raises(InvalidArgument, match="scores"):
        kind(1.0, 1.0).select(scores)
