"""Small arrays of a run in .npz files, each with a digest and a seal of the ledger beside them.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "round-000001.npz"
>>> _ = path.write_bytes(to_bytes({"values": np.ones(2)}, "a digest", "a seal"))
>>> read(path)
({'values': array([1., 1.])}, 'a digest', 'a seal')
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import InvalidArgument


def to_bytes(arrays: Mapping[str, Any], digest: str, seal: str) -> bytes:
    """Return the content of the file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays, digest=np.array(digest), seal=np.array(seal))
    return buffer.getvalue()


def read(path: Path) -> tuple[dict[str, NDArray[Any]], str, str]:
    """Return arrays, digest and seal; the last two are empty in a file of an older version. No pickle is read."""
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    return found, str(found.pop("digest", "")), str(found.pop("seal", ""))


@contextmanager
def translate_errors(what: str, remedy: str) -> Iterator[None]:
    """Refuse a file that is missing, damaged, changed or forged, with what to do about it."""
    try:
        yield
    except Exception as error:  # a damaged archive raises whatever NumPy stumbles over
        raise InvalidArgument("directory", f"{what} cannot be read ({error}): {remedy}") from None
