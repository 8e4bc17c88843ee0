"""No SQLite file of a ledger is open, and no transaction is under way, while the process forks; none at its end.

A child inherits SQLite's belief that the file is locked, but not the lock. Were a connection open during the fork, the
parent, when it closes, would think itself alone and delete the log to which the child has just committed. A lock that
another thread held would never be released in the child.

An interrupt may come at any line, also while a transaction is entered or left. So a transaction is an object that
counts for as long as it lives: one that was never left is forgotten with the ``with`` statement that held it.

>>> with transaction():
...     pass
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Protocol

# Seconds between two looks at who is inside, for an interrupted thread may have left without a word.
_LOOK = 0.02


class Closable(Protocol):
    """Something with connections that can be closed and are opened again when needed."""

    def close(self) -> None:
        """Close every connection."""


class transaction:  # noqa: N801 - it is read as `with transaction():`
    """A time in which no other thread of this process can fork."""

    __slots__ = ("__weakref__", "thread")

    def __enter__(self) -> None:
        self.thread = threading.get_ident()
        _gate.enter(self)

    def __exit__(self, *_: object) -> None:
        _gate.leave(self)


class _Gate:
    """Threads are inside for the time of a transaction; a fork shuts it until the others have left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._inside: set[weakref.ref[transaction]] = set()
        self._forking: int | None = None  # the thread for which it is shut

    @property
    def is_shut(self) -> bool:
        """Whether a thread forks, or waits until it can."""
        return self._forking is not None

    def enter(self, one: transaction) -> None:
        """Let the transaction in, unless another thread forks; a thread that is inside already never waits."""
        with self._lock:
            while self._forking is not None and self._forking != one.thread and one.thread not in self.threads():
                self._turn.wait(_LOOK)
            self._inside.add(weakref.ref(one))

    def leave(self, one: transaction) -> None:
        """Let the transaction out. Whatever interrupts this, it is out when its object is gone."""
        self._inside.discard(weakref.ref(one))
        if self._forking is not None:
            with self._lock:
                self._turn.notify_all()

    def shut(self) -> None:
        """Wait until no other thread is inside, and let none in until `open`."""
        me = threading.get_ident()
        with self._lock:
            while self._forking not in (None, me):
                self._turn.wait(_LOOK)
            self._forking = me
            while self.threads() - {me}:
                self._turn.wait(_LOOK)

    def open(self) -> None:
        """Let threads in again; as often as it is called."""
        if self._forking == threading.get_ident():
            self._forking = None

    def renew(self) -> None:
        """Begin anew in a child, whose other threads are gone, with whatever they held."""
        me = threading.get_ident()
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._inside = {each for each in list(self._inside) if (one := each()) is not None and one.thread == me}
        self._forking = None

    def threads(self) -> set[int]:
        """Return the threads that are inside; transactions that were interrupted and are gone do not count."""
        alive = [(each, each()) for each in list(self._inside)]  # others leave meanwhile
        self._inside.difference_update([each for each, one in alive if one is None])
        return {one.thread for _, one in alive if one is not None}


_gate = _Gate()
_files: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_before_fork(file: Closable) -> None:
    """Close the connections of this file whenever the process forks, as long as the object lives."""
    _files.add(file)


def _before() -> None:
    try:
        _gate.shut()
    except BaseException:
        _gate.shut()  # an interrupt cannot stop a fork: Python reports it and goes on
        raise
    finally:
        for file in list(_files):
            _close(file)


def _close(file: Closable) -> None:
    """Close the file; once more if an interrupt came in between."""
    try:
        file.close()
    except BaseException:
        file.close()
        raise


def _in_parent() -> None:
    try:
        _gate.open()
    finally:
        _gate.open()


def _in_child() -> None:
    try:
        _gate.renew()
    finally:
        _gate.renew()


def _at_exit() -> None:
    """Close the files while they still know whether they were moved; Python would just close their connections."""
    if not _gate.threads():
        for file in list(_files):
            file.close()


atexit.register(_at_exit)
os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
