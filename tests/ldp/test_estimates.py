from __future__ import annotations

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.ldp.estimates import Estimate, MeanEstimate, normal_quantile


def test_estimates_are_never_clipped_unless_it_is_asked_for():
    found = Estimate([1.2, -0.3], [0.1, 0.1], users=50)
    assert found.frequencies.tolist() == [1.2, -0.3]
    assert found.counts.tolist() == [60.0, -15.0]
    assert found.clip().tolist() == [1.0, 0.0]
    assert found.project().tolist() == [1.0, 0.0]


def test_a_projection_adds_up_to_one_and_is_the_nearest_such_point(campaign_scale):
    rng = np.random.default_rng(1)
    for _ in range(20 * campaign_scale):
        raw = rng.normal(0.1, 0.3, 8)
        found = Estimate(raw, np.ones(8), users=5).project()
        assert found.min() >= 0
        assert found.sum() == pytest.approx(1.0)
        others = rng.dirichlet(np.ones(8), 200)
        assert np.sum((found - raw) ** 2) <= np.min(np.sum((others - raw) ** 2, axis=1)) + 1e-12


def test_intervals_are_wider_for_all_values_at_once():
    found = Estimate(np.zeros(10), np.ones(10), users=5)
    low, high = found.interval(0.95)
    assert (low[0], high[0]) == pytest.approx((-1.95996398, 1.95996398))
    assert found.interval(0.95, together=True)[1][0] == pytest.approx(2.80703377)
    assert normal_quantile(0.95, 10) == pytest.approx(2.80703377)


def test_an_estimate_is_frozen():
    found = Estimate([0.5], [0.1], users=5)
    with pytest.raises(ValueError, match="read-only"):
        found.frequencies[0] = 1.0


@pytest.mark.parametrize("errors", [[0.1], [[0.1, 0.1]]])
def test_each_frequency_has_one_error(errors):
    with pytest.raises(InvalidArgument, match="one error for each"):
        Estimate([0.5, 0.5], errors, users=5)


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_a_confidence_lies_between_0_and_1(confidence):
    with pytest.raises(InvalidArgument, match="confidence must be above 0 and below 1"):
        Estimate([0.5], [0.1], users=5).interval(confidence)


def test_intervals_of_means_are_wider_if_all_hold_at_once():
    found = MeanEstimate([0.5, 0.1], [0.1, 0.2], users=10)
    assert (found.interval(0.95)[1] - found.means).round(3).tolist() == [0.196, 0.392]
    assert np.all(found.interval(0.95, together=True)[0] < found.interval(0.95)[0])
    with pytest.raises(ValueError, match="read-only"):
        found.means[0] = 1.0
