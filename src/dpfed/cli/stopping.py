"""Ctrl-C, answered: the first ends a run after its round, the second at once; further ones do not disturb the end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn


class Stopping:
    """While it is entered, the first Ctrl-C is only noted (and `tell` called); the second one interrupts.

    Before there is anybody to `tell` the first one interrupts. Once the run is being left all are ignored: what is
    open must be closed.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self.tell: Callable[[], None] | None = None
        self._is_leaving = False
        self._before: Any = None

    def __enter__(self) -> Stopping:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def leave(self) -> NoReturn:
        """Ends what is going on, as a Ctrl-C would."""
        self._is_leaving = True
        raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_leaving:
            return
        if self.is_asked or self.tell is None:
            self.leave()
        self.is_asked = True
        self.tell()
