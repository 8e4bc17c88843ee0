"""A model as one vector of numbers, and as a file of named arrays.

The server averages, clips, noises and stores vectors, and needs no torch for it; what the numbers belong to is in a
`Layout`, which is public. Parameters are all there is: a buffer may be a statistic of private data, so none leaves.

>>> layout = Layout(("linear.weight", "linear.bias"), ((2, 3), (2,)))
>>> vector = layout.flatten({"linear.bias": np.ones(2), "linear.weight": np.zeros((2, 3))})
>>> vector.tolist()
[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
>>> layout.unflatten(vector)["linear.bias"]
array([1., 1.], dtype=float32)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import InvalidArgument
from dpfed.runs import tensor_files
from dpfed.runs.directory import OWNER_ONLY

FORMAT = 1
DTYPES = ("float32", "float64")

Vector = NDArray[np.floating[Any]]
Arrays = dict[str, Vector]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's parameters, in the order in which they stand in the vector of that dtype."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "shapes", tuple(tuple(int(side) for side in shape) for shape in self.shapes))
        if len(self.names) != len(self.shapes) or len(set(self.names)) != len(self.names):
            message = f"every parameter needs one name and one shape, got names {self.names} for {self.shapes}"
            raise InvalidArgument("names", message)
        if self.dtype not in DTYPES:
            raise InvalidArgument("dtype", f"dtype must be {' or '.join(DTYPES)}, got {self.dtype!r}")
        if self.size < 1 or any(side < 0 for shape in self.shapes for side in shape):
            raise InvalidArgument("shapes", f"shapes must hold at least one number, got {self.shapes}")

    @property
    def size(self) -> int:
        """The number of values in the vector."""
        return sum(map(math.prod, self.shapes))

    @property
    def bytes(self) -> int:
        """The memory that the vector takes."""
        return self.size * np.dtype(self.dtype).itemsize

    def flatten(self, arrays: Mapping[str, NDArray[Any]]) -> Vector:
        """Return these arrays as one vector; unknown or missing names and other shapes are refused."""
        missing, unknown = sorted(set(self.names) - set(arrays)), sorted(set(arrays) - set(self.names))
        if missing or unknown:
            what = f"{missing[0]!r} is missing" if missing else f"{unknown[0]!r} is no parameter of this model"
            raise InvalidArgument("arrays", f"{what}: give exactly {', '.join(self.names)}")
        for name, shape in zip(self.names, self.shapes, strict=True):
            if np.shape(arrays[name]) != shape:
                message = f"{name!r} must have the shape {shape}, got {np.shape(arrays[name])}"
                raise InvalidArgument("arrays", f"{message}: give the weights of this very model")
        return np.concatenate([np.asarray(arrays[name], dtype=self.dtype).ravel() for name in self.names])

    def unflatten(self, vector: Vector) -> Arrays:
        """Return new arrays by name, in the layout's dtype."""
        values = self._checked(vector)
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        parts = zip(self.names, np.split(values, ends), self.shapes, strict=True)
        return {name: part.reshape(shape).copy() for name, part, shape in parts}

    def to_json(self) -> str:
        """Return the layout as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Return the layout that `to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(
                "layout", f"this is no layout of a model ({error}): give what Layout.to_json wrote"
            ) from None

    def write(self, path: str | Path, vector: Vector, facts: Mapping[str, Any] | None = None) -> None:
        """Write the vector as named arrays with the facts beside them: durably, all at once, for the owner only.

        Its bits are kept: a vector of another dtype or with numbers that are not finite is refused.
        """
        if np.asarray(vector).dtype != self.dtype:
            message = (
                f"vector must be {self.dtype}, got {np.asarray(vector).dtype}: no number is rounded unasked; use astype"
            )
            raise InvalidArgument("vector", message)
        arrays = self.unflatten(vector)
        if not np.isfinite(vector).all():
            raise InvalidArgument("vector", f"{path} would hold numbers that are not finite: keep the model before")
        note = {"format": FORMAT, "layout": asdict(self), "facts": dict(facts or {})}
        tensor_files.write(Path(path), arrays, note, mode=OWNER_ONLY)

    def read(self, path: str | Path) -> tuple[Vector, dict[str, Any]]:
        """Return the vector and the facts in a file that was written for this layout."""
        layout, vector, facts = load(path)
        if layout != self:
            message = f"holds another model ({_short(layout)}) than this one ({_short(self)})"
            _refuse(path, f"{message}: build the model it was written for")
        return vector, facts

    def _checked(self, vector: Vector) -> Vector:
        values = np.asarray(vector)
        if values.shape != (self.size,) or values.dtype.kind != "f":
            message = f"vector must have {self.size} numbers in one row, got {values.dtype} of shape {values.shape}"
            raise InvalidArgument("vector", message)
        return values.astype(self.dtype)


def load(path: str | Path) -> tuple[Layout, Vector, dict[str, Any]]:
    """Return layout, vector and facts of a file that `Layout.write` wrote; nothing in it can run."""
    try:
        note, arrays = tensor_files.read(Path(path))
        if note["format"] != FORMAT or not isinstance(note["facts"], dict):
            _refuse(path, f"is not of format {FORMAT}: read it with the version of dpfed that wrote it")
        layout = Layout(**note["layout"])
        _require_exact(path, layout, arrays)
        return layout, layout.flatten(arrays), note["facts"]
    except InvalidArgument as error:
        raise InvalidArgument("path", str(error)) from None
    except (KeyError, TypeError, ValueError) as error:
        kind = error.kind if isinstance(error, tensor_files.Unreadable) else type(error).__name__
        _refuse(path, f"is no model of dpfed ({kind}); pickles are never read: use Layout.write")


def _require_exact(path: str | Path, layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> None:
    for name, array in arrays.items():
        if array.dtype != layout.dtype or not np.isfinite(array).all():
            _refuse(path, f"has {name!r} as {array.dtype}, or with numbers that are not finite: put back a copy")


def _short(layout: Layout) -> str:
    return f"{layout.size} numbers of {layout.dtype} in {', '.join(layout.names[:3])}{', …' * (len(layout.names) > 3)}"


def _refuse(path: str | Path, reason: str) -> NoReturn:
    raise InvalidArgument("path", f"{path} {reason}") from None
