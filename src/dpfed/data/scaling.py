"""Features scaled by constants that anybody may know.

A mean, a deviation or a maximum computed from the records would be a release of its own: whoever trains on
features that were standardised by them has published them with the model, un-noised. So the constants are
declared: the range of the device, the figures of an earlier public study. Without any, features stay as they are.

>>> import numpy as np
>>> Bounds({"age": (0, 100)}).apply(np.array([[50.0, 7.0], [120.0, 7.0]]), ("age", "ward")).tolist()
[[0.0, 7.0], [1.0, 7.0]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import InvalidArgument

Floats = NDArray[np.float64]
Pair = Sequence[float]


@dataclass(frozen=True)
class Bounds:
    """Declared [low, high] of all features, of each, or of some by name: values are clipped and mapped to [−1, 1]."""

    bounds: Pair | Sequence[Pair] | Mapping[str, Pair]

    def apply(self, features: NDArray[Any], columns: Sequence[str] = ()) -> Floats:
        """Return the features clipped and mapped to [−1, 1]; a column that is not named stays as it is."""
        if isinstance(self.bounds, Mapping):
            return self._apply_by_name(features, self.bounds, columns)
        pairs = np.asarray(self.bounds, dtype=float)
        if pairs.ndim == 2:
            _require_one_each("feature_bounds", len(pairs), features)
        return _map_to_unit(features, pairs[..., 0], pairs[..., 1])

    def _apply_by_name(self, features: NDArray[Any], bounds: Mapping[str, Pair], columns: Sequence[str]) -> Floats:
        unknown = [name for name in bounds if name not in columns]
        if unknown:
            known = ", ".join(columns) or "no names"
            raise InvalidArgument(
                "feature_bounds", f"feature_bounds names {unknown[0]!r}, which is no feature: write one of {known}"
            )
        scaled = np.array(features, dtype=float)
        for name, (low, high) in bounds.items():
            place = list(columns).index(name)
            scaled[:, place] = _map_to_unit(scaled[:, place], low, high)
        return scaled


@dataclass(frozen=True)
class Standard:
    """Declared mean and scale, one number each or one for each feature: (value − mean) / scale."""

    mean: float | Sequence[float] = 0.0
    scale: float | Sequence[float] = 1.0

    def apply(self, features: NDArray[Any], columns: Sequence[str] = ()) -> Floats:
        """Return the features, shifted and divided."""
        mean, scale = np.asarray(self.mean, dtype=float), np.asarray(self.scale, dtype=float)
        for name, value in (("mean", mean), ("scale", scale)):
            if value.ndim:
                _require_one_each(name, len(value), features)
        return np.asarray((features - mean) / scale, dtype=float)


def map_back(values: NDArray[Any], bounds: Pair | None) -> NDArray[Any]:
    """Return what was mapped from `bounds` to [−1, 1] in its own unit; as it is where nothing was mapped.

    >>> map_back(np.array([-1.0, 0.0]), (0, 350)).tolist()
    [0.0, 175.0]
    """
    return values if bounds is None else np.asarray(bounds[0] + (values + 1) / 2 * (bounds[1] - bounds[0]))


def _map_to_unit(values: NDArray[Any], low: Any, high: Any) -> Floats:
    """Return the values clipped and mapped to [−1, 1]; refuse bounds that would make NaN of some finite value.

    Privacy: whether they are refused does not depend on the values, or whoever chooses the bounds could ask by the
    refusal whether one of the values is there.
    """
    with np.errstate(over="ignore"):
        width = np.subtract(high, low, dtype=float)
        if not np.all((width > 0) & (width < np.inf)):
            message = "feature_bounds must be [low, high] with low below high, and no farther apart than floats can say"
            raise InvalidArgument("feature_bounds", f"{message}: give what anybody may know of the range")
        return np.asarray(np.clip((values - low) / width * 2 - 1, -1, 1), dtype=float)


def _require_one_each(name: str, given: int, features: NDArray[Any]) -> None:
    if features.ndim != 2 or features.shape[1] != given:
        message = f"{name} has {given} entries, but a record has the shape {features.shape[1:]}: give one for each"
        raise InvalidArgument(name, message)
