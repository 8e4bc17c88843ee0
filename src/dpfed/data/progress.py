"""How far a long step is, told to whoever listens: a terminal shows a bar, and a script hears nothing.

Reading a table and calibrating noise do not know where they are called from. They say how far they are here, and a
command that has a terminal listens.

>>> class Printer:
...     def begin(self, what, total):
...         print(what, total)
...         return print
>>> with listen(Printer()), begin_step("reading", 3) as advance:
...     advance(2)
reading 3
2
>>> with begin_step("reading", 3) as advance:
...     advance(2)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Protocol, TypeVar

T = TypeVar("T")
Advance = Callable[[int], object]
CHUNK = 16_384


class Listener(Protocol):
    """Somebody who shows how far a step is."""

    def begin(self, what: str, total: int | None) -> Advance:
        """Begin to show a step of so many parts, and return what tells how many more are done."""


_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listen(listener: Listener | None) -> Iterator[None]:
    """Tell the listener how far the steps in the block are."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@contextmanager
def begin_step(what: str, total: int | None = None) -> Iterator[Advance]:
    """Yield what tells that more parts of the step are done; without a listener it does nothing."""
    listener = _LISTENER.get()
    yield _ignore if listener is None else listener.begin(what, total)


def follow(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, and tell after each few thousand of them how many there were."""
    source = iter(items)
    with begin_step(what, total) as advance:
        while chunk := list(islice(source, CHUNK)):
            yield from chunk
            advance(len(chunk))


def _ignore(_count: int) -> None:
    pass
