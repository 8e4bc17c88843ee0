"""Rules that choose whole updates by their distances: Krum, Multi-Krum, Bulyan, and the subset of least diameter.

Krum's score of an update is the sum of squared distances to its n − f − 2 nearest others, as in the paper; many
copies of it take one more. Of equal scores the first counts, so that the order of updates matters to ties alone (the
last picks of Bulyan with max_faulty 2 have one neighbour each, and tie).

Bound: Krum returns an update whose score is at most that of every honest one, and these have n − f − 2 honest
neighbours: it is no farther from them than honest updates are from each other, up to a factor of √n.

>>> updates = [[1.0, 1.0], [1.1, 0.9], [0.9, 1.1], [1.05, 1.0], [0.95, 1.05], [10.0, -10.0], [9.0, -9.0]]
>>> krum(updates, max_faulty=2)
array([0.95, 1.05])
>>> multi_krum(updates, max_faulty=2, chosen=5).round(6)
array([1.  , 1.01])
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed.aggregation.conditions import require_enough
from dpfed.aggregation.coordinatewise import average_nearest, sort_columns
from dpfed.aggregation.rows import Rows
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument

MOST_SUBSETS = 200_000  # that a least diameter is searched among
RECHECKED = 8  # best scores that are computed again in float64
Indices = NDArray[np.intp]


def krum(updates: Any, *, max_faulty: int) -> Floats:
    """Return the update with the least Krum score (Blanchard et al. 2017); needs n ≥ 2·max_faulty + 3."""
    rows = Rows.read(updates)
    return _pick(rows, choose_krum(rows, max_faulty, 1))


def multi_krum(updates: Any, *, max_faulty: int, chosen: int | None = None) -> Floats:
    """Return the mean of the `chosen` updates of least Krum score, by default n − max_faulty − 2, as in the proof."""
    rows = Rows.read(updates)
    return _pick(rows, choose_krum(rows, max_faulty, chosen))


def bulyan(updates: Any, *, max_faulty: int) -> Floats:
    """Return the mean around the median of n − 2f updates that Krum picks one by one (El Mhamdi et al. 2018).

    It needs n ≥ 4f + 3. In each coordinate the n − 4f picked values nearest the median are averaged.
    """
    rows = Rows.read(updates)
    picked = choose_bulyan(rows, max_faulty)
    kept = rows.mixed(np.eye(rows.count)[picked])
    return sort_columns(kept, lambda values: average_nearest(values, rows.count - 4 * max_faulty))


def minimum_diameter(updates: Any, *, max_faulty: int) -> Floats:
    """Return the mean of the n − f updates whose greatest distance is least (Rousseeuw 1985; El Mhamdi et al. 2018).

    All subsets are tried, so that more than some hundred thousand are refused.
    """
    rows = Rows.read(updates)
    require_enough("minimum_diameter", rows.count, max_faulty)
    require_few_subsets(rows.count, max_faulty)
    kept = rows.count - max_faulty
    distances = rows.squared_distances
    subsets = np.array(list(combinations(range(rows.count), kept)))
    widest = [distances[np.ix_(subset, subset)].max() for subset in subsets]
    return _pick(rows, subsets[int(np.argmin(widest))])


def require_few_subsets(count: int, max_faulty: int) -> None:
    """Refuse to search a least diameter among too many subsets; of fewer updates there are fewer."""
    subsets = comb(count, max_faulty)
    if subsets > MOST_SUBSETS:
        message = f"minimum_diameter would try {subsets:.2g} subsets of {count} updates"
        raise InvalidArgument("max_faulty", f"{message}, and tries {MOST_SUBSETS} at most: choose multi_krum")


def krum_scores(distances: Floats, neighbours: int) -> Floats:
    """Return each update's sum of squared distances to that many nearest others."""
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    others.sort(axis=1)
    return np.asarray(others[:, :neighbours].sum(axis=1))


def choose_krum(rows: Rows, max_faulty: int, chosen: int | None) -> Indices:
    """Return the indices of the updates of least Krum score, in ascending order."""
    require_enough("krum", rows.count, max_faulty)
    neighbours = rows.count - max_faulty - 2
    most = neighbours if chosen is None else checks.count(chosen=chosen)
    if most > rows.count - max_faulty:
        message = f"chosen must be at most the {rows.count - max_faulty} updates that are honest, got {most}"
        raise InvalidArgument("chosen", f"{message}: more would take a faulty one for certain")
    scores = krum_scores(rows.squared_distances, neighbours)
    order = np.argsort(scores, kind="stable")
    if most == 1:
        order = _order_exactly(rows, order[:RECHECKED], neighbours)
    return np.sort(order[:most])


def choose_bulyan(rows: Rows, max_faulty: int) -> Indices:
    """Return the n − 2f updates that Krum picks one after the other, each from those that are left."""
    require_enough("bulyan", rows.count, max_faulty)
    left, picked = np.arange(rows.count), []
    for _ in range(rows.count - 2 * max_faulty):
        neighbours = max(len(left) - max_faulty - 2, min(1, len(left) - 1))
        best = int(np.argmin(krum_scores(rows.squared_distances[np.ix_(left, left)], neighbours)))
        picked.append(left[best])
        left = np.delete(left, best)
    return np.sort(np.array(picked))


def _order_exactly(rows: Rows, best: Indices, neighbours: int) -> Indices:
    """Return the best few in the order of scores in float64: products in float32 may rank equals the wrong way."""
    if rows.values.dtype == np.float64 or rows.mixing is not None:
        return best
    exact = [np.sort(rows.lengths_from(rows.values[index].astype(np.float64)) ** 2)[1:] for index in best]
    return np.asarray(best[np.argsort([scores[:neighbours].sum() for scores in exact], kind="stable")])


def _pick(rows: Rows, indices: Indices) -> Floats:
    weights = np.zeros(rows.count)
    weights[indices] = 1 / len(indices)
    return rows.combine(weights)
