"""The three files of a SQLite ledger, known again for as long as a connection has them open.

SQLite goes on writing into a file that was moved away, replaced, written over or deleted, and says nothing. Such a
commit is not in what is opened next. So the files are checked before and after each commit, by the path that others
use, and nothing is acknowledged unless they are still those that this process has open and hold what it has written:
the ledger's own file, its log (``-wal``), in which the newest commits are, and the log's index (``-shm``), on which the
locks are. A file that was moved away and back has been missed: others may have spent on what was there meanwhile. Who
has once found its files changed uses them no more.

On a local disk of Linux the kernel reports whether anything was done to them, so that a check takes next to no time.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     LedgerFiles(f"{folder}/ledger.db").look() is None
True
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Any

from dpfed.ledger.store.log import INDEX_BYTES, Contents, last_byte
from dpfed.ledger.store.watching import RENAMED, WRITTEN, FileWatch

# Device and inode of the ledger's file, of its log and of the log's index.
Seen = tuple[int, ...]
_OPEN_FILES = Path("/dev/fd")
_ANYTHING = ~RENAMED  # may have been done, where nobody has watched


class FilesMoved(Exception):
    """Raised when a file of the ledger is not the one that this process has open, or not as SQLite left it."""


class LedgerFiles:
    """The paths of a ledger's files, and which files they were when they were opened."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._beside = os.path.realpath(path)  # SQLite puts the log beside the file that a link leads to
        self._log, self._index = f"{self._beside}-wal", f"{self._beside}-shm"
        self._own: Seen | None = None
        self._seen: Seen | None = None  # what the newest connection has open
        self._watch: FileWatch | None = None
        self._contents = Contents(path)
        self._descriptors: tuple[int, ...] = ()  # under which this process has log and index open
        self._last = 0  # byte of the log that is needed
        self._noted = _ANYTHING  # was done to them, until a look has found all well
        self._is_lost = False
        self.can_be_watched = False

    def remember(self) -> None:
        """Remember which file the ledger is, the first time that there is one."""
        if self._own is None:
            self._own = _identity(self._path)

    def require_own(self) -> None:
        """Refuse to connect where there is another file, or none, so that none is made in its place."""
        if self._is_lost or (self._own is not None and _identity(self._path) != self._own):
            self._is_lost, self._noted = True, _ANYTHING
            raise FilesMoved

    def identify(self) -> Seen:
        """Return the identities of the files that a new connection has open; refuse if others are there meanwhile."""
        self.remember()
        self._watch_again()
        seen, mine = self.look(), _list_open_files()
        if seen is None or seen[:2] != self._own or (mine and not {seen[:2], seen[2:4], seen[4:]} <= set(mine)):
            self._is_lost, self._noted = True, _ANYTHING
        if self._is_lost or seen is None:
            raise FilesMoved
        if seen != self._seen:
            self._seen, self._descriptors, self._last = seen, _find_descriptors(mine, seen), 0
            if self._descriptors:
                self._contents.note(self._descriptors[1])
        return seen

    def require(self, seen: Seen | None = None) -> None:
        """Refuse if the files are not those that a connection has open, the newest where none is given."""
        watch = self._watch
        is_quiet = watch is not None and watch.is_quiet()
        if is_quiet and not self._noted:
            return
        if not is_quiet:
            self._noted |= WRITTEN if watch is not None else _ANYTHING  # for every thread, until this one has looked
            self._noted |= 0 if watch is None else watch.read()
        noted = self._noted
        if self._is_lost or noted & RENAMED or not self._are_as_before(seen or self._seen, noted):
            self._is_lost, self._noted = True, _ANYTHING
            raise FilesMoved
        if noted == self._noted:
            self._noted = 0 if self._contents.is_settled else WRITTEN

    def require_before(self, seen: Seen) -> None:
        """Refuse to write if the files have changed, or the log does not reach as far as it did after the last commit.

        Who cuts it by its name alone is not noted. It is read, not asked for its size: a file whose times somebody has
        seen is dearer to write on Linux.
        """
        if self._last and not self._reaches(self._last):
            self._noted |= _ANYTHING
        self.require(seen)

    def require_after(self, seen: Seen) -> None:
        """Refuse to acknowledge a commit if the files have changed."""
        self.require(seen)
        try:
            self._last = last_byte(self._descriptors[1])
        except (OSError, LookupError, struct.error):  # the system does not say which it is, or SQLite has closed it
            self._last = 0

    def look(self) -> Seen | None:
        """Return the identities of the files there are now; None if one is missing, or too short for SQLite to read."""
        try:
            file, log, index = map(os.stat, (self._path, self._log, self._index))
        except OSError:
            return None
        if index.st_size < INDEX_BYTES:
            return None
        return file.st_dev, file.st_ino, log.st_dev, log.st_ino, index.st_dev, index.st_ino

    def close(self) -> None:
        """Stop watching: a child process would share what is noted."""
        self._watch, self._seen, self._noted, self._last = None, None, _ANYTHING, 0

    def _are_as_before(self, seen: Seen | None, noted: int) -> bool:
        if seen is None:
            return True
        return self.look() == seen and (seen != self._seen or self._are_whole(seen, noted))

    def _are_whole(self, seen: Seen, noted: int) -> bool:
        if tuple(map(_identity_of, self._descriptors)) != (seen[2:4], seen[4:]):  # SQLite may have closed those
            self._descriptors = _find_descriptors(_list_open_files(), seen)
        if not self._descriptors:
            return True
        log, index = self._descriptors
        # When SQLite alone has written the file, the log was not touched.
        return self._contents.is_file_whole(index) and (noted == WRITTEN or self._contents.is_log_whole(log, index))

    def _reaches(self, last: int) -> bool:
        try:
            return bool(os.pread(self._descriptors[0], 1, last))
        except (OSError, LookupError):
            return False

    def _watch_again(self) -> None:
        """Watch the files that are there now, before they are looked at."""
        if self.can_be_watched and not Path(self._path).is_symlink():
            watch = self._watch or FileWatch.start()
            is_watched = watch is not None and watch.add((self._path, self._log, self._index), self._path)
            self._watch = watch if is_watched else None
        self._noted |= _ANYTHING


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


def _identity_of(number: int) -> Seen | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _find_descriptors(mine: dict[Seen, int], seen: Seen) -> tuple[int, ...]:
    """Return the file descriptors of log and index; none where the system does not list open files."""
    return (mine[seen[2:4]], mine[seen[4:]]) if {seen[2:4], seen[4:]} <= set(mine) else ()


def _list_open_files() -> dict[Seen, int]:
    """Return every open file of this process with its descriptor; none where the system does not list them."""
    found: dict[Seen, int] = {}
    try:
        for entry in _OPEN_FILES.iterdir():
            identity = _identity_of(int(entry.name))
            if identity is not None:  # else the list itself, which is closed by now
                found[identity] = int(entry.name)
    except OSError:
        return {}
    return found
