"""Ctrl-C, answered: the first ends a run after its round, the second at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Stopping:
    """While it is entered, the first Ctrl-C is only noted (and `tell` called); the second one interrupts."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.is_asked = False
        self._tell = tell
        self._before: Any = None

    def __enter__(self) -> Stopping:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        self._tell()
