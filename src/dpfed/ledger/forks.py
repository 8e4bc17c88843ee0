"""No SQLite file of a ledger is open, and no transaction is under way, while the process forks.

A child inherits SQLite's belief that the file is locked, but not the lock. Were a connection open during the fork, the
parent, when it closes, would think itself alone and delete the log to which the child has just committed. A lock that
another thread held would never be released in the child.

>>> with transaction():
...     pass
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Closable(Protocol):
    """Something with connections that can be closed and are opened again when needed."""

    def close(self) -> None:
        """Close every connection."""


class _Gate:
    """Threads pass for a transaction each; a fork shuts it until those inside have left."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._inside: Counter[int] = Counter()
        self._is_shut = False

    def enter(self) -> None:
        thread = threading.get_ident()
        with self._turn:
            while self._is_shut and thread not in self._inside:
                self._turn.wait()
            self._inside[thread] += 1

    def leave(self) -> None:
        thread = threading.get_ident()
        with self._turn:
            self._inside[thread] -= 1
            if not self._inside[thread]:
                del self._inside[thread]
            self._turn.notify_all()

    def shut(self) -> None:
        self._turn.acquire()
        self._is_shut = True
        while set(self._inside) - {threading.get_ident()}:
            self._turn.wait()

    def open(self) -> None:
        self._is_shut = False
        self._turn.notify_all()
        self._turn.release()


_gate = _Gate()
_files: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_before_fork(file: Closable) -> None:
    """Close the connections of this file whenever the process forks, as long as the object lives."""
    _files.add(file)


@contextmanager
def transaction() -> Iterator[None]:
    """A time in which no other thread of this process can fork."""
    _gate.enter()
    try:
        yield
    finally:
        _gate.leave()


def _before() -> None:
    _gate.shut()
    for file in list(_files):
        file.close()


os.register_at_fork(before=_before, after_in_parent=_gate.open, after_in_child=_gate.open)
