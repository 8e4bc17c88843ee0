"""Notice whether anything was done to files or to the folders above them, by inotify on Linux.

The kernel notes it when a file is renamed, opened, closed, linked or unlinked, or a folder above it is renamed, whoever
does it and even if all is as before a moment later. To ask whether it has noted anything takes a microsecond. It does
not see what another machine does to a network disk, nor a mount over a folder.

>>> import tempfile
>>> with tempfile.NamedTemporaryFile() as file:
...     watch = FileWatch.start()
...     is_there = watch is not None and watch.add([file.name], file.name)
...     before = not is_there or watch.is_quiet()
...     open(file.name, "a").close()
...     before, not is_there or not watch.is_quiet()
(True, True)
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

WRITTEN, _ATTRIB, _CLOSE_WRITE, _OPEN = 0x2, 0x4, 0x8, 0x20
_MOVE_SELF, _OVERFLOW = 0x800, 0x4000
RENAMED = _MOVE_SELF | _OVERFLOW  # or more was done than the kernel could note
_HEADER = struct.Struct("iIII")  # watch, what happened, cookie, length of the name behind
_NOTHING = bytes(4)
_MOST = 65_536


class FileWatch:
    """A watch by the kernel over files, for as long as anybody holds the object: a thread may still ask."""

    def __init__(self, kernel: ctypes.CDLL, number: int) -> None:
        self._kernel, self._number = kernel, number

    @classmethod
    def start(cls) -> FileWatch | None:
        """Start a watch over nothing yet; return None where the system has none."""
        try:
            kernel = ctypes.CDLL(None, use_errno=True)
            number: int = kernel.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, AttributeError):  # another system
            return None
        return cls(kernel, number) if number >= 0 else None  # a user may have so many

    def add(self, files: Iterable[str], written: str) -> bool:
        """Watch the files and the folders above them, and writes to one of them; return whether all can be watched."""
        of_file = _ATTRIB | _CLOSE_WRITE | _OPEN | _MOVE_SELF
        wanted = [(path, of_file | WRITTEN if path == written else of_file) for path in files]
        for folder in Path(os.path.realpath(written)).parents:  # one that this user may not read is left out
            self._add(str(folder), _MOVE_SELF)
        return all(self._add(path, what) for path, what in wanted)

    def _add(self, path: str, what: int) -> bool:
        return bool(self._kernel.inotify_add_watch(self._number, os.fsencode(path), what) >= 0)

    def is_quiet(self) -> bool:
        """Return whether nothing was noted since the last `read`."""
        return ioctl(self._number, FIONREAD, _NOTHING) == _NOTHING

    def read(self) -> int:
        """Return what was noted, all together, and forget it."""
        try:
            noted = os.read(self._number, _MOST)
        except BlockingIOError:  # another thread was faster
            return 0
        place, seen = 0, 0
        while place < len(noted):
            _, what, _, length = _HEADER.unpack_from(noted, place)
            seen |= what
            place += _HEADER.size + length
        return seen

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._number)
