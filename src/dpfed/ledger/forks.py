"""No SQLite file of a ledger is open, and no transaction is under way, while the process forks.

A child inherits SQLite's belief that the file is locked, but not the lock. Were a connection open during the fork, the
parent, when it closes, would think itself alone and delete the log to which the child has just committed. A lock that
another thread held would never be released in the child.

>>> with transaction:
...     pass
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Closable(Protocol):
    """Something with connections that can be closed and are opened again when needed."""

    def close(self) -> None:
        """Close every connection."""


class _Gate:
    """Threads are inside for the time of a transaction; a fork shuts it until the others have left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._inside: dict[int, int] = {}
        self._is_shut = False

    def __enter__(self) -> None:
        thread = threading.get_ident()
        with self._lock:
            while self._is_shut and thread not in self._inside:
                self._turn.wait()
            self._inside[thread] = self._inside.get(thread, 0) + 1

    def __exit__(self, *_: object) -> None:
        thread = threading.get_ident()
        with self._lock:
            depth = self._inside.pop(thread) - 1
            if depth:
                self._inside[thread] = depth
            if self._is_shut:
                self._turn.notify_all()

    def shut(self) -> None:
        """Wait until no other thread is inside, and let none in; the lock stays taken until `open`."""
        self._lock.acquire()
        self._is_shut = True
        while set(self._inside) - {threading.get_ident()}:
            self._turn.wait()
            self._is_shut = True  # another fork may have ended meanwhile

    def open(self) -> None:
        """Let threads in again."""
        self._is_shut = False
        self._turn.notify_all()
        self._lock.release()


# A time in which no other thread of this process can fork: ``with transaction: …``
transaction = _Gate()
_files: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_before_fork(file: Closable) -> None:
    """Close the connections of this file whenever the process forks, as long as the object lives."""
    _files.add(file)


def _before() -> None:
    transaction.shut()
    for file in list(_files):
        file.close()


os.register_at_fork(before=_before, after_in_parent=transaction.open, after_in_child=transaction.open)
