"""A universal family of hash functions: lines modulo 2⁶¹ − 1, cut into equal intervals.

h(v) is the interval, of g, in which (a·v + b) mod (2⁶¹ − 1) lies, for uniform a and b. For two values of the domain the
two lines' points are uniform and independent, exactly; the intervals differ by at most one point of 2.3·10¹⁸, which is
how far a bucket's chance is from 1/g.

>>> buckets(evaluate(np.uint64(5), np.uint64(7), np.arange(4)), 10).tolist()
[0, 0, 0, 0]
>>> [int(edge) for edge in edges(2)]
[0, 1152921504606846976, 2305843009213693951]
"""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpfed.ldp.oracle import Codes
from dpfed.randomness import RandomSource

PRIME = (1 << 61) - 1
MOST_BUCKETS = 1 << 16

Words = NDArray[np.uint64]

_P = np.uint64(PRIME)
_LOW = np.uint64((1 << 32) - 1)
_LOW29 = np.uint64((1 << 29) - 1)


def draw_coefficients(source: RandomSource, count: int) -> Words:
    """Return uniform numbers below the prime."""
    drawn = source.words(count) & _P
    again = np.flatnonzero(drawn == _P)  # one in 2⁶¹
    if again.size:
        drawn[again] = draw_coefficients(source, again.size)
    return drawn


def public_coefficients(label: str, count: int) -> Words:
    """Return numbers below the prime that follow from a public text, so that clients and server know them."""
    stream = hashlib.shake_256(label.encode()).digest(8 * count)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64) % _P


def evaluate(multiplier: Words | np.uint64, offset: Words | np.uint64, values: Codes) -> Words:
    """Return (multiplier · value + offset) mod (2⁶¹ − 1), for values below 2³¹."""
    x = values.astype(np.uint64)
    high = (multiplier >> np.uint64(32)) * x  # below 2⁶⁰; 2³² of it are folded at 2⁶¹
    total = (high >> np.uint64(29)) + ((high & _LOW29) << np.uint64(32))
    total = _fold(total + offset) + _fold((multiplier & _LOW) * x)
    return _reduce(total)


def buckets(points: Words, count: int) -> Codes:
    """Return the interval of each point, of `count`."""
    return np.searchsorted(edges(count), points, side="right") - 1


@cache
def edges(count: int) -> Words:
    """Return where the intervals begin, and at last the prime."""
    found = np.array([-(-index * PRIME // count) for index in range(count + 1)], dtype=np.uint64)
    found.setflags(write=False)
    return found


def _fold(x: Words) -> Words:
    """Return a number below 2⁶² that is the same modulo the prime."""
    return (x & _P) + (x >> np.uint64(61))


def _reduce(x: Words) -> Words:
    """Return x modulo the prime, for x below 2⁶³."""
    x = _fold(x)
    return np.asarray(np.minimum(x, x - _P))  # below the prime the difference wraps around to a huge number
