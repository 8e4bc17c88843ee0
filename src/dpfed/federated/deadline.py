"""How long a client may take: one that hangs fails, like one that raises, and the others go on.

In the main thread a client is interrupted when its time is over, whatever Python code or system call it is in. In
another thread, and inside one long call of compiled code, Python cannot interrupt: what comes late is discarded, and
a client that never ends is only ended by ``runner: processes``, which kills it. A warning tells its owner.

>>> within(60.0, lambda: "in time")
'in time'
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
LONGEST = 1e8  # seconds that a timer can be set to
GRACE = 5.0  # seconds for a client to be interrupted, before the warning that it cannot be
IMPORTING, AGAIN = 60.0, 0.05  # seconds more for what is being imported, and until the next look
HANGS = (
    "for the owner alone: a client has taken longer than client_timeout in code that Python cannot interrupt, and the "
    "run waits for it: to go on without it, end this process, put `runner: processes` into the run's config.yaml, and "
    "resume the run"
)
# Not of a client: somebody wants the program to end. All else may be, also what is no Exception (a panic in Rust).
INTERRUPTS = (KeyboardInterrupt,)  # no client's fault; `sys.exit` in its code is one
_LOG = logging.getLogger(__name__)


class Late(BaseException):
    """The sign that a client's time is over; no ``except Exception`` in its code catches it."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what the call returns, or raise `Late` if that takes longer than the seconds given.

    A `GeneratorExit` of the call is an error like others: no generator is closed in here, and one that was not the
    client's own would end a run.
    """
    started = monotonic()
    try:
        with _WATCH.over(seconds):
            found = _call_with_alarm(seconds, call) if _is_main() else call()
    except GeneratorExit as error:
        raise RuntimeError("a client's code has raised GeneratorExit") from error
    if monotonic() - started > seconds:
        raise Late
    return found


class _Watch:
    """Tell the owner of calls that go on although their time is over: one thread looks at all of them.

    Entries come and go by single operations of a dict, without a lock: an interrupt may come between any two lines.
    """

    def __init__(self) -> None:
        self._ends: dict[object, float] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, seconds: float) -> Iterator[None]:
        """Watch what is done meanwhile."""
        call = object()
        self._ends[call] = monotonic() + min(seconds, LONGEST) + GRACE
        try:
            if self._thread is None or not self._thread.is_alive():  # a forked process has none
                self._thread = threading.Thread(target=self._look, daemon=True)
                self._thread.start()
            yield
        finally:
            self._ends.pop(call, None)

    def _look(self) -> None:
        while True:
            for call, end in self._ends.copy().items():
                if monotonic() > end and self._ends.pop(call, None) is not None:
                    _LOG.warning(HANGS)
            sleep(GRACE / 2)


_WATCH = _Watch()


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a module is being loaded: half of one would stay, and fail whoever imports it next."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _call_with_alarm(seconds: float, call: Callable[[], T]) -> T:
    is_over, started = False, monotonic()

    def ring(_: int, frame: FrameType | None) -> None:
        if is_over:
            return
        if _is_importing(frame) and monotonic() - started < seconds + IMPORTING:
            signal.setitimer(signal.ITIMER_REAL, AGAIN, min(seconds, LONGEST))
            return
        raise Late

    before = signal.signal(signal.SIGALRM, ring)
    earlier = 0.0
    try:
        # It rings again: code that catches everything is interrupted once more.
        earlier, _ = signal.setitimer(signal.ITIMER_REAL, min(seconds, LONGEST), min(seconds, LONGEST))
        try:
            return call()
        finally:
            is_over = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if earlier:  # somebody else's alarm, with the time that is left of it
            signal.setitimer(signal.ITIMER_REAL, max(earlier - (monotonic() - started), 1e-6))
