"""Arrays in lists and dicts as one vector, and back.

A model's gradient comes as an array, a list or a dict of arrays, nested or not; clipping and noise see one
vector of float64 numbers, and the answer goes back into the same containers, array types and precisions.
Torch tensors are recognised by their methods, so torch is never imported.

All private numbers enter here: each is checked before anything is converted, and what float64 cannot hold
exactly is refused. Rounding would come before the noise, and could move neighbours apart by more than the sensitivity.

>>> import numpy as np
>>> tree = {"weight": np.ones((2, 2), dtype=np.float32), "bias": [0.0, 1.0]}
>>> [leaf.shape for leaf in leaves(tree, "gradients")]
[(2, 2), (), ()]
>>> rebuild(tree, [np.zeros((2, 2)), np.array(5.0), np.array(6.0)])["bias"]
[5.0, 6.0]
>>> vector([0.5, 2**53], "scores")
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: scores[1] holds integers of 2⁵³ or more, which float64 would round: subtract a public \
constant or measure in larger units
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import InvalidArgument

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Precision:
    """A floating-point format: its significant bits, and the exponent of its smallest positive number."""

    bits: int
    smallest_exponent: int


_PRECISIONS = {
    "bfloat16": Precision(8, -133),
    "float16": Precision(11, -24),
    "float32": Precision(24, -149),
    "float64": Precision(53, -1074),
}
_LARGEST_INTEGER = 2**53
# A float64 holds every number of these formats exactly, but for the largest integers; anything else is refused.
_EXACT = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {"float16", "float32", "float64"}
_USUAL = frozenset(map(np.dtype, _EXACT))  # in this machine's order of bytes; a dtype's name takes its time


def leaves(tree: Any, argument: str) -> list[Floats]:
    """Return every array of the tree as float64, in order, if all are finite and there is at least one number."""
    found = [_read(leaf, argument, path) for path, leaf in _walk(tree, "")]
    if not sum(leaf.size for leaf in found):
        raise InvalidArgument(argument, f"{argument} must hold at least one number, got none")
    return found


def vector(values: Any, argument: str) -> Floats:
    """Return a list of numbers, or an array with one axis, as float64, if all are finite and there is one or more."""
    is_list = isinstance(values, list | tuple)
    found = np.array(_numbers(values, argument)) if is_list else _read(values, argument, "")
    if found.ndim != 1 or not found.size:
        raise InvalidArgument(argument, f"{argument} must be a list of one or more numbers, got shape {found.shape}")
    return found


def number(value: Any, argument: str) -> float:
    """Return a single number as a float, if it is finite."""
    return _number(value, argument, "")


def exact(leaf: Any, argument: str, path: str = "") -> Floats:
    """Return one array or number as float64, finite or not, if that changes no value."""
    where = f"{argument}{path}"
    array = _to_numpy(leaf, argument, where)
    if array.dtype not in _USUAL and array.dtype.name not in _EXACT:
        message = f"{where} must hold integers, or floats of 16, 32 or 64 bits, got dtype {array.dtype}"
        raise InvalidArgument(argument, f"{message}: convert it, and bound the sensitivity of what comes out")
    values = array.astype(np.float64)
    if array.dtype.kind in "iu" and np.any(np.abs(values) >= _LARGEST_INTEGER):
        message = f"{where} holds integers of 2⁵³ or more, which float64 would round"
        raise InvalidArgument(argument, f"{message}: subtract a public constant or measure in larger units")
    return values


def rebuild(tree: Any, values: Sequence[Floats]) -> Any:
    """Return a tree like `tree` with those values: same containers and array types, floating precision kept.

    Values are rounded to the nearest number of the leaf's precision; integers become float64.
    """
    return _rebuild(tree, iter(values), _write)


def rebuild_whole(tree: Any, values: Sequence[Whole]) -> Any:
    """Return a tree like `tree` with those whole numbers; integers stay integers (arrays become int64)."""
    return _rebuild(tree, iter(values), _write_whole)


def read_only(values: Any) -> NDArray[Any]:
    """Return the numbers as an array that cannot be written into: the very one, if it is so already.

    >>> read_only(np.zeros(2)).flags.writeable
    False
    """
    array = np.asarray(values)
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def precisions(tree: Any) -> list[Precision]:
    """Return the floating-point format that each leaf has in a rebuilt tree."""
    return [_precision(leaf) for _, leaf in _walk(tree, "")]


def is_tensor(leaf: Any) -> bool:
    """Return whether the leaf is a torch tensor, or something that behaves like one."""
    return all(hasattr(leaf, method) for method in ("detach", "numpy", "new_tensor"))


def _walk(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, item in tree.items():
            yield from _walk(item, f"{path}[{key!r}]")
    elif isinstance(tree, list | tuple):
        for index, item in enumerate(tree):
            yield from _walk(item, f"{path}[{index}]")
    else:
        yield path, tree


def _read(leaf: Any, argument: str, path: str) -> Floats:
    values = exact(leaf, argument, path)
    if not np.all(np.isfinite(values)):
        message = f"{argument}{path} must be finite, got NaN or infinity: drop or repair it before"
        raise InvalidArgument(argument, message)
    return values


def _numbers(values: Sequence[Any], argument: str) -> list[float]:
    return [_number(value, argument, f"[{index}]") for index, value in enumerate(values)]


def _number(value: Any, argument: str, path: str) -> float:
    found = _read(value, argument, path)
    if found.ndim:
        raise InvalidArgument(argument, f"{argument}{path} must be a single number, got shape {found.shape}")
    return float(found)


def _to_numpy(leaf: Any, argument: str, where: str) -> NDArray[Any]:
    if isinstance(leaf, np.ma.MaskedArray):
        raise InvalidArgument(argument, f"{where} is a masked array: fill its gaps before")
    if isinstance(leaf, np.ndarray | np.generic):
        return np.asarray(leaf)
    if is_tensor(leaf):
        if str(leaf.dtype).rpartition(".")[2] not in _PRECISIONS:
            kinds = ", ".join(_PRECISIONS)
            raise InvalidArgument(argument, f"{where} must be a tensor of {kinds}, got {leaf.dtype}")
        if str(getattr(leaf, "layout", "torch.strided")) != "torch.strided":
            raise InvalidArgument(
                argument, f"{where} must be a dense tensor, got {leaf.layout}: call to_dense() before"
            )
        return np.asarray(leaf.detach().cpu().double().numpy())
    if isinstance(leaf, float):
        return np.asarray(leaf)
    if isinstance(leaf, int) and not isinstance(leaf, bool):
        # Too large is too large; an array could not hold it as it is.
        return np.asarray(max(-_LARGEST_INTEGER, min(leaf, _LARGEST_INTEGER)))
    raise InvalidArgument(argument, f"{where} must be an array, a tensor, an int or a float, got {type(leaf).__name__}")


def _rebuild(tree: Any, values: Iterator[Any], write: Callable[[Any, Any], Any]) -> Any:
    if isinstance(tree, Mapping):
        kind = OrderedDict if isinstance(tree, OrderedDict) else dict
        return kind((key, _rebuild(item, values, write)) for key, item in tree.items())
    if isinstance(tree, list):
        return [_rebuild(item, values, write) for item in tree]
    if isinstance(tree, tuple):
        items = [_rebuild(item, values, write) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    return write(tree, next(values))


def _write(leaf: Any, value: Floats) -> Any:
    if is_tensor(leaf):
        return leaf.new_tensor(value)
    with np.errstate(over="ignore"):
        rounded = np.asarray(value).astype(_dtype(leaf))
    if isinstance(leaf, np.ndarray):
        return rounded
    return rounded[()] if isinstance(leaf, np.generic) else float(rounded)


def _write_whole(leaf: Any, value: Whole) -> Any:
    if isinstance(leaf, int):
        return int(value)
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "iu":
        return value if isinstance(leaf, np.ndarray) else value[()]
    return _write(leaf, value.astype(np.float64))


def _dtype(leaf: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = getattr(leaf, "dtype", np.dtype(np.float64))
    return dtype if dtype.kind == "f" else np.dtype(np.float64)


def _precision(leaf: Any) -> Precision:
    name = str(leaf.dtype).rpartition(".")[2] if is_tensor(leaf) else _dtype(leaf).name
    return _PRECISIONS.get(name, _PRECISIONS["float64"])
