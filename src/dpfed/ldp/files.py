"""Files of local reports: those that are sent, which anybody may see, and what each person keeps, which nobody may.

A file of reports is one line of JSON, which says how to decode them, and the reports as they are: it is read a part at
a time, however large. The kept file has the responses that may be sent again, under a keyed digest of each person; it
is the owner's alone (mode 600) and durable before anything is sent. Its lock beside it remembers how often it was
written, so that a lost one is not taken for a new one, nor an old copy for the latest.

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
import re
import unicodedata
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

_WHOLE = re.compile(r"([+-]?\d+)\.0+")


@dataclass(frozen=True, eq=False)
class Collection:
    """One collection: its settings, who took part, and what each of them keeps."""

    settings: Mapping[str, Any]
    persons: Digests = field(repr=False)
    responses: NDArray[Any] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Kept:
    """What the persons of a data file keep, collection by collection.

    `key` is for their digests; `writes` is how often the file was written.
    """

    key: bytes = field(repr=False)
    collections: tuple[Collection, ...] = ()
    writes: int = 0

    @classmethod
    def new(cls) -> Kept:
        """Return a file's content before the first collection."""
        return cls(os.urandom(32))

    def digests(self, persons: Sequence[str]) -> Digests:
        """Return the digest of each person, from which nobody without the file can tell who it is."""
        names = [read_name(person).encode("utf-8", "surrogatepass") for person in persons]
        found = [hmac.new(self.key, name, hashlib.sha256).hexdigest()[:32] for name in names]
        return np.array(found, dtype="S32")


def read_name(person: str) -> str:
    """Return a person's name as it is compared: one spelling of what looks the same, and whole numbers without .0.

    Otherwise an accent that another program writes as two characters, or a column of numbers that a missing cell has
    turned into decimal ones, would make a new person of everybody, who reports anew.
    """
    if not isinstance(person, str):
        raise InvalidArgument("persons", "persons must be texts: name each of them by a text that stays the same")
    name = " ".join(unicodedata.normalize("NFKC", person).split())
    whole = _WHOLE.fullmatch(name)
    return whole[1] if whole else name


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
    """Write what persons keep, whole and durably, for the owner's eyes only; then note in the lock that it was."""
    arrays: dict[str, NDArray[Any]] = {"key": np.frombuffer(kept.key, dtype=np.uint8)}
    for number, each in enumerate(kept.collections):
        arrays |= {f"persons{number}": each.persons, f"responses{number}": np.asarray(each.responses)}
    settings = [dict(each.settings) for each in kept.collections]
    index = {"version": VERSION, "writes": kept.writes, "collections": settings}
    arrays["index"] = np.frombuffer(json.dumps(index).encode(), dtype=np.uint8)
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    write_durably(follow(path), stream.getvalue(), OWNER_ONLY)
    _note_writes(path, kept.writes)


def follow(path: Path) -> Path:
    """Return where a link leads, and any other path as it is: a link that is written over becomes a second file."""
    return path.resolve() if path.is_symlink() else path


def read_kept(path: Path) -> Kept:
    """Return what persons keep; of a file that never was, that of nobody."""
    kept = _read_kept(path) if path.exists() else Kept.new()
    if kept.writes < _count_writes(path):
        raise InvalidArgument(
            "kept",
            f"{path} is gone, or an older copy than the one written last, so nobody can tell who has reported since: "
            f"bring the latest back, or remove {_lock_of(path)} to start anew and count everybody's ε again",
        )
    return kept


def _read_kept(path: Path) -> Kept:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            index = json.loads(arrays["index"].tobytes())
            collections = [
                Collection(settings, arrays[f"persons{number}"], arrays[f"responses{number}"])
                for number, settings in enumerate(index["collections"])
            ]
            return Kept(arrays["key"].tobytes(), tuple(collections), int(index["writes"]))
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
    lock = os.open(_lock_of(path), os.O_RDWR | os.O_CREAT, OWNER_ONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise InvalidArgument("kept", f"another collection is using {path}: wait until it has ended") from None
    finally:
        os.close(lock)


def _lock_of(path: Path) -> Path:
    real = follow(path)
    return real.with_name(f".{real.name}.lock")


def _note_writes(path: Path, writes: int) -> None:
    """Write the number over the old one: the lock is held, so it must stay the same file."""
    lock = os.open(_lock_of(path), os.O_RDWR | os.O_CREAT, OWNER_ONLY)
    try:
        os.pwrite(lock, f"{writes:020d}\n".encode(), 0)
        os.fsync(lock)
    finally:
        os.close(lock)


def _count_writes(path: Path) -> int:
    lock = _lock_of(path)
    noted = lock.read_bytes()[:20] if lock.exists() else b""
    if not (noted or b"0").isdigit():
        raise InvalidArgument(
            "kept",
            f"{lock} is damaged, so nobody can tell whether {path} is the latest: make sure that it is, and remove it",
        )
    return int(noted or 0)


def _not_reports(path: Path) -> InvalidArgument:
    return InvalidArgument("reports", f"{path} is no file of reports: give one that `dpfed ldp collect` has written")
