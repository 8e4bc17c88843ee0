"""What a command does to its own process: no garbage collection while modules are loaded, and an answer to Ctrl-C.

>>> with gc_paused():
...     gc.isenabled()
False
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn

_FROZEN: list[bool] = []  # whether gc.freeze was called in this process; to count what is frozen takes long


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection; the first time in a process, also exempt the objects that exist at the end.

    Training loads thousands of modules. They are no garbage, and to search them, while they are loaded and then again,
    takes a fifth of the time that a command needs to start.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _freeze_once()
            gc.enable()


def _freeze_once() -> None:
    """Exempt existing objects from later collections; not a second time, when they may have become garbage."""
    if not _FROZEN:
        gc.freeze()
        _FROZEN.append(True)


class Interrupts:
    """Answers to Ctrl-C inside a `with` block: the first ends the run after its round, the second ends it at once.

    The first calls `announce` and sets `is_asked`. Before there is an `announce` the first one interrupts. Once the run
    is being left all are ignored, so that open files are closed.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self.announce: Callable[[], None] | None = None
        self._is_leaving = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def leave(self) -> NoReturn:
        """End what is going on, as a Ctrl-C would."""
        self._is_leaving = True
        raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_leaving:
            return
        if self.is_asked or self.announce is None:
            self.leave()
        self.is_asked = True
        self.announce()
