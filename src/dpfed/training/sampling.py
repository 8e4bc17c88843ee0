"""Batches of the records: Poisson samples, or passes over the data in which each record has one place.

Accountants assume that each record is in a step's sample with one probability, independently of all others.
Shuffled batches of a fixed size are not that, and are accounted at a price that does not hold. Here every draw is
Poisson to the last bit, may be empty and still counts, and carries a token that can be charged once: two releases
from one draw are one event, not two.

The noise of a tree asks not for sampling but for a bound on how often a record is used. For it a record draws its place
in a pass once and on its own, and keeps it in every pass: adding or removing one moves no other, and two of its
participations are a whole pass apart. Batches of a shuffled list would not do: where one record is left out, all behind
it move up.

>>> from dpfed.randomness import SeededSource
>>> sampler = PoissonSampler(size_of_data=1000, sample_rate=0.01, steps=3, source=SeededSource(5))
>>> [draw.number for draw in sampler]
[0, 1, 2]
>>> sampler = PassSampler(size_of_data=6, pass_steps=3, steps=6, max_participations=2, source=SeededSource(3))
>>> batches = [sorted(draw.indices.tolist()) for draw in sampler]
>>> batches[:3] == batches[3:], sorted(sum(batches[:3], []))
(True, [0, 1, 2, 3, 4, 5])
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import RandomSource, or_system

_BITS = 16  # of the first comparison; the few records that tie are compared further
_CHUNK = 1 << 20  # records a pass


class Token:
    """The right to charge one draw once, in the process that made it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._process = os.getpid()
        self._is_used = False
        self._lock = threading.Lock()

    def use(self) -> None:
        """Mark the draw as charged; refuse a second time, and in a forked process."""
        if os.getpid() != self._process:
            message = (
                f"draw {self.number} was made by another process, which may charge it too: make the sampler in this one"
            )
            raise InvalidArgument("token", message)
        with self._lock:
            if self._is_used:
                message = (
                    f"draw {self.number} was charged already, and a second release from it is not a second sampled "
                    "event: take the next draw, or charge both releases as one composed event"
                )
                raise InvalidArgument("token", message)
            self._is_used = True

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a Token cannot be copied or pickled, or it could be used twice: keep the Draw in its process")

    def __repr__(self) -> str:
        return f"Token(number={self.number})"


@dataclass(frozen=True, eq=False)
class Draw:
    """One sample; its indices, and how many there are, are secret: amplification rests on that."""

    indices: Tensor = field(repr=False)
    number: int
    token: Token


class Sampler(ABC):
    """A sequence of `steps` draws of 0 … size_of_data − 1, each with its token; no more, however often iterated."""

    def __init__(self, size_of_data: int, steps: int, source: RandomSource | None = None) -> None:
        self.size_of_data = 0 if size_of_data == 0 else checks.count(size_of_data=size_of_data)
        self.steps = checks.count(steps=steps)
        self._source = or_system(source).stream("training samples")
        self._taken = 0
        self._lock = threading.Lock()

    @abstractmethod
    def _indices(self, number: int) -> Tensor:
        """Return the indices of the records in draw `number`."""

    @property
    def is_private(self) -> bool:
        """Whether the samples are unpredictable; a seeded source's are not."""
        return self._source.is_private

    @property
    def remaining(self) -> int:
        """How many draws are left."""
        return self.steps - self._taken

    def __len__(self) -> int:
        return self.remaining

    def __iter__(self) -> Iterator[Draw]:
        if not self.remaining:
            message = (
                f"all {self.steps} draws were taken, and more are not accounted for: steps counts the whole run, over "
                "all epochs"
            )
            raise InvalidArgument("steps", message)
        return self._draws()

    def _draws(self) -> Iterator[Draw]:
        while (number := self._next_number()) is not None:
            yield Draw(self._indices(number), number, Token(number))

    def _next_number(self) -> int | None:
        with self._lock:
            if not self.remaining:
                return None
            self._taken += 1
            return self._taken - 1


