"""First weights from a seed alone, so that every site of a federation starts from the same public model.

First weights are no secret and touch no data, so a fixed seed costs no privacy; noise never comes from here.

>>> import torch
>>> with seeded(7):
...     first = torch.rand(1)
>>> with seeded(7):
...     print(bool(torch.rand(1) == first))
True
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dpfed.errors import InvalidArgument


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside a `with` block; its own generator is left as it was."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InvalidArgument("seed", f"seed must be a whole number from 0 to 2⁶³−1, got {seed!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
