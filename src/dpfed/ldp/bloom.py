"""Bloom filters of public hash functions, one family for each cohort: where RAPPOR puts the bits of a text.

>>> filters = Filters(bits=32, hashes=2, cohorts=4)
>>> filters.positions(["blue"], [0]).shape, filters.design(["red", "blue"]).shape
((1, 2), (4, 32, 2))
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed.errors import InvalidArgument
from dpfed.ldp.oracle import Codes

MOST_HASHES = 8


@dataclass(frozen=True)
class Filters:
    """Filters of `bits` bits; in each of the cohorts a text sets exactly `hashes` different ones."""

    bits: int
    hashes: int
    cohorts: int
    label: str = "dpfed"

    def positions(self, texts: Sequence[str], cohorts: ArrayLike) -> Codes:
        """Return the bits of each text in the cohort given for it."""
        rows = [self._position(text, cohort) for text, cohort in zip(texts, np.asarray(cohorts).tolist(), strict=True)]
        return np.array(rows, dtype=np.int64).reshape(len(rows), self.hashes)

    def design(self, candidates: Sequence[str]) -> NDArray[np.float64]:
        """Return, for every cohort, a matrix of bits by candidates that is 1 where a candidate sets a bit."""
        found = np.zeros((self.cohorts, self.bits, len(candidates)))
        for cohort in range(self.cohorts):
            places = self.positions(candidates, np.full(len(candidates), cohort))
            found[cohort, places, np.arange(len(candidates))[:, None]] = 1.0
        return found

    def fill(self, texts: NDArray[Any], cohorts: Codes) -> NDArray[np.bool_]:
        """Return the filter of each user; a text that many share is hashed once in each cohort."""
        names, which = np.unique(texts, return_inverse=True)
        pairs, place = np.unique(which * self.cohorts + cohorts, return_inverse=True)
        positions = self.positions([str(names[pair // self.cohorts]) for pair in pairs], pairs % self.cohorts)
        filters = np.zeros((len(texts), self.bits), dtype=np.bool_)
        filters[np.arange(len(texts))[:, None], positions[place]] = True
        return filters

    def _position(self, text: str, cohort: int) -> list[int]:
        key = f"{self.label}/{cohort}".encode()
        if len(key) > hashlib.blake2b.MAX_KEY_SIZE:  # cut off, all cohorts would have the same functions
            key = hashlib.blake2b(key).digest()
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key).digest()
        chosen: list[int] = []
        for index in range(self.hashes):
            # Drawn among the places still free, so that no two of a text's bits coincide.
            place = int.from_bytes(digest[8 * index : 8 * index + 8], "little") % (self.bits - index)
            for taken in sorted(chosen):
                place += place >= taken
            chosen.append(place)
        return chosen


def read_texts(values: ArrayLike, argument: str = "values") -> NDArray[Any]:
    """Return values as texts; numbers are read as their digits."""
    array = np.asarray(values)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iubU":
        raise InvalidArgument(
            argument,
            f"{argument} must be one list of texts or whole numbers, got shape {array.shape} of "
            f"{array.dtype.type.__name__}: write each value as a text",
        )
    return array.astype(str)
