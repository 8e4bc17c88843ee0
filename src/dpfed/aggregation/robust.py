"""All robust rules in one place, as functions of an (n, d) array: n updates of d numbers, of which some are faulty.

Each refuses fewer updates than it needs for its `max_faulty` (`BreakdownError`), and updates that are malformed
(`UpdateRejected`). `nnm` and `bucketing` stand in front of any of them.

Privacy: no rule but a clipped mean over a public denominator has a sensitivity that noise of practical size covers. One
client moves Krum and the median by up to two clip norms, n times what it moves the mean. So noise belongs before
them (styles `sample` and `local`, where they are post-processing), and a plan refuses them behind it.

>>> updates = [[1.0, 1.0], [1.1, 0.9], [0.9, 1.1], [1.05, 1.0], [0.95, 1.05], [10.0, -10.0], [9.0, -9.0]]
>>> trimmed_mean(nnm(updates, max_faulty=2), max_faulty=2).round(6)
array([1.  , 1.01])
"""

from __future__ import annotations

from dpfed.aggregation.coordinatewise import coordinate_median, mean_around_median, trimmed_mean
from dpfed.aggregation.geometric import centered_clipping, geometric_median, mean, norm_bounded_mean
from dpfed.aggregation.krum import bulyan, krum, minimum_diameter, multi_krum
from dpfed.aggregation.mixing import bucketing, nnm
from dpfed.aggregation.trust import fltrust

__all__ = [
    "bucketing",
    "bulyan",
    "centered_clipping",
    "coordinate_median",
    "fltrust",
    "geometric_median",
    "krum",
    "mean",
    "mean_around_median",
    "minimum_diameter",
    "multi_krum",
    "nnm",
    "norm_bounded_mean",
    "trimmed_mean",
]
