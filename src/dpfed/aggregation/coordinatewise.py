"""Rules that take each coordinate on its own: median, trimmed mean, and the mean of the values around the median.

Each chunk of columns is transposed and sorted whole, which a vectorised sort does faster than selecting.

Bound: in each coordinate median and trimmed mean lie between two honest values, whatever at most f rows are. The mean
around the median may lie beyond them, by no more than the width of the honest ones.

>>> coordinate_median([[1.0, 4.0], [2.0, 3.0], [3.0, 2.0], [100.0, -100.0]], max_faulty=1)
array([2.5, 2.5])
>>> trimmed_mean([[0.0], [1.0], [2.0], [3.0], [1e9]], max_faulty=1)
array([2.])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.aggregation.conditions import require_enough
from dpfed.aggregation.rows import Rows
from dpfed.arrays import Floats

Sorted = NDArray[Any]


def coordinate_median(updates: Any, *, max_faulty: int) -> Floats:
    """Return the median of each coordinate; for an even number of updates the mean of the middle two (Yin 2018)."""
    return _by_columns("coordinate_median", updates, max_faulty, find_medians)


def trimmed_mean(updates: Any, *, max_faulty: int) -> Floats:
    """Return the mean of each coordinate without its `max_faulty` lowest and highest values (Yin et al. 2018)."""

    def trim(values: Sorted) -> Floats:
        return average_window(values, max_faulty, values.shape[1] - max_faulty)

    return _by_columns("trimmed_mean", updates, max_faulty, trim)


def mean_around_median(updates: Any, *, max_faulty: int) -> Floats:
    """Return the mean of the n − `max_faulty` values of each coordinate nearest its median (Xie et al. 2018)."""

    def average(values: Sorted) -> Floats:
        return average_nearest(values, values.shape[1] - max_faulty)

    return _by_columns("mean_around_median", updates, max_faulty, average)


def find_medians(values: Sorted) -> Floats:
    """Return the median of each sorted row of values."""
    middle = values.shape[1] // 2
    return average_window(values, middle - (values.shape[1] % 2 == 0), middle + 1)


def average_window(values: Sorted, start: int, stop: int) -> Floats:
    """Return the mean of each row's values from `start` to `stop`."""
    return np.asarray(values[:, start:stop].mean(axis=1, dtype=np.float64))


def average_nearest(values: Sorted, count: int) -> Floats:
    """Return the mean of the `count` values of each sorted row that are nearest its median.

    The nearest ones stand side by side: the window whose farther end is nearest. Of equally near ones the lower count.
    """
    medians = find_medians(values)
    starts = np.arange(values.shape[1] - count + 1)
    farther = np.maximum(medians[:, None] - values[:, starts], values[:, starts + count - 1] - medians[:, None])
    window = farther.argmin(axis=1)[:, None] + np.arange(count)
    return np.asarray(np.take_along_axis(values, window, axis=1).mean(axis=1, dtype=np.float64))


def sort_columns(rows: Rows, use: Callable[[Sorted], Floats]) -> Floats:
    """Return what `use` makes of each chunk of coordinates, of which each is a sorted row."""
    result = np.empty(rows.size)
    for part, block in rows.blocks():
        values = np.ascontiguousarray(block.T)
        values.sort(axis=1)
        result[part] = use(values)
    return result


def _by_columns(rule: str, updates: Any, max_faulty: int, use: Callable[[Sorted], Floats]) -> Floats:
    rows = Rows.read(updates)
    require_enough(rule, rows.count, max_faulty)
    return sort_columns(rows, use)
