"""Failures that one record causes: no error and no warning may show them, since that would tell who was drawn.

>>> import warnings
>>> with warnings_hidden():
...     warnings.warn_explicit("this image has no date", UserWarning, "images.py", 1)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Not caused by a record: somebody wants the program to end. All else may be, also what is no Exception (a Rust panic).
STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)


@contextmanager
def warnings_hidden() -> Iterator[None]:
    """Show no warnings inside; the filters stay, so that a warning that is turned into an error still is one."""
    before = warnings.showwarning
    warnings.showwarning = _show_nothing
    try:
        yield
    finally:
        warnings.showwarning = before


def _show_nothing(*_: Any, **__: Any) -> None:
    """Do nothing, in place of ``warnings.showwarning``."""
