"""Rules that bound how far any update pulls: clipped means, centred clipping and the geometric median.

Bound: a row pulls a clipped mean by at most clip_norm/n, so f arbitrary rows move it by at most 2·f·clip_norm/n. The
geometric median stays within 2(n−f)/(n−2f) times the greatest distance of an honest row from any point (Lopuhaä and
Rousseeuw 1991).

>>> norm_bounded_mean([[3.0, 4.0], [0.0, 0.5]], max_faulty=0, clip_norm=1.0).round(6)
array([0.3 , 0.65])
>>> geometric_median([[0.0], [0.0], [1.0], [1e9]], max_faulty=1)
array([0.])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpfed import checks
from dpfed.aggregation.conditions import require_enough
from dpfed.aggregation.rows import Rows
from dpfed.arrays import Floats
from dpfed.errors import BreakdownError, InvalidArgument

MOST_STEPS = 10_000  # of Weiszfeld's iteration, which usually takes some dozens
CONVERGED = 1e-13  # change of the weights by a step
NEAR = 1e-14  # of a squared distance, relative to the terms that it is the difference of: no distance at all


def mean(updates: Any, *, max_faulty: int = 0) -> Floats:
    """Return the plain mean, which bears no faulty update at all."""
    rows = Rows.read(updates)
    if checks.whole(max_faulty=max_faulty):
        message = f"the mean bears no faulty update, and max_faulty is {max_faulty}: one alone can be the result"
        raise BreakdownError(f"{message}; choose trimmed_mean behind nnm", rows.count, rows.count)
    return rows.combine(np.full(rows.count, 1 / rows.count))


def norm_bounded_mean(updates: Any, *, max_faulty: int, clip_norm: float) -> Floats:
    """Return the mean of updates that are scaled down to at most `clip_norm`."""
    return centered_clipping(updates, max_faulty=max_faulty, clip_norm=clip_norm, _rule="norm_bounded_mean")


def centered_clipping(
    updates: Any,
    *,
    max_faulty: int,
    clip_norm: float,
    centre: Any = None,
    steps: int = 1,
    _rule: str = "centered_clipping",
) -> Floats:
    """Return centre + mean of (update − centre), each scaled down to at most `clip_norm`; `steps` times.

    The centre is zero unless it is given, such as the last round's result (Karimireddy, He and Jaggi 2021).
    """
    rows = Rows.read(updates)
    require_enough(_rule, rows.count, max_faulty)
    bound, point = checks.positive(clip_norm=clip_norm), _read_centre(centre, rows.size)
    for _ in range(checks.count(steps=steps)):
        lengths = rows.lengths_from(point)
        factors = np.minimum(1.0, bound / np.maximum(lengths, np.finfo(float).tiny)) / rows.count
        point = point * (1 - factors.sum()) + rows.combine(factors)
    return point


def geometric_median(updates: Any, *, max_faulty: int) -> Floats:
    """Return the point with the least sum of distances to the updates, converged (Weiszfeld; Pillutla et al. 2022)."""
    rows = Rows.read(updates)
    require_enough("geometric_median", rows.count, max_faulty)
    return rows.combine(find_median_weights(rows))


def find_median_weights(rows: Rows) -> Floats:
    """Return the weights by which the rows add up to their geometric median.

    All is done on the Gram matrix. It begins at the best of the rows, and is done if that is the median; otherwise it
    leaves that row by Vardi and Zhang's step (2000), after which no later point meets a row again.
    """
    weights = np.zeros(rows.count)
    weights[_find_best(rows)] = 1.0
    for _ in range(MOST_STEPS):
        moved = _step(rows.gram, weights)
        if np.abs(moved - weights).max() <= CONVERGED:
            return moved
        weights = moved
    return weights


def _find_best(rows: Rows) -> int:
    """Return the row with the least sum of distances.

    One row far out is in every sum, and would leave no digits of the rest: a row farther out than the honest ones, and
    nearer than that one, would look as good as they do. So sums are compared by their differences from that of a row
    which is near most others, each found without subtracting what is nearly equal.
    """
    distances, lengths = np.sqrt(rows.squared_distances), rows.gram.diagonal()
    usual = int(np.argmin(np.sort(distances, axis=1)[:, : rows.count // 2 + 1].sum(axis=1)))
    of_squares = (lengths - lengths[usual])[:, None] - 2 * (rows.gram - rows.gram[usual])
    both = distances + distances[usual]
    return int(np.argmin(np.divide(of_squares, both, out=np.zeros_like(both), where=both > 0).sum(axis=1)))


def _step(gram: Floats, weights: Floats) -> Floats:
    """Return the weights after a step of Weiszfeld's, with the correction where the point is on rows."""
    squares = _square_distances(gram, weights)
    is_on = squares <= NEAR * np.maximum(_square_distances(np.abs(gram), weights, sign=1), np.finfo(float).tiny)
    inverse = np.where(is_on, 0.0, 1 / np.sqrt(np.where(is_on, 1.0, squares)))
    total = inverse.sum()
    if total == 0.0:
        return weights
    target = inverse / total
    if not is_on.any():
        return np.asarray(target)
    apart = target - weights
    pull = total * np.sqrt(max(float(apart @ gram @ apart), 0.0))
    stays = min(1.0, is_on.sum() / pull) if pull else 1.0
    return np.asarray((1 - stays) * target + stays * weights)


def _square_distances(gram: Floats, weights: Floats, sign: int = -1) -> Floats:
    """Return the squared distances of the rows from a point; with `sign` 1 the sizes of their terms added up."""
    return np.asarray(gram.diagonal() + 2 * sign * (gram @ weights) + weights @ gram @ weights)


def _read_centre(centre: Any, size: int) -> Floats:
    point = np.zeros(size) if centre is None else np.asarray(centre, dtype=np.float64)
    if point.shape != (size,) or not np.isfinite(point).all():
        message = f"centre must be a finite vector of {size} numbers, got shape {point.shape}"
        raise InvalidArgument("centre", f"{message}: give what was released last, or leave it out")
    return point
