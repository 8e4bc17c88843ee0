"""Exact limits of a probability from counts (Clopper and Pearson 1934), for audits and attacks alike.

>>> lowest, highest = find_limits(8, 10, tail=0.025)
>>> round(float(lowest), 4), round(float(highest), 4)
(0.4439, 0.9748)
>>> [round(float(limit), 4) for limit in find_limits(0, 10, tail=0.025)]
[0.0, 0.3085]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, betaincinv

from dpfed.arrays import Floats


def find_limits(successes: ArrayLike, trials: ArrayLike, *, tail: float) -> tuple[Floats, Floats]:
    """Return limits below and above which the probability lies with a chance of at most `tail` each.

    Each limit alone holds with confidence 1 − `tail`. Counts may be arrays.
    """
    hits: Any = np.asarray(successes)
    misses: Any = np.asarray(trials) - hits
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), misses + 1, tail), 0.0)
    high = np.where(misses > 0, betainccinv(hits + 1, np.maximum(misses, 1), tail), 1.0)
    return low, high