class PoissonSampler(Sampler):
    """A Poisson sampler: `steps` draws of 0 … size_of_data − 1, each index alone with probability `sample_rate`.

    Privacy: a release from one draw is ``PoissonSampled(event, sample_rate)`` under add/remove (Abadi et al. 2016,
    and exactly Zhu, Dong and Wang 2022). The probability is the float `sample_rate` exactly, and a constant of the
    plan; size_of_data only says how many records there are to decide about. `steps` draws are all there will be,
    however often the sampler is iterated.
    """

    def __init__(self, size_of_data: int, sample_rate: float, steps: int, source: RandomSource | None = None) -> None:
        super().__init__(size_of_data, steps, source)
        self.sample_rate = checks.rate(sample_rate=sample_rate)

    def _indices(self, number: int) -> Tensor:
        rate, size = Fraction(self.sample_rate), self.size_of_data
        if size <= _CHUNK:
            return torch.from_numpy(np.flatnonzero(coins(rate, size, self._source)))
        found = [
            start + np.flatnonzero(coins(rate, min(_CHUNK, size - start), self._source))
            for start in range(0, size, _CHUNK)
        ]
        return torch.from_numpy(np.concatenate(found))

    def __repr__(self) -> str:
        stamp = "" if self.is_private else " [NOT PRIVATE]"
        return f"PoissonSampler(sample_rate={self.sample_rate!r}, steps={self.steps}){stamp}"


class PassSampler(Sampler):
    """A sampler of `steps` batches in passes of `pass_steps`; a record is in the same batch of every pass.

    Privacy: a record is in at most max_participations draws, and `pass_steps` draws apart: what
    ``TreeAggregation(steps=steps, max_participations, min_separation=pass_steps)`` asks for. Its place does not depend
    on the other records, nor theirs on it. How many are in a batch varies, and is as private as the records.
    """

    def __init__(
        self,
        size_of_data: int,
        pass_steps: int,
        steps: int,
        max_participations: int = 1,
        source: RandomSource | None = None,
    ) -> None:
        super().__init__(size_of_data, steps, source)
        self.pass_steps = checks.count(pass_steps=pass_steps)
        self.max_participations = checks.count(max_participations=max_participations)
        if self.steps > self.pass_steps * self.max_participations:
            message = (
                f"{steps} steps are more than {max_participations} passes of {pass_steps}, so a record would be used "
                "more often than the noise covers"
            )
            raise InvalidArgument("steps", f"{message}: raise max_participations, which takes more noise")

    def _indices(self, number: int) -> Tensor:
        return self._batches[number % self.pass_steps]

    @cached_property
    def _batches(self) -> tuple[Tensor, ...]:
        places = torch.from_numpy(self._source.integers(self.pass_steps, self.size_of_data))
        counts = torch.bincount(places, minlength=self.pass_steps)
        return torch.split(torch.argsort(places, stable=True), counts.tolist())

    def __repr__(self) -> str:
        stamp = "" if self.is_private else " [NOT PRIVATE]"
        return f"PassSampler(pass_steps={self.pass_steps}, steps={self.steps}){stamp}"


def sampler_of(plan: LocalPlan, records: int, steps: int, source: RandomSource) -> Sampler:
    """Return the sampler of the plan's event: Poisson, or batches in passes where the noise is a tree's."""
    if plan.tree is None:
        return PoissonSampler(records, plan.sample_rate, steps, source=source)
    return PassSampler(records, plan.pass_steps, steps, plan.tree.max_participations, source=source)


def coins(rate: Fraction, count: int, source: RandomSource) -> NDArray[np.bool_]:
    """Return `count` independent coins, each True with probability `rate` exactly, however many digits it has."""
    threshold, rest = _first_digit(rate)
    words = np.frombuffer(source.bytes(_BITS // 8 * count), dtype=np.uint16)
    heads: NDArray[np.bool_] = words < threshold
    if rest:
        ties = np.flatnonzero(words == threshold)
        if ties.size:
            heads[ties] = coins(rest, ties.size, source)
    return heads


@lru_cache(maxsize=64)
def _first_digit(rate: Fraction) -> tuple[int, Fraction]:
    """Return the first digit of the rate in base 2¹⁶, and what comes after it."""
    digit, rest = divmod(rate * 2**_BITS, 1)
    return int(digit), rest
