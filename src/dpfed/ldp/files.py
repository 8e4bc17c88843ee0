"""Files of local reports: those that are sent, which anybody may see, and what each person keeps, which nobody may.

A file of reports is one line of JSON, which says how to decode them, and the reports as they are: it is read a part at
a time, however large. The kept file has the responses that may be sent again, under a keyed digest of each person; it
is the owner's alone (mode 600) and durable before anything is sent.

>>> import numpy as np
>>> from pathlib import Path
>>> write_reports(Path("ward.reports"), {"column": "ward"}, np.array([1, 0], dtype=np.uint32))
>>> settings, reports = read_reports(Path("ward.reports"))
>>> settings["column"], reports.tolist()
('ward', [1, 0])
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import InvalidArgument
from dpfed.runs.directory import OWNER_ONLY, write_durably

MAGIC = b"dpfed local reports 1\n"
VERSION = 1
Digests = NDArray[np.bytes_]


@dataclass(frozen=True, eq=False)
class Collection:
    """One collection: its settings, who took part, and what each of them keeps."""

    settings: Mapping[str, Any]
    persons: Digests = field(repr=False)
    responses: NDArray[Any] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Kept:
    """What the persons of a data file keep, collection by collection; `key` is for their digests."""

    key: bytes = field(repr=False)
    collections: tuple[Collection, ...] = ()

    @classmethod
    def new(cls) -> Kept:
        """Return a file's content before the first collection."""
        return cls(os.urandom(32))

    def digests(self, persons: Sequence[str]) -> Digests:
        """Return the digest of each person, from which nobody without the file can tell who it is."""
        found = [hmac.new(self.key, person.encode(), hashlib.sha256).hexdigest()[:32] for person in persons]
        return np.array(found, dtype="S32")


def write_reports(path: Path, settings: Mapping[str, Any], reports: NDArray[Any]) -> None:
    """Write reports with what is needed to decode them; never over a file of another kind."""
    if path.exists() and not is_reports(path):
        raise InvalidArgument("out", f"{path} is not a file of reports, so it is not overwritten: choose another name")
    stream = io.BytesIO()
    stream.write(MAGIC + json.dumps(dict(settings), ensure_ascii=False).encode() + b"\n")
    np.lib.format.write_array(stream, reports, allow_pickle=False)
    write_durably(path, stream.getvalue())


def is_reports(path: Path) -> bool:
    """Return whether the file begins as a file of reports does."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_reports(path: Path) -> tuple[dict[str, Any], NDArray[Any]]:
    """Return a file's settings and its reports, which stay on the disk until they are used."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise _not_reports(path)
            settings = json.loads(file.readline())
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            if dtype.hasobject:
                raise _not_reports(path)
            return settings, np.memmap(path, dtype=dtype, mode="r", shape=shape, offset=file.tell())
    except OSError as error:
        raise InvalidArgument("reports", f"{path} cannot be read: {error.strerror}") from None
    except InvalidArgument:
        raise
    except ValueError:
        raise _not_reports(path) from None


def write_kept(path: Path, kept: Kept) -> None:
    """Write what persons keep, whole and durably, for the owner's eyes only."""
    arrays: dict[str, NDArray[Any]] = {"key": np.frombuffer(kept.key, dtype=np.uint8)}
    for number, each in enumerate(kept.collections):
        arrays |= {f"persons{number}": each.persons, f"responses{number}": np.asarray(each.responses)}
    index = {"version": VERSION, "collections": [dict(each.settings) for each in kept.collections]}
    arrays["index"] = np.frombuffer(json.dumps(index).encode(), dtype=np.uint8)
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    write_durably(path, stream.getvalue(), OWNER_ONLY)


def read_kept(path: Path) -> Kept:
    """Return what persons keep; of a file that is not there, that of nobody."""
    if not path.exists():
        return Kept.new()
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            index = json.loads(arrays["index"].tobytes())
            collections = [
                Collection(settings, arrays[f"persons{number}"], arrays[f"responses{number}"])
                for number, settings in enumerate(index["collections"])
            ]
            return Kept(arrays["key"].tobytes(), tuple(collections))
    except OSError as error:
        raise InvalidArgument("kept", f"{path} cannot be read: {error.strerror}") from None
    except Exception:  # whatever a damaged archive raises: without it, persons would report anew and spend again
        raise InvalidArgument(
            "kept",
            f"{path} is damaged, so nobody can tell who has reported already: bring it back from a copy, or count "
            "everybody's ε again by starting a new one",
        ) from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the kept file for this process: two collections at once would both draw new responses."""
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, OWNER_ONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise InvalidArgument("kept", f"another collection is using {path}: wait until it has ended") from None
    finally:
        os.close(lock)


def _not_reports(path: Path) -> InvalidArgument:
    return InvalidArgument("reports", f"{path} is no file of reports: give one that `dpfed ldp collect` has written")
