"""How many threads torch computes with while a client trains or a model is measured, whichever runner asks.

Threads of a small model wait for each other longer than they compute: an LSTM took ten times as long with torch's own
number of them on a busy machine. So a small model has one, a larger one what torch likes, and a process that trains one
client of several at a time has one whatever the model. What the process had before, it has afterwards.

>>> with computing(numbers=62):
...     torch.get_num_threads()
1
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 200_000  # numbers of a model
_is_alone = True


def share_cores() -> None:
    """Compute with one thread from here on: other processes use the other cores."""
    global _is_alone
    _is_alone = False
    torch.set_num_threads(1)


@contextmanager
def computing(numbers: int, wanted: int | None = None) -> Iterator[None]:
    """Compute with as many threads as suit a model of that size, or with the number wanted."""
    before = torch.get_num_threads()
    chosen = (wanted or (1 if numbers < SMALL else before)) if _is_alone else 1
    if chosen == before:
        yield
        return
    torch.set_num_threads(chosen)
    try:
        yield
    finally:
        torch.set_num_threads(before)
