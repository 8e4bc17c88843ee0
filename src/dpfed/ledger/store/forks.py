"""No SQLite file of a ledger is open, and no transaction is under way, while the process forks; none at its end.

A child inherits SQLite's belief that the file is locked, but not the lock. Were a connection open during the fork, the
parent, when it closes, would think itself alone and delete the log to which the child has just committed. A lock that
another thread held would never be released in the child.

An interrupt may come at any line, also while a transaction is entered or left. So a transaction is an object that
counts for as long as it lives: one that was never left is gone with the ``with`` statement that held it.

>>> with transaction():
...     pass
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Protocol

# Seconds between two looks at who is inside: only a fork and who waits for its end look more than once.
_LOOK = 0.001
_BY = "by"


class Closable(Protocol):
    """Something with connections that can be closed and are opened again when needed."""

    def close(self) -> None:
        """Close every connection."""


class transaction:  # noqa: N801 - it is read as `with transaction():`
    """A transaction, during which no other thread of this process can fork."""

    __slots__ = ("__weakref__", "thread")

    def __enter__(self) -> None:
        self.thread = threading.get_ident()
        _gate.enter(self)

    def __exit__(self, *_: object) -> None:
        _gate.leave(self)


class _Gate:
    """A gate that threads are inside of during a transaction; a fork shuts it until the others have left.

    It has no lock that could stay held: each step is one operation that Python does as a whole. A thread first goes in
    and then looks whether the gate is shut; a fork first shuts it and then looks who is inside. One sees the other.
    """

    def __init__(self) -> None:
        self._inside: set[weakref.ref[transaction]] = set()
        self._forking: dict[str, int] = {}  # the thread for which it is shut

    def enter(self, one: transaction) -> None:
        """Let the transaction in, unless another thread forks; a thread that is inside already never waits."""
        own = weakref.ref(one)
        self._inside.add(own)
        while self._forking and self._forking.get(_BY) != one.thread and not self._is_nested(one):
            self._inside.discard(own)
            time.sleep(_LOOK)
            self._inside.add(own)

    def leave(self, one: transaction) -> None:
        """Let the transaction out. Whatever interrupts this, it is out when its object is gone."""
        self._inside.discard(weakref.ref(one))

    def shut(self) -> None:
        """Wait until no other thread is inside, and let none in until `open`."""
        me = threading.get_ident()
        while self._forking.setdefault(_BY, me) != me:
            time.sleep(_LOOK)
        while self.threads() - {me}:
            time.sleep(_LOOK)

    def open(self) -> None:
        """Let threads in again; may be called more than once."""
        if self._forking.get(_BY) == threading.get_ident():
            self._forking.pop(_BY, None)

    def renew(self) -> None:
        """Begin anew in a child, whose other threads are gone."""
        me = threading.get_ident()
        self._inside = {each for each in list(self._inside) if (one := each()) is not None and one.thread == me}
        self._forking = {}

    def threads(self) -> set[int]:
        """Return the threads that are inside; transactions that were interrupted and are gone do not count."""
        alive = [(each, each()) for each in list(self._inside)]  # others leave meanwhile
        self._inside.difference_update([each for each, one in alive if one is None])
        return {one.thread for _, one in alive if one is not None}

    def _is_nested(self, new: transaction) -> bool:
        others = [each() for each in list(self._inside)]
        return any(one is not None and one is not new and one.thread == new.thread for one in others)


_gate = _Gate()
_files: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_before_fork(file: Closable) -> None:
    """Close the connections of this file whenever the process forks, as long as the object lives."""
    _files.add(file)


def _before_fork() -> None:
    _gate.shut()
    for file in list(_files):
        file.close()


def _at_exit() -> None:
    """Close the files while they still know whether they were moved; Python would just close their connections."""
    if not _gate.threads():
        for file in list(_files):
            file.close()


atexit.register(_at_exit)
# Twice: an interrupt ends what runs at a fork wherever it is; the fork goes on, and Python reports the interrupt.
for _ in range(2):
    os.register_at_fork(before=_before_fork, after_in_parent=_gate.open, after_in_child=_gate.renew)
