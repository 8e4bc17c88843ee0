"""Loading what training needs, which is thousands of modules, without looking for garbage among them meanwhile.

>>> import gc
>>> with unswept():
...     gc.isenabled()
False
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_FROZEN: list[bool] = []  # whether it was done in this process; to count what is frozen takes long


@contextmanager
def unswept() -> Iterator[None]:
    """Look for no garbage meanwhile, nor ever among what is there afterwards, if it is the first time in a process.

    Modules are no garbage, and to look at them all, while they are loaded and then again, takes a fifth of a start.
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
    """Leave what is there out of every later search; not a second time, when it may have become garbage."""
    if not _FROZEN:
        gc.freeze()
        _FROZEN.append(True)
