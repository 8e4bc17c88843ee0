"""A search for neighbouring data sets that move a release further than the sensitivity claimed for it.

A sensitivity derived on paper is wrong by two more often than not: the wrong adjacency, a mean over the true count, a
state that is not public. Here the release runs without noise on made-up records. Random pairs of neighbours come
first; from those that moved it furthest the search climbs. It may refute a claim, and proves nothing if it does not.

>>> def mean(records, public):
...     return records.sum(axis=0) / 10
>>> halved = SensitivityClaim(mean, Sensitivity(0.1, "l1", "replace_one"), Box((1,), low=-1.0, high=1.0))
>>> print(check_sensitivity(halved, trials=100).verdict)
REFUTED: one record replaced among 2 moved the release by 2.0000 times the claimed 0.1 in L1, so noise for that claim \
protects less than it says. Claim at least 0.2, or find what the release uses that is not public; trials=100 and \
seed=0 find the pair again.
>>> check_sensitivity(replace(halved, sensitivity=2 * halved.sensitivity), trials=100).is_refuted
False
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpfed import checks
from dpfed.arrays import Floats, read_only
from dpfed.checks import REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.guarantee import RECORD, UNITS
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.references import explain_failure
from dpfed.rounding import decimal_up

ORDERS = {"l1": 1, "l2": 2, "linf": np.inf}
ROUNDING = 1e-9  # what float arithmetic inside a release may add, as a part of the sensitivity
CLIMBS = 5
SMALL = (1, 2, 3, 5)
_ULPS = 64 * 2.0**-52

Release = Callable[[Floats, Floats], Any]


@dataclass(frozen=True, eq=False)
class Box:
    """All arrays of a shape with entries from `low` to `high`, which are numbers or arrays of that shape."""

    shape: tuple[int, ...]
    low: Floats | float = -1.0
    high: Floats | float = 1.0

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, self._read_bound(name))
        if not np.all(np.asarray(self.low) <= np.asarray(self.high)):
            raise InvalidArgument("low", "low must be at most high, or there is no record between them: swap the two")

    def draw(self, rng: np.random.Generator, *count: int) -> Floats:
        """Draw arrays whose entries are at a bound, at zero, near zero or anywhere between, with many of each."""
        low, high = self.low, self.high
        anywhere = rng.uniform(low, high, (*count, *self.shape))
        near = anywhere * 10.0 ** rng.uniform(-6, 0, anywhere.shape)
        kind = rng.integers(5, size=anywhere.shape)
        kind[rng.random(anywhere.shape[:1]) < 0.3] = rng.integers(5)
        return self._clip(np.select([kind == 0, kind == 1, kind == 2, kind == 3], [low, high, 0.0, near], anywhere))

    def vary(self, rng: np.random.Generator, values: Floats) -> Floats:
        """Change some entries of an array of that shape: by a little, or to what a new draw has there."""
        chosen = rng.random(values.shape) < rng.choice([0.3, 1.0])
        if rng.random() < 0.3:
            return np.where(chosen, self.draw(rng), values)
        step = 10.0 ** rng.uniform(-4, 0) * (np.asarray(self.high) - self.low)
        return np.where(chosen, self._clip(values + step * rng.normal(size=values.shape)), values)

    def mirror(self, values: Floats) -> Floats:
        """Return the array on the other side of the middle."""
        return np.asarray(self.low + np.asarray(self.high) - values)

    def _clip(self, values: Floats) -> Floats:
        return np.clip(values, self.low, self.high)

    def _read_bound(self, name: str) -> Floats:
        try:
            found = np.broadcast_to(np.asarray(getattr(self, name), dtype=float), self.shape)
        except (TypeError, ValueError):
            found = np.full(1, np.nan)
        if not np.isfinite(found).all():
            message = f"{name} must be a finite number or an array of finite numbers of the shape {self.shape}"
            raise InvalidArgument(name, f"{message}: declare the bounds that each entry of a record is clipped to")
        return found


NOTHING = Box((0,))


@dataclass(frozen=True, eq=False, repr=False)
class Neighbours:
    """A data set, and the neighbour in which `newcomer` stands at a place: as one more, or instead of who was there.

    Both releases know the `public` values.
    """

    records: Floats
    newcomer: Floats
    place: int = 0
    public: Floats = field(default_factory=lambda: np.zeros(0))

    def other(self, *, replaces: bool) -> Floats:
        """Return the records of the neighbour."""
        before, after = self.records[: self.place], self.records[self.place + replaces :]
        return np.concatenate([before, self.newcomer[None], after])


@dataclass(frozen=True, eq=False)
class SensitivityClaim:
    """A claim: neighbouring data sets move what `release` returns by at most `sensitivity`, in its norm.

    ``release(records, public)`` gets all arrays of a data set, the first axis counting them, and the public values. It
    adds no noise. Every array is one `unit` with all that belongs to it. `sizes` are the numbers of units to try, under
    add/remove before one is added: without them some small ones, there from none on. A `witness`, if one is known, is
    tried first.
    """

    release: Release
    sensitivity: Sensitivity
    records: Box
    public: Box = NOTHING
    sizes: tuple[int, ...] | None = None
    unit: str = RECORD
    witness: Neighbours | None = None

    def __post_init__(self) -> None:
        if type(self.sensitivity) is not Sensitivity:
            message = "a bare number has neither norm nor adjacency: write Sensitivity(0.2, 'l1', 'replace_one')"
            raise InvalidArgument("sensitivity", message)
        if self.unit not in UNITS:
            raise InvalidArgument("unit", f"unit must be one of {', '.join(UNITS)}, got {self.unit!r}")
        check_size, tried = checks.count if self._replaces else checks.whole, self.tried_sizes
        if not tried or [check_size(sizes=size) for size in tried] != list(tried):
            raise InvalidArgument("sizes", f"sizes must name whole numbers of {self.unit}s, got {self.sizes!r:.80}")

    @property
    def tried_sizes(self) -> tuple[int, ...]:
        """The numbers of units to try: those given, or small ones; with none at all where a unit may be added."""
        if self.sizes is not None:
            return self.sizes
        return SMALL if self._replaces else (0, *SMALL)

    @property
    def change(self) -> str:
        """The change between neighbours in words."""
        return f"one {self.unit} {'replaced' if self._replaces else 'added or removed'}"

    def measure(self, pair: Neighbours) -> float:
        """Return how far the release moved between them, as a part of the claimed sensitivity, less rounding."""
        here = self._run(pair.records, pair.public)
        there = self._run(pair.other(replaces=self._replaces), pair.public)
        if here.shape != there.shape:
            message = "the shape of the release depends on the records, which no noise on its numbers hides"
            raise InvalidArgument("release", f"{message}: return as many numbers for every data set")
        if not (np.isfinite(here).all() and np.isfinite(there).all()):
            return math.inf
        rounding = _ULPS * (self._length(here) + self._length(there))
        return max(self._length(here - there) - rounding, 0.0) / float(self.sensitivity)

    @property
    def _replaces(self) -> bool:
        return self.sensitivity.adjacency == REPLACE_ONE

    def _length(self, vector: Floats) -> float:
        return float(np.linalg.norm(vector.ravel(), ORDERS[self.sensitivity.norm])) if vector.size else 0.0

    def _run(self, records: Floats, public: Floats) -> Floats:
        try:
            return _read_release(self.release(read_only(records), read_only(public)))
        except InvalidArgument:
            raise
        except Exception as error:
            message = f"the release fails on made-up records ({explain_failure(error)})"
            raise InvalidArgument("release", f"{message}: declare narrower bounds, or mend it") from error


def _read_release(found: Any) -> Floats:
    """Return the numbers of a release; refuse those of which a part would not be compared."""
    if np.iscomplexobj(found) or np.ma.isMaskedArray(found):
        message = "a release of complex numbers or with a mask has more in it than its real numbers, which are compared"
        raise InvalidArgument("release", f"{message}: return all that leaves as an array of real numbers")
    return np.asarray(found, dtype=float)


@dataclass(frozen=True)
class SensitivityCheck:
    """The result of `check_sensitivity`: the furthest that neighbours moved the release, as a part of the claim.

    `size` is how many units the larger data set of that pair has. Of the records themselves nothing is kept.
    """

    claimed: Sensitivity
    ratio: float
    change: str
    size: int
    trials: int
    seed: int

    @property
    def is_refuted(self) -> bool:
        """Whether neighbours moved the release by more than is claimed, beyond rounding."""
        return self.ratio > 1 + ROUNDING

    @property
    def verdict(self) -> str:
        """The result in words."""
        claimed = f"the claimed {float(self.claimed):.6g} in {self.claimed.norm.upper()}"
        if self.is_refuted:
            where = f"{self.change} among {self.size} moved the release by {self.ratio:.4f} times {claimed}"
            return f"REFUTED: {where}, so noise for that claim protects less than it says. {self._remedy}"
        found = f"{self.trials:,} pairs of neighbouring data sets moved the release by at most {self.ratio:.4f} of"
        return f"{found} {claimed} ({self.change}); not a proof."

    @property
    def _remedy(self) -> str:
        least = f"at least {decimal_up(self.ratio * self.claimed, 4)}" if math.isfinite(self.ratio) else "another bound"
        again = f"trials={self.trials} and seed={self.seed} find the pair again"
        return f"Claim {least}, or find what the release uses that is not public; {again}."


def check_sensitivity(claim: SensitivityClaim, trials: int = 10_000, seed: int = 0) -> SensitivityCheck:
    """Search for neighbouring data sets that move a release further than is claimed: random ones, then by climbing.

    `trials` is how many pairs are compared. The same seed finds the same pair.

    Privacy: a claim that is refuted is wrong. One that is not may be wrong all the same; derive it. Only made-up
    records are looked at, so the search costs nothing and may be repeated.
    """
    search = _Search(claim, np.random.default_rng(checks.whole(seed=seed)))
    best = search.run(checks.count(trials=trials))
    size = len(best.pair.records) + (claim.sensitivity.adjacency != REPLACE_ONE)
    return SensitivityCheck(claim.sensitivity, best.ratio, claim.change, size, trials, seed)


@dataclass(frozen=True, eq=False, repr=False)
class _Measured:
    """A pair, and how far it moved the release."""

    pair: Neighbours
    ratio: float


class _Search:
    """Draws and varies pairs of neighbours, and measures them."""

    def __init__(self, claim: SensitivityClaim, rng: np.random.Generator) -> None:
        self._claim, self._rng = claim, rng
        self._replaces = claim.sensitivity.adjacency == REPLACE_ONE

    def run(self, trials: int) -> _Measured:
        """Return the furthest of so many pairs: the witness and random ones for half of them, then climbs."""
        first = [] if self._claim.witness is None else [self._claim.witness]
        drawn = [self._measure(self._draw()) for _ in range(trials - trials // 2 - len(first))]
        found = [self._measure(pair) for pair in first] + drawn
        self._require_deterministic(found[0])
        starts = heapq.nlargest(CLIMBS, found, key=_ratio)
        each = trials // 4 // len(starts)
        best = max((self._climb(start, each) for start in starts), key=_ratio)
        return self._climb(best, trials // 2 - each * len(starts))

    def _climb(self, best: _Measured, trials: int) -> _Measured:
        for _ in range(trials):
            found = self._measure(self._vary(best.pair))
            best = found if found.ratio >= best.ratio else best  # a plateau, which clipping makes, is walked along
        return best

    def _measure(self, pair: Neighbours) -> _Measured:
        return _Measured(pair, self._claim.measure(pair))

    def _draw(self) -> Neighbours:
        claim, rng = self._claim, self._rng
        size = int(rng.choice(claim.tried_sizes))
        records = claim.records.draw(rng, size)
        if size and rng.random() < 0.5:
            records[:] = records[0]  # all agree, or half are against the others
            records[rng.random(size) < rng.choice([0.0, 0.5])] = claim.records.mirror(records[0])
        place = int(rng.integers(size + (not self._replaces)))
        newcomer = claim.records.draw(rng)
        if self._replaces:
            records[place] = claim.records.mirror(newcomer) if rng.random() < 0.5 else claim.records.draw(rng)
        return Neighbours(records, newcomer, place, claim.public.draw(rng))

    def _vary(self, pair: Neighbours) -> Neighbours:
        """Change the newcomer, the public values, one record, or all whom both data sets have."""
        box, rng, size = self._claim.records, self._rng, len(pair.records)
        kind = rng.choice(["newcomer"] + ["public"] * bool(pair.public.size) + ["one", "all"] * bool(size))
        if kind == "newcomer":
            return replace(pair, newcomer=box.vary(rng, pair.newcomer))
        if kind == "public":
            return replace(pair, public=self._claim.public.vary(rng, pair.public))
        records, chosen = pair.records.copy(), int(rng.integers(size))
        shared = np.arange(size) != (pair.place if self._replaces else size)
        records[shared if kind == "all" else chosen] = box.vary(rng, records[chosen])
        return replace(pair, records=records)

    def _require_deterministic(self, found: _Measured) -> None:
        """Refuse a release that differs from call to call: it would be compared with its own noise."""
        if self._claim.measure(found.pair) != found.ratio:
            message = "the release is not the same twice for the same records: give the release without its noise"
            raise InvalidArgument("release", message)


def _ratio(found: _Measured) -> float:
    return found.ratio
