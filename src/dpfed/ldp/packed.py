"""Reports of many bits, eight to a byte: how they are packed, and how they are counted without unpacking them all.

>>> bits = pack(np.array([[True, False, True], [True, True, False]]))
>>> bits.tolist(), count_bits(bits, 3).tolist(), bit(bits, 2).tolist()
([[5], [3]], [2, 1, 1], [True, False])
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpfed.ldp.coins import CHUNK, flip
from dpfed.ldp.oracle import Codes, refuse_reports
from dpfed.randomness import RandomSource

_ROWS = 255  # that a byte can count

Bytes = NDArray[np.uint8]


def width(bits: int) -> int:
    """Return how many bytes hold so many bits."""
    return -(-bits // 8)


def pack(bits: NDArray[np.bool_]) -> Bytes:
    """Return rows of bits as rows of bytes, the first bit lowest; the last byte is filled with zeros."""
    return np.packbits(bits, axis=1, bitorder="little")


def unpack(rows: Bytes, bits: int) -> Bytes:
    """Return rows of bytes as rows of zeros and ones."""
    return np.unpackbits(rows, axis=1, count=bits, bitorder="little")


def bit(rows: Bytes, position: int | Codes) -> NDArray[np.bool_]:
    """Return one bit of each row: the same one of all, or one position for each."""
    place = np.broadcast_to(np.asarray(position), len(rows))
    return np.asarray((rows[np.arange(len(rows)), place >> 3] >> (place & 7).astype(np.uint8)) & 1 == 1)


def require_padding(rows: Bytes, bits: int) -> Bytes:
    """Return the rows, if the bits that fill the last byte are zero."""
    if bits % 8 and np.any(rows[:, -1] >> np.uint8(bits % 8)):
        raise refuse_reports("more bits than were declared")
    return rows


def count_bits(rows: Bytes, bits: int) -> Codes:
    """Return how many rows have each bit."""
    counts, step = np.zeros(bits, dtype=np.int64), _ROWS * max(CHUNK // (_ROWS * bits), 1)
    for start in range(0, len(rows), step):
        block = unpack(rows[start : start + step], bits)
        whole = len(block) // _ROWS * _ROWS
        counts += np.add.reduce(block[:whole].reshape(-1, _ROWS, bits), axis=1, dtype=np.uint8).sum(
            axis=0, dtype=np.int64
        )
        counts += np.add.reduce(block[whole:], axis=0, dtype=np.uint8)
    return counts


def count_bits_by_group(groups: Codes, rows: Bytes, shape: tuple[int, int]) -> Codes:
    """Return how many rows of each group have each bit, as a table of that shape."""
    counts = np.zeros(shape, dtype=np.int64)
    order = np.argsort(groups, kind="stable")
    found, starts = np.unique(groups[order], return_index=True)
    for group, members in zip(found, np.split(order, starts[1:]), strict=True):
        counts[group] += count_bits(rows[members], shape[1])
    return counts


def chunks(users: int, bits: int) -> Iterator[slice]:
    """Yield parts of the users for whom a chunk of coins is enough, one for each bit."""
    step = max(CHUNK // bits, 1)
    return (slice(start, min(start + step, users)) for start in range(0, users, step))


def flip_rows(source: RandomSource, threshold: int, users: int, bits: int) -> NDArray[np.bool_]:
    """Return a row of coins for each user, each true with chance threshold/2⁵³."""
    return flip(source, threshold, users * bits).reshape(users, bits)
