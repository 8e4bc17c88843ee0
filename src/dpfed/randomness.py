"""Where noise bits come from: a cipher's keystream, never a statistical generator.

Noise that can be predicted protects nobody. The default source is AES-256 in counter mode under a key from
the operating system; after a fork the child draws a new key, so parent and child never add the same noise.
Tests may use :class:`SeededSource`, which says of itself, and of every mechanism that holds it, that it is
not private.

>>> source = SystemSource()
>>> source.normal((2, 3)).shape
(2, 3)
>>> SeededSource(7)
SeededSource(7) [NOT PRIVATE]
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import InvalidArgument

Shape = int | tuple[int, ...]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
_Bytes = bytes  # inside RandomSource the name `bytes` is the method

_ZEROS = bytes(1 << 16)
_CHUNK = 1 << 15  # pairs of words a pass: the intermediate arrays stay in the second-level cache

_forks = 0
_keying = threading.Lock()


def _notice_fork() -> None:
    global _forks, _keying
    _forks += 1
    _keying = threading.Lock()  # another thread of the parent may have held the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_notice_fork)


class _Keystream:
    """AES-256-CTR output under one key, for one process."""

    def __init__(self, key: bytes, process: tuple[int, int]) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self.process = process
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._lock = threading.Lock()

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes; no two callers ever get the same ones."""
        with self._lock:
            return self._encryptor.update(bytes(count))

    def fill(self, buffer: memoryview) -> None:
        """Write the next bytes over the whole buffer, as `read` would give them."""
        with self._lock:
            start = 0
            while len(buffer) - start >= len(_ZEROS) + 15:  # the cipher asks for so much room behind what it writes
                start += self._encryptor.update_into(_ZEROS, buffer[start:])
            buffer[start:] = self._encryptor.update(bytes(len(buffer) - start))


