"""The three files of a SQLite ledger, known again by device and inode for as long as a connection has them open.

SQLite goes on writing into a file that was moved away, replaced or deleted, and says nothing. Such a commit is not in
what is opened next. So the files are looked at before and after each commit, by the path that others use, and nothing
is acknowledged unless they are still those that this process has open: the ledger's own file, its log (``-wal``), in
which the newest commits are, and the log's index (``-shm``), on which the locks are.

A folder in which a name appears, goes or changes gets a new time of change, which nobody can set back. So on a local
disk, where the folder is as it was when the files were last looked at, one look at the folder does for all three.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     LedgerFiles(f"{folder}/ledger.db").look() is None
True
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

# Device and inode of the ledger's file, of its log and of the log's index.
Seen = tuple[int, ...]
_OPEN_FILES = Path("/dev/fd")
# Nanoseconds. A kernel takes the time of a change from its last tick, every hundredth of a second or more often.
_TICK = 50_000_000
_MILLISECOND = 1_000_000


class FilesMoved(Exception):
    """A file of the ledger is not the one that this process has open."""


class LedgerFiles:
    """Where the files of a ledger are, and which file the ledger was when it was opened."""

    def __init__(self, path: str) -> None:
        self._path = path
        beside = os.path.realpath(path)  # SQLite puts the log beside the file that a link leads to
        self._log, self._index = f"{beside}-wal", f"{beside}-shm"
        self._folder = str(Path(path).parent)
        self._is_link = Path(path).is_symlink()
        self._quiet: tuple[Seen, Seen] | None = None  # the folder and the files in it, when nothing moved any more
        self.trusts_folder = False
        self._own: Seen | None = None
        self._given_up: Seen | None = None  # what connections that are never closed have open

    def remember(self) -> None:
        """Remember which file the ledger is, the first time that there is one."""
        if self._own is None:
            self._own = _identity(self._path)

    def require_own(self) -> None:
        """Refuse to connect where there is another file, or none, so that none is made in its place.

        Connections that were given up keep their log and its index for as long as the process lives.
        """
        if self._own is not None and _identity(self._path) != self._own:
            raise FilesMoved
        if self._given_up not in (None, self.look()):
            raise FilesMoved

    def require(self, seen: Seen) -> None:
        """Refuse if the files are not those that a connection has open."""
        folder = self._look_at_folder()
        if folder is not None and self._quiet == (folder, seen):
            return
        if self.look() != seen:
            self._given_up = seen
            raise FilesMoved
        if folder is not None and _is_settled(folder[2]):
            self._quiet = folder, seen

    def look(self) -> Seen | None:
        """Return which files are there now; None where one is missing."""
        try:
            file, log, index = map(os.stat, (self._path, self._log, self._index))
        except OSError:
            return None
        return file.st_dev, file.st_ino, log.st_dev, log.st_ino, index.st_dev, index.st_ino

    def _look_at_folder(self) -> Seen | None:
        """Return which folder is there, and when a name in it last changed; None where that would not tell."""
        if not self.trusts_folder or self._is_link:
            return None
        try:
            found = os.stat(self._folder)  # noqa: PTH116 - a Path takes longer
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def opened(self) -> Seen:
        """Return which files a new connection has open; refuse if others are there meanwhile."""
        self.remember()
        seen, mine = self.look(), _open_here()
        if seen is None or seen[:2] != self._own:
            raise FilesMoved
        if mine and not {seen[:2], seen[2:4], seen[4:]} <= mine:
            raise FilesMoved
        return seen


def _is_settled(changed: int) -> bool:
    """Whether any later change will have another time, on a file system whose times are fine enough."""
    return changed % _MILLISECOND != 0 and time.time_ns() - changed > _TICK


def leak(thing: Any) -> None:
    """Keep the thing, and the connections that it holds, until the process ends, without closing them.

    A connection that closes deletes the log by its path. If the files were moved, that is another's log, with commits
    that were acknowledged.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _identity(path: str) -> Seen | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _open_here() -> set[Seen]:
    """Return every file that this process has open; nothing where the system does not say."""
    found: set[Seen] = set()
    try:
        for number in _OPEN_FILES.iterdir():
            try:
                file = os.fstat(int(number.name))
            except OSError:  # the list itself, which is closed by now
                continue
            found.add((file.st_dev, file.st_ino))
    except OSError:
        return set()
    return found
