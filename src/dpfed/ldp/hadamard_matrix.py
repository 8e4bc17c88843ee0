"""Signs of the Hadamard matrix, one at a time or a whole transform, and signs noised by randomized response.

The entry of row i and column j is +1 where i and j have an even number of ones in common, else −1.

>>> signs(np.array([1, 3, 3]), np.array([1, 1, 3])).tolist()
[-1, -1, 1]
>>> transform(np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])).tolist()
[[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0]]
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpfed.ldp import coins
from dpfed.ldp.coins import ONE
from dpfed.ldp.estimates import Floats
from dpfed.ldp.oracle import Codes, Reports, refuse_reports
from dpfed.randomness import RandomSource

Signs = NDArray[np.int8]


def signs(rows: Codes, columns: Codes) -> Signs:
    """Return the matrix's entries at these rows and columns, which are below 2³²."""
    common = rows & columns
    for shift in (16, 8, 4, 2, 1):
        common = common ^ (common >> shift)
    return (1 - 2 * (common & 1)).astype(np.int8)


def transform(rows: Floats) -> Floats:
    """Return each row times the Hadamard matrix; a row's length is a power of two."""
    found, size = rows.copy(), rows.shape[-1]
    half = 1
    while half < size:
        pairs = found.reshape(*rows.shape[:-1], size // (2 * half), 2, half)
        found = np.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], axis=-2)
        half *= 2
    return found.reshape(rows.shape)


def noisy_signs(rows: Codes, columns: Codes, keep: int, source: RandomSource) -> Signs:
    """Return the entries, each kept with chance keep/2⁵³ and turned round otherwise."""
    is_kept = coins.flip(source, keep, rows.size)
    return np.where(is_kept, 1, -1).astype(np.int8) * signs(rows, columns)


def sign_epsilon(keep: int) -> float:
    """Return the ε of a sign that is kept with that chance."""
    return coins.log_up(Fraction(keep, ONE - keep))


def require_signs(reports: Reports) -> Reports:
    """Return the reports, if each has the sign +1 or −1."""
    if np.any(np.abs(reports["sign"]) != 1):
        raise refuse_reports("signs other than +1 and −1")
    return reports
