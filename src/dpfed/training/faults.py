"""What is a record's own fault: nobody may hear of it, by an error or by a warning, since that would tell of a draw.

>>> import warnings
>>> with unheard():
...     warnings.warn_explicit("this image has no date", UserWarning, "images.py", 1)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Not of a record: somebody wants the program to end. All else may be, also what is no Exception (a panic in Rust).
STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)


@contextmanager
def unheard() -> Iterator[None]:
    """Show no warning inside; filters stay as they are, so that one that is an error is an error."""
    before = warnings.showwarning
    warnings.showwarning = _show_nothing
    try:
        yield
    finally:
        warnings.showwarning = before


def _show_nothing(*_: Any, **__: Any) -> None:
    """Show nothing."""
