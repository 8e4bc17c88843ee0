"""Bars for steps that take long, with the time that is left: on a terminal after a second, nowhere else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfed.data.progress import Advance

PATIENCE = 1.0  # seconds before a bar is shown


class _Bars:
    """A listener that shows each step as a bar on stderr once a second has passed."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=Console(file=sys.stderr, highlight=False),
            transient=True,
            expand=True,
        )
        self._timer = threading.Timer(PATIENCE, self._progress.start)
        self._timer.daemon = True

    def __enter__(self) -> _Bars:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
        self._progress.stop()

    def begin(self, what: str, total: int | None) -> Advance:
        task = self._progress.add_task(what, total=total)
        return lambda count: self._progress.advance(task, count)


@contextmanager
def show_progress(*, is_quiet: bool = False) -> Iterator[None]:
    """Show the steps of the block as bars on a terminal; a pipe and --json stay clean."""
    from dpfed.cli.process import gc_paused
    from dpfed.data.progress import listen

    # A table is millions of small objects without cycles: looking for some takes as long as reading.
    with gc_paused():
        if is_quiet or not (sys.stderr.isatty() and sys.stdout.isatty()):
            yield
            return
        with _Bars() as bars, listen(bars):
            yield
