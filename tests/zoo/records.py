"""What specimens are trained on: eight records, one of which is unlike the others.

The unusual one is much larger and, in sequences, the longest: with it in the batch orders, branches, maxima and means
come out otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor

SIZE = 8
UNUSUAL = 5
LENGTHS = (3, 2, 4, 1, 3, 6, 2, 4)
WORDS = 7


def _values(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(SIZE, *shape, generator=generator)
    values[UNUSUAL] = 3 * values[UNUSUAL].abs()
    return values


def numbers() -> Tensor:
    """A number to be predicted for each record."""
    return torch.linspace(-1, 2, SIZE)


def labels(classes: int = 3) -> Tensor:
    """A class for each record."""
    return torch.arange(SIZE) % classes


def signs() -> Tensor:
    """0 or 1 for each record, as floats."""
    return (torch.arange(SIZE) % 2).float()


def vectors(features: int = 4) -> tuple[Tensor, Tensor]:
    """(B, F) and a number."""
    return _values(features), numbers()


def labelled() -> tuple[Tensor, Tensor]:
    """(B, 4) and one of three classes."""
    return _values(4), labels()


def signed() -> tuple[Tensor, Tensor]:
    """(B, 4) and 0 or 1."""
    return _values(4), signs()


def sets(items: int = 5, features: int = 4) -> tuple[Tensor, Tensor]:
    """(B, items, F) and a number."""
    return _values(items, features), numbers()


def labelled_sets() -> tuple[Tensor, Tensor]:
    """(B, 5, 4) and one of three classes."""
    return _values(5, 4), labels()


def channels(count: int = 4, positions: int = 6) -> tuple[Tensor, Tensor]:
    """(B, C, T) and a number."""
    return _values(count, positions), numbers()


def images(side: int = 6) -> tuple[Tensor, Tensor]:
    """(B, 2, H, W) and a number."""
    return _values(2, side, side), numbers()


def labelled_images() -> tuple[Tensor, Tensor]:
    """(B, 2, 6, 6) and one of three classes."""
    return _values(2, 6, 6), labels()


def segmented() -> tuple[Tensor, Tensor]:
    """(B, 2, 4, 4) and one of three classes for each pixel."""
    return _values(2, 4, 4), torch.arange(SIZE * 16).view(SIZE, 4, 4) * 7 % 3


def volumes() -> tuple[Tensor, Tensor]:
    """(B, 1, 4, 4, 4) and a number."""
    return _values(1, 4, 4, 4), numbers()


def sequences(features: int = 4) -> tuple[Tensor, Tensor]:
    """(B, T, F), zero behind the end of each sequence, and a number."""
    return _values(max(LENGTHS), features) * _is_there().unsqueeze(2), numbers()


def words() -> tuple[Tensor, Tensor]:
    """(B, T) ids of words, 0 behind the end of each sequence, and a number."""
    return _ids(), numbers()


def labelled_words() -> tuple[Tensor, Tensor]:
    """(B, T) ids of words, 0 behind the end, and one of three classes."""
    return _ids(), labels()


def next_words() -> tuple[Tensor, Tensor]:
    """(B, T) ids of words, and as targets the ids that follow."""
    return _ids()[:, :-1], _ids()[:, 1:]


def spelled() -> tuple[Tensor, Tensor]:
    """(B, T, F) and two letters of a short word, 1 or 2."""
    return _values(max(LENGTHS), 4), torch.arange(SIZE * 2).view(SIZE, 2) % 2 + 1


def named() -> tuple[dict[str, Tensor], Tensor]:
    """A dict of sequences and their lengths, and a number."""
    return {"values": sequences()[0], "lengths": torch.tensor(LENGTHS)}, numbers()


def _is_there() -> Tensor:
    return torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)


def _ids() -> Tensor:
    ids = torch.randint(1, WORDS, (SIZE, max(LENGTHS)), generator=torch.Generator().manual_seed(7))
    return ids * _is_there()