class RandomSource(ABC):
    """A stream of random bits and the distributions drawn from it.

    Reals use 53 bits or more, and tails are cut only where 64-bit uniforms end: a normal draw beyond 9.4
    standard deviations (probability 3e-21) or a Laplace draw beyond 44 scales (1e-19) cannot occur.
    """

    is_private: ClassVar[bool]

    def __init__(self) -> None:
        self._keystream: _Keystream | None = None
        self._streams: dict[str, RandomSource] = {}

    @abstractmethod
    def _key(self) -> _Bytes:
        """Return a key for the keystream of this process."""

    @abstractmethod
    def _child(self, name: str) -> RandomSource:
        """Return a source that is independent of this one and of its other children."""

    def stream(self, name: str) -> RandomSource:
        """Return the independent source of that name: always the same object, so that it never starts over."""
        with _keying:
            if name not in self._streams:
                self._streams[name] = self._child(name)
            return self._streams[name]

    def once(self, name: str) -> RandomSource:
        """Return the independent source of that name, not kept: for names that come only once, such as one a round.

        A seeded source gives the same one in every process.
        """
        return self._child(name)

    def bytes(self, count: int) -> _Bytes:
        """Return the next `count` random bytes."""
        return self._current().read(count)

    def fill(self, array: NDArray[Any]) -> None:
        """Write the next random bytes over a contiguous array, without allocating them first."""
        if array.size:
            self._current().fill(array.data.cast("B"))

    def words(self, count: int) -> Words:
        """Return the next `count` random 64-bit words."""
        return np.frombuffer(self.bytes(8 * count), dtype=np.uint64)

    def coins(self, count: int) -> Words:
        """Return the next `count` uniform draws from 0, 1, …, 2⁵³ − 1: one is below k with chance k/2⁵³ exactly."""
        return self.words(count) >> np.uint64(11)

    def uniform(self, shape: Shape = ()) -> Floats:
        """Return uniform draws from the multiples of 2⁻⁵³ in [0, 1)."""
        return _fraction(self.words(_size(shape))).reshape(shape)

    def exponential(self, shape: Shape = ()) -> Floats:
        """Return exponential draws of mean 1."""
        return (-np.log(_open_unit(self.words(_size(shape))))).reshape(shape)

    def laplace(self, shape: Shape = ()) -> Floats:
        """Return laplace draws of scale 1 (density exp(−|x|)/2)."""
        words = self.words(_size(shape))
        sign = 1.0 - 2.0 * (words & np.uint64(1)).astype(np.float64)
        magnitude: Floats = -np.log(((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-63)
        return (sign * magnitude).reshape(shape)

    def gumbel(self, shape: Shape = ()) -> Floats:
        """Return standard Gumbel draws, finest in the upper tail: that one decides a maximum."""
        with np.errstate(divide="ignore"):
            exponential = -np.log1p(-_open_unit(self.words(_size(shape))))
        return (-np.log(exponential)).reshape(shape)

    def normal(self, shape: Shape = ()) -> Floats:
        """Return standard normal draws (Box and Muller 1958)."""
        size = _size(shape)
        pairs = (size + 1) // 2
        draws = np.empty((pairs, 2))
        for start in range(0, pairs, _CHUNK):
            stop = min(start + _CHUNK, pairs)
            draws[start:stop] = _normal_pairs(self.words(2 * (stop - start)))
        return draws.reshape(-1)[:size].reshape(shape)

    def integers(self, bound: int, shape: Shape = ()) -> NDArray[np.int64]:
        """Return uniform draws from 0, 1, …, bound − 1, without the bias of a remainder."""
        if isinstance(bound, bool) or not isinstance(bound, int | np.integer) or not 1 <= bound <= 2**63:
            raise InvalidArgument("bound", f"bound must be a whole number from 1 to 2⁶³, got {bound!r}")
        bits = max((int(bound) - 1).bit_length(), 1)
        size = _size(shape)
        kept = np.empty(0, dtype=np.int64)
        while kept.size < size:
            draws = (self.words(2 * (size - kept.size)) >> np.uint64(64 - bits)).astype(np.int64)
            kept = np.concatenate([kept, draws[draws <= bound - 1]])
        return kept[:size].reshape(shape)

    def _current(self) -> _Keystream:
        process = (os.getpid(), _forks)
        keystream = self._keystream
        if keystream is None or keystream.process != process:
            keystream = self._rekey(process)
        return keystream

    def _rekey(self, process: tuple[int, int]) -> _Keystream:
        with _keying:
            if self._keystream is None or self._keystream.process != process:
                self._keystream = _Keystream(self._key(), process)
            return self._keystream


class SystemSource(RandomSource):
    """Unpredictable bits under a fresh key from the operating system; a copy gets a key of its own."""

    is_private = True

    def _key(self) -> bytes:
        return os.urandom(32)

    def _child(self, name: str) -> RandomSource:
        return SystemSource()

    def __reduce__(self) -> tuple[type[SystemSource], tuple[()]]:
        return SystemSource, ()

    def __repr__(self) -> str:
        return "SystemSource()"


class SeededSource(RandomSource):
    """Reproducible bits for tests; whoever knows the seed can subtract the noise: nothing here is private."""

    is_private = False

    def __init__(self, seed: int, _path: tuple[str, ...] = (), _born: int = 0) -> None:
        super().__init__()
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise InvalidArgument("seed", f"seed must be a whole number, got {seed!r}")
        self.seed = int(seed)
        self._path = _path
        self._born = _born  # after how many forks

    def once(self, name: str) -> RandomSource:
        """Return the source of that name, not kept; after a fork it gives other bits than in the parent."""
        return SeededSource(self.seed, (*self._path, name), _forks)

    def _key(self) -> bytes:
        return hashlib.sha256(repr((self.seed, self._path, _forks - self._born)).encode()).digest()

    def _child(self, name: str) -> RandomSource:
        return SeededSource(self.seed, (*self._path, name), self._born)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a SeededSource is not copied or pickled: it would start over; make a new one")

    def __repr__(self) -> str:
        streams = "".join(f".stream({name!r})" for name in self._path)
        return f"SeededSource({self.seed}){streams} [NOT PRIVATE]"


_SYSTEM = SystemSource()


def or_system(source: RandomSource | None) -> RandomSource:
    """Return the source itself, or the process-wide system source for None."""
    if source is None:
        return _SYSTEM
    if isinstance(source, RandomSource):
        return source
    raise InvalidArgument(
        "source", f"source must be a RandomSource of dpfed.randomness or None, got {type(source).__name__}"
    )


def _size(shape: Shape) -> int:
    return shape if isinstance(shape, int) else math.prod(shape)


def _fraction(words: Words) -> Floats:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _open_unit(words: Words) -> Floats:
    # All 64 bits: next to 0, where a logarithm makes tails, floats are fine enough to hold them.
    return (words.astype(np.float64) + 0.5) * 2.0**-64


def _normal_pairs(words: Words) -> Floats:
    radius = np.sqrt(-2.0 * np.log(_open_unit(words[0::2])))
    angle = (2.0 * math.pi) * _fraction(words[1::2])
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
