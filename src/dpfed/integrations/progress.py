"""A progress bar with the ε spent so far, for a fit that takes long on a terminal.

It shows the number of steps and what they cost, which are public. Batch sizes and losses are not.

>>> from types import SimpleNamespace
>>> fit = SimpleNamespace(plan=SimpleNamespace(steps=100), steps_taken=7)
>>> with show_progress(fit, is_wanted=True) as update:  # a doctest writes to no terminal, so nothing appears
...     update()
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpfed.training.loop import Private

DELAY = 1.0  # seconds before a bar appears: a short fit shows none
PAUSE = 0.25  # seconds between two computations of ε


@contextmanager
def show_progress(private: Private, *, is_wanted: bool) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each step; the bar is on stderr, and only if that is a terminal."""
    if not (is_wanted and sys.stderr.isatty()):
        yield lambda: None
        return
    bar = _Bar(private)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    """A bar of the steps taken, what they cost and how long the rest will take."""

    def __init__(self, private: Private) -> None:
        self._private = private
        self._progress = Progress(
            TextColumn("fit"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("ε = {task.fields[epsilon]:.4g}"),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
        )
        self._task = self._progress.add_task("", total=private.plan.steps, epsilon=0.0)
        self._due = time.monotonic() + DELAY

    def update(self) -> None:
        """Redraw the bar, unless it was drawn just before."""
        if time.monotonic() >= self._due:
            self._progress.start()
            self._show()
            self._due = time.monotonic() + PAUSE

    def close(self) -> None:
        """Draw the bar for the last time, if it was ever drawn."""
        if self._progress.live.is_started:
            self._show()
            self._progress.stop()

    def _show(self) -> None:
        spent = self._private.spent().epsilon
        self._progress.update(self._task, completed=self._private.steps_taken, epsilon=spent)
