"""Bounding what one contribution can change: norm clipping that holds to the last bit.

Noise is calibrated to the clip norm, so a clipped vector that is longer by one rounding error breaks the
promise by as much. Here the *exact* norm of what is returned, in the precision it is returned in, is at most
the clip norm; nothing is ever scaled up, and what fits comes back bit by bit.

>>> import numpy as np
>>> clip_gradients([np.array([3.0, 0.0]), np.array([4.0])], clip_norm=5.0)
[array([3., 0.]), array([4.])]
>>> clip_gradients({"w": np.array([30.0, 40.0])}, clip_norm=5.0)["w"].round(6)
array([3., 4.])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed import arrays, checks
from dpfed.arrays import Floats, Precision
from dpfed.errors import InvalidArgument

NORMS = ("l1", "l2")
_MOST_EXAMPLES = 1 << 20
_UNIT = 1 << 1074  # every float64 is a whole multiple of its inverse


def clip_gradients(gradients: Any, clip_norm: float, norm: str = "l2") -> Any:
    """Scale the gradients by min(1, clip_norm/‖gradients‖), all arrays together taken as one vector.

    Arrays, torch tensors, numbers, and lists, tuples and dicts of them keep their structure and precision
    (integers become float64); zeros stay zeros. NaN and infinity are refused.

    Privacy: bounds one contribution, so adding or removing it moves a sum by at most clip_norm, and replacing
    it by at most 2 clip_norm. To protect examples clip each one on its own (:func:`clip_per_example`), never
    the batch.
    """
    parts = arrays.leaves(gradients, "gradients")
    rows = [part.reshape(1, -1) for part in parts]
    clipped = _clip_rows(rows, arrays.precisions(gradients), *_check_bound(clip_norm, norm))
    return arrays.rebuild(gradients, _reshape(clipped, parts))


def clip_per_example(gradients: Any, clip_norm: float, norm: str = "l2") -> Any:
    """Clip each example on its own: one index of every array's leading axis.

    Privacy: the sum over the leading axis has sensitivity clip_norm when one example is added or removed.
    """
    parts = arrays.leaves(gradients, "gradients")
    rows = [part.reshape(_count_examples(parts), -1) for part in parts]
    clipped = _clip_rows(rows, arrays.precisions(gradients), *_check_bound(clip_norm, norm))
    return arrays.rebuild(gradients, _reshape(clipped, parts))


def group_clip_norm(clip_norm: float, groups: int, norm: str = "l2") -> float:
    """Return the clip norm of each of so many groups, rounded down: together they stay within clip_norm."""
    bound, norm = _check_bound(clip_norm, norm)
    groups, power = checks.count(groups=groups), 1 if norm == "l1" else 2
    share = bound / (groups if norm == "l1" else math.sqrt(groups))
    while groups * Fraction(share) ** power > Fraction(bound) ** power:
        share = math.nextafter(share, 0.0)
    return share


def sum_examples(clipped: Floats, clip_norm: float) -> Floats:
    """Sum over the leading axis without any rounding error, entries cut to a fixed grid towards zero.

    Privacy: the sum of examples that were clipped to `clip_norm` moves by at most clip_norm when one is added
    or removed, to the last bit. A sum that rounds can move by more (Casacuberta et al. 2022). On a grid of
    2⁻³² clip norms, up to 2²⁰ examples add up exactly, and cutting lengthens none of them.
    """
    if len(clipped) > _MOST_EXAMPLES:
        raise InvalidArgument(
            "gradients", f"gradients must hold at most {_MOST_EXAMPLES} examples a round, got {len(clipped)}"
        )
    return np.asarray(cut_examples(clipped, clip_norm).sum(axis=0))


def cut_examples(clipped: Floats, clip_norm: float) -> Floats:
    """Return the entries cut to a grid of 2⁻³² clip norms towards zero, on which up to 2²⁰ examples add up exactly."""
    step = math.ldexp(1.0, max(math.frexp(clip_norm)[1] - 32, -1074))
    return np.asarray(np.trunc(clipped / step) * step)


def total_norm(gradients: Any, norm: str = "l2") -> float:
    """Return the norm of all arrays together as one vector, computed in float64 without overflow."""
    rows = [part.reshape(1, -1) for part in arrays.leaves(gradients, "gradients")]
    measured = _measure(rows, _check_norm(norm))
    with np.errstate(over="ignore"):
        return float(np.ldexp(measured.norms, measured.exponents)[0])


@dataclass(frozen=True)
class _Measured:
    """Rows scaled by 2^−exponents into [−1, 1], with their norms after scaling."""

    scaled: list[Floats]
    norms: Floats
    exponents: NDArray[np.int32]


def _check_bound(clip_norm: float, norm: str) -> tuple[float, str]:
    return checks.positive(clip_norm=clip_norm), _check_norm(norm)


def _check_norm(norm: str) -> str:
    if norm not in NORMS:
        raise InvalidArgument("norm", f"norm must be 'l1' or 'l2', got {norm!r}")
    return norm


def _count_examples(parts: Sequence[Floats]) -> int:
    lengths = {part.shape[0] if part.ndim else None for part in parts}
    if len(lengths) != 1 or None in lengths:
        shapes = ", ".join(str(part.shape) for part in parts)
        raise InvalidArgument("gradients", f"every array needs the same leading axis of examples, got {shapes}")
    return int(parts[0].shape[0])


def _reshape(rows: Sequence[Floats], parts: Sequence[Floats]) -> list[Floats]:
    return [row.reshape(part.shape) for row, part in zip(rows, parts, strict=True)]


def _clip_rows(rows: Sequence[Floats], precisions: Sequence[Precision], clip_norm: float, norm: str) -> list[Floats]:
    measured = _measure(rows, norm)
    too_long = _exceeds(rows, measured, clip_norm, norm)
    # Twice the measuring error stays free, so that clipping again measures the row as short enough at once.
    shrink = 1.0 - 4.0 * _error(rows)
    with np.errstate(over="ignore"):
        # Shrunk first: a clip norm of 2¹⁰²³ over a norm of ½ would be infinite, and nothing would ever be short enough.
        factors = clip_norm * shrink / np.maximum(measured.norms, 0.5)
    clipped = list(rows)
    while np.any(too_long):
        clipped = [
            np.where(too_long[:, None], _truncate(part * factors[:, None], precision), row)
            for part, precision, row in zip(measured.scaled, precisions, clipped, strict=True)
        ]
        # Only subnormal results, rounded by more than their relative error, are ever measured too long again.
        too_long = _exceeds(clipped, _measure(clipped, norm), clip_norm, norm)
        factors = np.where(too_long, factors * 0.5, factors)
    return clipped


def _measure(rows: Sequence[Floats], norm: str) -> _Measured:
    peaks = np.max([np.max(np.abs(row), axis=1, initial=0.0) for row in rows], axis=0)
    exponents = np.frexp(peaks)[1]
    scaled = [np.ldexp(row, -exponents[:, None]) for row in rows]
    if norm == "l1":
        norms = sum(np.sum(np.abs(row), axis=1) for row in scaled)
    else:
        norms = np.sqrt(sum(np.sum(row * row, axis=1) for row in scaled))
    return _Measured(scaled, np.asarray(norms), exponents)


def _error(rows: Sequence[Floats]) -> float:
    """Return a bound on the relative error of a measured norm in any order of summation (Higham 2002, §4.2)."""
    dimension = sum(int(row.shape[1]) for row in rows)
    return (dimension + 8) * 2.0**-52


def _exceeds(rows: Sequence[Floats], measured: _Measured, clip_norm: float, norm: str) -> NDArray[np.bool_]:
    error = _error(rows)
    with np.errstate(over="ignore", under="ignore"):
        limits = np.ldexp(clip_norm, -measured.exponents)
    too_long = measured.norms * (1 - error) > limits
    for index in np.flatnonzero((measured.norms * (1 + error) > limits) & ~too_long):
        too_long[index] = _exceeds_exactly([row[index] for row in rows], clip_norm, norm)
    return np.asarray(too_long)


def _exceeds_exactly(parts: Sequence[Floats], clip_norm: float, norm: str) -> bool:
    power = 1 if norm == "l1" else 2
    total: int = sum(_to_units(value) ** power for part in parts for value in part.tolist())
    limit: int = _to_units(clip_norm) ** power
    return total > limit


def _to_units(value: float) -> int:
    numerator, denominator = abs(value).as_integer_ratio()
    return numerator * (_UNIT // denominator)


def _truncate(values: Floats, precision: Precision) -> Floats:
    """Round the values towards zero to that precision: rounding must not lengthen the vector again."""
    exponents = np.frexp(values)[1]
    quanta = np.maximum(exponents - precision.bits, precision.smallest_exponent)
    return np.asarray(np.ldexp(np.trunc(np.ldexp(values, -quanta)), quanta))
