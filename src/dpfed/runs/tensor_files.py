"""Named arrays and a JSON note in one safetensors file: written durably, read without running anything in it.

A pickle executes what its author likes when it is read, so none ever is. A file appears whole or not at all. What the
note must say is for each kind of file to check: the run's checkpoints, a model's weights, a training checkpoint.

>>> import numpy as np
>>> write(Path("model.safetensors"), {"w": np.ones(2)}, {"step": 40})
>>> read(Path("model.safetensors"))
({'step': 40}, {'w': array([1., 1.])})
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from dpfed.errors import InvalidArgument
from dpfed.runs.directory import write_durably

NOTE = "dpfed"
NUMPY, TORCH = "numpy", "torch"  # the library whose arrays are meant


class Unreadable(ValueError):
    """A file that is missing or damaged, or has no note of dpfed; `kind` names the error behind it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.kind = type(error).__name__


def write(
    path: Path, arrays: Mapping[str, Any], note: Mapping[str, Any], *, mode: int = 0o666, library: str = NUMPY
) -> None:
    """Write the arrays and the note, durably and all at once; nobody beyond `mode` and the umask reads them."""
    export(path, arrays, {NOTE: _to_json(note)}, mode=mode, library=library)


def export(
    path: Path, arrays: Mapping[str, Any], texts: Mapping[str, str], *, mode: int = 0o666, library: str = NUMPY
) -> str:
    """Write the arrays with these texts in the header, durably, and return the file's SHA-256."""
    content: bytes = import_module(f"safetensors.{library}").save(dict(arrays), dict(texts))
    write_durably(path, content, mode=mode)
    return hashlib.sha256(content).hexdigest()


def read(path: Path, *, library: str = NUMPY) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the note and the arrays of a file that `write` wrote; raise `Unreadable` if it is none."""
    try:
        with safe_open(path, framework="pt" if library == TORCH else library) as file:
            note = json.loads((file.metadata() or {})[NOTE])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict
        if not isinstance(note, dict):
            raise TypeError("its note is no JSON object")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise Unreadable(error) from None
    # Copies: what torch reads may be a view of the file, which somebody may cut.
    return note, {name: array.clone() if library == TORCH else array for name, array in arrays.items()}


def _to_json(note: Mapping[str, Any]) -> str:
    try:
        return json.dumps(note, allow_nan=False)
    except (TypeError, ValueError) as error:
        message = f"facts and options that are stored must be JSON values ({error})"
        raise InvalidArgument("facts", f"{message}: give numbers, texts, lists and dicts of them") from None
