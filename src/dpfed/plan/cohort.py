"""Who takes part in a round: everyone, each by a coin of its own, or a fixed number drawn without replacement.

A cohort that is drawn at random hides who took part only from those who cannot see it. So `secret` is a promise
about the server: no list, no count, no client's spend and no state of the sampler leaves it. Without that promise
a client is charged in full for every round it takes part in.

>>> PoissonCohort(rate=0.1).event(ev.Gaussian(noise_multiplier=1.0), population=50)
Gaussian(noise_multiplier=1.0)
>>> PoissonCohort(rate=0.5, secret=True).event(ev.Gaussian(noise_multiplier=1.0), population=50)
PoissonSampled(Gaussian(noise_multiplier=1.0), sample_rate=0.5)
>>> likely_participations(rounds=100, chance=0.1)
20
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.special import bdtrc

from dpfed import checks
from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.randomness import RandomSource

RARELY = 1e-3
AT_ONCE = 1 << 16  # coins in memory


class Participant(Protocol):
    """Whoever takes part: a name in the plan and the account that pays for it."""

    @property
    def name(self) -> str:
        """The name in the plan."""

    @property
    def account(self) -> str:
        """The ledger's account of this participant's data."""


@dataclass(frozen=True)
class All:
    """A cohort of every client, in every round."""

    kind: ClassVar[str] = "all"
    secret: ClassVar[bool] = False

    def chance(self, population: int) -> float:
        """Return 1: every client is in every round."""
        return 1.0

    def expected(self, population: int) -> Fraction:
        """Return the number of clients in a round."""
        return Fraction(population)

    def draw(self, names: Sequence[str], source: RandomSource) -> tuple[str, ...]:
        """Return all names."""
        return tuple(names)

    def hides(self, population: int) -> bool:
        """Return False: that all take part is no secret."""
        return False

    def event(self, event: ev.Event, population: int) -> ev.Event:
        """Return the event of a round for a client: not sampled."""
        return event

    def __str__(self) -> str:
        return "all clients in each"


@dataclass(frozen=True)
class PoissonCohort:
    """A cohort of each client with probability `rate`, independently of all others and of other rounds.

    Privacy: with `secret`, a round is PoissonSampled(event, rate) for a client (add/remove or replace-one, unit
    client) against everyone but the server, which must keep the draw to itself; see the module. Without it, a
    round is the un-sampled event for whoever took part.
    """

    rate: float
    secret: bool = False
    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.rate(rate=self.rate))
        _require_bool(self.secret)

    def chance(self, population: int) -> float:
        """Return the rate, rounded up to a multiple of 2⁻⁵³: the exact probability that a uniform draw is below it."""
        return math.ldexp(self._heads, -53)

    def expected(self, population: int) -> Fraction:
        """Return the expected number of clients in a round."""
        return Fraction(self.rate) * population

    def draw(self, names: Sequence[str], source: RandomSource) -> tuple[str, ...]:
        """Draw each name by a 53-bit coin of its own, compared as whole numbers; there may be none."""
        drawn: list[str] = []
        for start in range(0, len(names), AT_ONCE):
            coins = source.coins(min(AT_ONCE, len(names) - start))
            drawn += [names[start + place] for place in np.flatnonzero(coins < np.uint64(self._heads)).tolist()]
        return tuple(drawn)

    def hides(self, population: int) -> bool:
        """Return whether who takes part is drawn and kept secret."""
        return self.secret and self.chance(population) < 1

    def event(self, event: ev.Event, population: int) -> ev.Event:
        """Return the event of a round for a client: sampled if the cohort is secret."""
        return ev.PoissonSampled(event, self.chance(population)) if self.hides(population) else event

    @property
    def _heads(self) -> int:
        """The number of the coin's 2⁵³ values that draw a client."""
        return math.ceil(Fraction(self.rate) * 2**53)

    def __str__(self) -> str:
        return f"each client with probability {self.rate:g}, {_secrecy(self.secret)}"


@dataclass(frozen=True)
class FixedCohort:
    """A cohort of exactly `size` clients, every such set equally likely.

    Privacy: with `secret`, a round is SampledWithoutReplacement(event, size, population), which is proved under
    replace-one only; see `PoissonCohort` for what secrecy asks, and for a round without it.
    """

    size: int
    secret: bool = False
    kind: ClassVar[str] = "fixed"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checks.count(size=self.size))
        _require_bool(self.secret)

    def chance(self, population: int) -> float:
        """Return the probability that a client is in a round."""
        return self.size / population

    def expected(self, population: int) -> Fraction:
        """Return the number of clients in a round."""
        return Fraction(self.size)

    def draw(self, names: Sequence[str], source: RandomSource) -> tuple[str, ...]:
        """Draw `size` of the names without replacement, in the order of the names (Fisher and Yates).

        Of the shuffled order only the places that were exchanged are kept, so it takes no longer with more names.
        """
        drawn, moved = [], dict[int, int]()
        for place in range(self.size):
            other = place + int(source.integers(len(names) - place))
            drawn.append(moved.get(other, other))
            moved[other] = moved.get(place, place)
        return tuple(names[index] for index in sorted(drawn))

    def hides(self, population: int) -> bool:
        """Return whether who takes part is drawn and kept secret."""
        return self.secret and self.size < population

    def event(self, event: ev.Event, population: int) -> ev.Event:
        """Return the event of a round for a client: sampled if the cohort is secret."""
        return ev.SampledWithoutReplacement(event, self.size, population) if self.hides(population) else event

    def __str__(self) -> str:
        clients = "1 client" if self.size == 1 else f"{self.size} clients"
        return f"{clients} drawn without replacement, {_secrecy(self.secret)}"


Cohort = All | PoissonCohort | FixedCohort
_KINDS: dict[str, type[Cohort]] = {kind.kind: kind for kind in (All, PoissonCohort, FixedCohort)}


def to_plain(cohort: Cohort) -> dict[str, Any]:
    """Return the cohort as plain JSON values."""
    return {"kind": cohort.kind, **asdict(cohort)}


def from_plain(plain: Mapping[str, Any]) -> Cohort:
    """Return the cohort that `to_plain` described; also the `cohort:` block of a configuration."""
    values = dict(plain)
    kind = _KINDS.get(str(values.pop("kind", None)))
    if kind is None:
        raise InvalidArgument("cohort", f"cohort must be of kind {', '.join(_KINDS)}, got {plain!r:.80}")
    return kind(**values)


def likely_participations(rounds: int, chance: float) -> int:
    """Return the smallest m that a client exceeds with probability at most 1e-3 in that many independent rounds."""
    low, high = 0, rounds
    while low < high:
        middle = (low + high) // 2
        if bdtrc(middle, rounds, chance) <= RARELY:
            high = middle
        else:
            low = middle + 1
    return max(low, 1)


def _require_bool(secret: object) -> None:
    if not isinstance(secret, bool):
        raise InvalidArgument("secret", f"secret must be True or False, got {secret!r}")


def _secrecy(secret: bool) -> str:
    return "kept secret by the server" if secret else "not secret"
