"""The updates of a round as rows that rules read in chunks: checked once, measured once, copied never.

A rule over n updates of d numbers needs their distances or their columns. All distances come from one Gram matrix,
centred first so that nearly equal updates do not cancel, and columns are read a few thousand at a time. Mixing before
a rule is a matrix in front of the rows: it is multiplied chunk by chunk, so that no second (n, d) array is made.

>>> rows = Rows.read([[0.0, 0.0], [3.0, 4.0]])
>>> rows.squared_distances
array([[ 0., 25.],
       [25.,  0.]])
>>> rows.mixed(np.array([[0.5, 0.5]])).combine(np.ones(1))
array([1.5, 2. ])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.arrays import Floats
from dpfed.errors import UpdateRejected

LARGEST = 1e30  # of a number of an update: squares of it still add up
AT_ONCE = 1 << 20  # numbers of a chunk: what a cache holds
LARGE_GRAM = 2e9  # products, from which on a Gram matrix of float32 updates is multiplied in float32
SAFE_SQUARE = 1e15  # the largest number whose square float32 holds with room for a sum


@dataclass(frozen=True, eq=False)
class Rows:
    """Updates as an (n, d) array, with the largest number of each, and a matrix that mixes them or None."""

    values: NDArray[Any]
    peaks: Floats
    mixing: Floats | None = None

    @classmethod
    def read(cls, updates: Any) -> Rows:
        """Return the rows, if they are finite numbers in one array of float32 or float64; rows stay as they are."""
        if isinstance(updates, Rows):
            return updates
        values = _read_array(updates)
        peaks = np.zeros(len(values))
        for part in _split(values):
            block = values[:, part]
            np.maximum(peaks, np.maximum(block.max(axis=1), -block.min(axis=1)), out=peaks)
        _require_usable(peaks)
        return cls(values, peaks)

    @property
    def count(self) -> int:
        """How many rows there are, after mixing."""
        return len(self.values) if self.mixing is None else len(self.mixing)

    @property
    def size(self) -> int:
        """How many numbers a row has."""
        return int(self.values.shape[1])

    def mixed(self, matrix: Floats) -> Rows:
        """Return rows that are combinations of these, each by weights that add up to 1."""
        return Rows(self.values, self.peaks, matrix if self.mixing is None else matrix @ self.mixing)

    def blocks(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the columns, some thousands at a time, each chunk an array of its own."""
        for part in _split(self.values):
            block = self.values[:, part]
            yield part, block.copy() if self.mixing is None else self.mixing @ block

    def combine(self, weights: Floats) -> Floats:
        """Return the sum of the rows by these weights."""
        weights = weights if self.mixing is None else weights @ self.mixing
        used = np.flatnonzero(weights)
        kept = self.values if 2 * len(used) >= len(weights) else self.values[used]
        shares = weights if kept is self.values else weights[used]
        return np.asarray(shares.astype(self.values.dtype) @ kept, dtype=np.float64)

    def to_array(self) -> Floats:
        """Return all rows as one float64 array."""
        whole = np.empty((self.count, self.size))
        for part, block in self.blocks():
            whole[:, part] = block
        return whole

    @cached_property
    def gram(self) -> Floats:
        """All inner products of the rows less a common centre, added up in float64.

        The centre is the mean of those rows whose largest number is at most the median one: no few rows, however far
        out, move it far from the others and cost these their digits.
        """
        if self.mixing is not None:
            return self.mixing @ self._plain.gram @ self.mixing.T
        total = np.zeros((len(self.values), len(self.values)))
        kind, centre = self._choose_products(), self._centre
        for part in _split(self.values):
            block = self.values[:, part].astype(kind) - centre[part].astype(kind)
            total += block @ block.T
        return total

    @cached_property
    def squared_distances(self) -> Floats:
        """The squared distances of all pairs of rows."""
        lengths = self.gram.diagonal()
        distances = np.maximum(lengths[:, None] + lengths[None, :] - 2 * self.gram, 0.0)
        np.fill_diagonal(distances, 0.0)
        return distances

    def lengths_from(self, centre: Floats) -> Floats:
        """Return each row's distance from a point."""
        squares = np.zeros(self.count)
        for part, block in self.blocks():
            apart = block.astype(np.float64) - centre[part]
            squares += np.einsum("ij,ij->i", apart, apart)
        return np.sqrt(squares)

    @cached_property
    def _plain(self) -> Rows:
        return Rows(self.values, self.peaks)

    @cached_property
    def _centre(self) -> Floats:
        usual = (self.peaks <= np.median(self.peaks)).astype(np.float64)
        return self.combine(usual / usual.sum())

    def _choose_products(self) -> type[np.floating[Any]]:
        """Return float32 for many float32 rows of ordinary numbers, as each chunk is added up in float64 anyway."""
        is_large = self.values.size * len(self.values) > LARGE_GRAM
        is_plain = self.values.dtype == np.float32 and float(self.peaks.max()) < SAFE_SQUARE
        return np.float32 if is_large and is_plain else np.float64


def _split(values: NDArray[Any]) -> Iterator[slice]:
    width = max(64, AT_ONCE // len(values))
    return (slice(start, start + width) for start in range(0, values.shape[1], width))


def _read_array(updates: Any) -> NDArray[Any]:
    try:
        values = np.asarray(updates)
    except ValueError:
        raise UpdateRejected("updates of different lengths were given: give rows of one length") from None
    if values.ndim != 2 or not values.size:
        raise UpdateRejected(f"updates must be rows of one (n, d) array, got shape {values.shape}: stack them first")
    if type(values) is not np.ndarray or values.dtype not in (np.float32, np.float64):
        what = f"{type(values).__name__} of {values.dtype}"
        raise UpdateRejected(
            f"updates must be float32 or float64, got {what}: send the numbers of the model's own kind"
        )
    return values


def _require_usable(peaks: Floats) -> None:
    bad = np.flatnonzero(~(peaks <= LARGEST))
    if len(bad):
        message = f"update {bad[0]} holds a number that is not finite or is above {LARGEST:g} in size"
        raise UpdateRejected(f"{message}, and no rule may see it: refuse it before (aggregation.screening)")
