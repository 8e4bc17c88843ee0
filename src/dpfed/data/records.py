"""Records as arrays: features, labels, and group columns such as the site or the person.

>>> Records([[1.0, 2.0], [3.0, 4.0]], [0, 1], columns=("age", "weight"))
Records(columns=('age', 'weight'))
>>> Records([[1.0], [float("nan")]], [0, 1], columns=("age",))
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: record 2, column age is not a finite number: fill it in or leave the record out
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed.errors import InvalidArgument


@dataclass(frozen=True, eq=False)
class Records:
    """Arrays with one leading axis; `groups` are columns such as the site, `classes` the declared names of labels.

    How many records there are is the owner's secret: it is not part of the text form, and no plan reads it.
    """

    features: NDArray[Any] = field(repr=False)
    labels: NDArray[Any] = field(repr=False)
    columns: tuple[str, ...] = ()
    groups: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    classes: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        features, labels = _read_array("features", self.features), _read_array("labels", self.labels)
        groups = {name: _read_array(name, column) for name, column in self.groups.items()}
        lengths = {len(features), len(labels), *map(len, groups.values())}
        if lengths == {0} or len(lengths) != 1:
            raise InvalidArgument(
                "data", f"features, labels and groups must have the same length of at least one, got {sorted(lengths)}"
            )
        if self.columns and features.shape[1:] != (len(self.columns),):
            message = f"{len(self.columns)} columns are named, but a record has shape {features.shape[1:]}: name each"
            raise InvalidArgument("columns", message)
        _require_finite(features, tuple(self.columns))
        _require_finite(labels, ("label",))
        for name, value in {"features": features, "labels": labels, "groups": groups}.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def rows(self) -> Records:
        """The records themselves, since each row is a record."""
        return self

    def take(self, positions: NDArray[Any]) -> Records:
        """Return the records at these positions."""
        groups = {name: column[positions] for name, column in self.groups.items()}
        return self.with_features(self.features, positions, groups)

    def with_features(
        self, features: NDArray[Any], positions: Any = slice(None), groups: Mapping[str, NDArray[Any]] | None = None
    ) -> Records:
        """Return the same records with other features, or a part of them."""
        columns = self.columns if features.shape[1:] == (len(self.columns),) else ()
        kept = self.groups if groups is None else groups
        return Records(features[positions], self.labels[positions], columns, kept, self.classes)


def _read_array(name: str, values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim == 0 or array.dtype == object:
        raise InvalidArgument(name, f"{name} must be an array with one entry or row per record")
    view = array.view()
    view.setflags(write=False)
    return view


def _require_finite(values: NDArray[Any], columns: tuple[str, ...]) -> None:
    if values.dtype.kind in "bui":
        return
    if values.dtype.kind != "f":
        raise InvalidArgument("data", f"{columns[0] if columns else 'features'} must be numbers, got {values.dtype}")
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        column = columns[bad[0][-1] if values.ndim == 2 else 0] if columns else "features"
        message = f"record {bad[0][0] + 1}, column {column} is not a finite number: fill it in or leave the record out"
        raise InvalidArgument("data", message)
