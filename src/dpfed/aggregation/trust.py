"""FLTrust: updates count by how far they agree with one that the server has made of clean data of its own.

>>> fltrust([[2.0, 0.0], [0.0, 3.0], [-9.0, 0.0]], root=[1.0, 0.0])
array([1., 0.])
>>> fltrust([[-1.0, 0.0]], root=[1.0, 0.0])
array([0., 0.])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpfed.aggregation.rows import Rows
from dpfed.arrays import Floats, vector
from dpfed.errors import InvalidArgument


def fltrust(updates: Any, *, root: Any) -> Floats:
    """Return the mean of updates scaled to the root's length, weighted by max(0, cosine to the root); zero if none.

    It bears any number of faulty clients, as long as the root is made of clean data (Cao et al. 2021).
    """
    rows, trusted = Rows.read(updates), vector(root, "root")
    if trusted.shape != (rows.size,):
        message = f"root must be an update of {rows.size} numbers, got {trusted.size}"
        raise InvalidArgument("root", f"{message}: train it on the same model")
    length, lengths = float(np.linalg.norm(trusted)), rows.lengths_from(np.zeros(rows.size))
    safe = np.maximum(lengths, np.finfo(float).tiny)
    trust = np.maximum(_project(rows, trusted) / safe / max(length, np.finfo(float).tiny), 0.0)
    if not trust.sum():
        return np.zeros(rows.size)
    return rows.combine(trust / trust.sum() * length / safe)


def _project(rows: Rows, direction: Floats) -> Floats:
    return np.asarray(sum((block @ direction[part] for part, block in rows.blocks()), np.zeros(rows.count)))
