"""Limits of a probability are those of the binomial law, at every edge."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from dpfed.audit.proportions import find_limits


@pytest.mark.parametrize("tail", [0.025, 5e-4, 1e-9])
@pytest.mark.parametrize(("successes", "trials"), [(1, 1), (3, 10), (9, 10), (500, 1000), (1, 100_000)])
def test_at_a_limit_what_was_counted_is_as_rare_as_the_tail(successes, trials, tail):
    low, high = (float(limit) for limit in find_limits(successes, trials, tail=tail))
    assert binom.sf(successes - 1, trials, low) == pytest.approx(tail, rel=1e-6)
    if successes < trials:
        assert binom.cdf(successes, trials, high) == pytest.approx(tail, rel=1e-6)


def test_none_and_all_have_limits_at_the_ends():
    low, high = find_limits(np.array([0, 5]), np.array([5, 5]), tail=0.05)
    assert (low[0], high[1]) == (0.0, 1.0)
    assert (1 - high[0], low[1]) == pytest.approx((0.05 ** (1 / 5),) * 2)
