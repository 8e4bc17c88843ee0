"""The worst-case pair of shuffled reports: how well one report hides among those of the others.

Every randomizer that is ε₀-DP for its user's value sends, with some probability, what any other user could have sent as
well. Given that `s` of the reports are of this kind, an observer sees how many of them lie on one of two sides. With
probability π one of them is the target's, on the side of its value; all others lie on either side with probability ½.
Call this pair M(s, π). A shuffled release is a mixture of such pairs, with s and π revealed:

- *clones* (Feldman, McMillan and Talwar 2021, Theorem 3.2), for any ε₀-DP randomizer: s − 1 ~ Bin(n − 1, e^−ε₀) and
  π = tanh(ε₀/2);
- *privacy blanket* (Balle, Bell, Gascón and Nissim 2019) for k-ary randomized response: m − 1 ~ Bin(n − 1, kp) reports
  are uniform over the k values, p = 1/(e^ε₀ + k − 1), and s of the m are one of the two values in question.

A third way counts only the two values and not m. It is not a bound if k > 2: Lemma 3.5 of Feldman, McMillan and Talwar
(2023), and the errata of that paper. For n = 2, k = 3, ε₀ = 1 it gives δ(0.8) = 0.027; the truth is 0.060.

Fewer reports and a larger π are worse: M(s + 1, π) is M(s, π) with one more coin, and in π both sides are linear. So
counts are rounded down, each with the π of the largest in its bucket, and π is divided between the points beside it.

>>> from dpfed.accounting.exact import privacy_loss
>>> round(privacy_loss.delta(clones(1.0, users=50), 0.3), 9)
0.009679778
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfed import events as ev
from dpfed.accounting.exact.privacy_loss import Array, DiscreteLaw
from dpfed.accounting.shuffling import local_epsilon

Indices = NDArray[np.int64]

# More users than that count as so many, which is the safe side; and of a larger ε₀ nothing is hidden.
MOST_USERS = 10**9
_MOST_EPSILON = 600.0
# The mass that each window may leave out. It is counted at the largest loss.
_TAIL = 1e-34
# The share by which a count may be rounded down, and how many sizes of a blanket are always kept.
_SHARE, _FEW = 8e-5, 40
# How far apart neighbouring values of π may be, as a share, and in how many spreads of m they are close.
_APART, _SPREADS = 5e-3, 7
# Atoms that are kept as they are; more are divided between so many points, a block of them at a time.
_MOST_ATOMS, _POINTS, _BLOCK = 1 << 15, 1 << 16, 1 << 18
_LEAN = 2.0**-36


@dataclass(frozen=True, eq=False)
class _Mixture:
    """Pairs M(s, π) with their weights: a row for each count s, and in it a column for each π.

    `rests` are 1 − π, which would be rounded away for a π near 1. `error` bounds the relative error of the weights, and
    `missing` the mass that they leave out.
    """

    counts: Indices
    shares: Array
    rests: Array
    weights: Array
    largest_loss: float
    error: float
    missing: float


def make_law(event: ev.Shuffled) -> DiscreteLaw:
    """Return the law of shuffled reports: that of the clones, but k-ary randomized response has one of its own."""
    if isinstance(event.event, ev.RandomizedResponse):
        return randomized_response(event.event.epsilon, event.event.num_buckets, event.users)
    return clones(local_epsilon(event.event), event.users)


def clones(epsilon: float, users: int) -> DiscreteLaw:
    """Return the law of any ε-DP randomizer, shuffled among that many users (replace-one).

    Privacy: this pair dominates every neighbouring pair, and is its own mirror image, so it composes soundly.
    """
    return _make_two_sided(epsilon, users, math.exp(-epsilon))


def randomized_response(epsilon: float, buckets: int, users: int) -> DiscreteLaw:
    """Return the law of k-ary randomized response, shuffled among that many users (replace-one).

    Privacy: as `clones`. Which reports were drawn uniformly and which are their users' values is revealed, but for the
    order; nothing is assumed about the values of the others.
    """
    uniform = buckets * math.exp(-epsilon) / (1 + (buckets - 1) * math.exp(-epsilon))
    if buckets == 2:
        return _make_two_sided(epsilon, users, uniform)
    if not 0 < epsilon <= _MOST_EPSILON:
        return DiscreteLaw(np.array([epsilon]), np.ones(1))
    return _make_law(_mix_over_blanket(epsilon, buckets, min(users, MOST_USERS), uniform))


def sampled(law: DiscreteLaw, rate: float) -> DiscreteLaw:
    """Return the law of a release on a uniformly random subset of that share of all users, under replace-one.

    Privacy: δ at log(1 + q(e^ε − 1)) is at most q times δ at ε ≥ 0 (Balle, Barthe and Gaboardi 2018, Theorem 10), for
    both orders of every neighbouring pair. The pair with this curve, and with its mirror image below zero, dominates
    them all; what is left of the mass has the loss 0.
    """
    rate = min(1.0, rate * (1 + 2.0**-52))
    is_gain = law.losses > 0
    losses, p = law.losses[is_gain], law.probabilities[is_gain]
    q = p * np.exp(-losses)
    kept = (rate * p + (1 - rate) * q) * (1 + 2.0**-48)
    return _mirror(np.log1p(rate * np.expm1(losses)) * (1 + 2.0**-48), kept)


def _mirror(gains: Array, masses: Array) -> DiscreteLaw:
    """Return the law of the pair that is its own mirror image and has these losses above zero.

    The mass at −l is e^−l times that at l, and what is left has the loss 0.
    """
    lost = masses * np.exp(-gains)
    rest = max(0.0, 1 - math.fsum(masses) - math.fsum(lost))
    return DiscreteLaw(np.concatenate((-gains, [0.0], gains)), np.concatenate((lost, [rest], masses)))


def _make_two_sided(epsilon: float, users: int, clone_rate: float) -> DiscreteLaw:
    """Return the law whose others are each on one of the two sides with probability `clone_rate`, and else revealed."""
    if not 0 < epsilon <= _MOST_EPSILON:
        return DiscreteLaw(np.array([epsilon]), np.ones(1))
    first, weights, error = _spread(min(users, MOST_USERS) - 1, clone_rate)
    counts, weights = _round_down(first + 1, weights[:, None])
    rest = 2 * math.exp(-epsilon) / (1 + math.exp(-epsilon))
    shape = np.ones_like(weights)
    share = math.tanh(epsilon / 2)
    return _make_law(_Mixture(counts, share * shape, rest * shape, weights, epsilon, error, _TAIL))


def _mix_over_blanket(epsilon: float, buckets: int, users: int, uniform: float) -> _Mixture:
    """Return the mixture over m uniform reports, the target's among them, and s of them at one of the two values.

    P(s | m) is proportional to Bin(m, 2/k)(s)·(c·s/2 + m), and π is (c·s/2)/(c·s/2 + m), with c = e^ε₀ − 1.
    """
    first, weights, error = _spread(users - 1, uniform)
    sizes, weights = _round_down(first + 1, weights[:, None])
    nodes = _choose_nodes(sizes, weights[:, 0])
    half = math.expm1(epsilon) / 2
    spreads = [_spread(int(size), 2 / buckets) for size in sizes]
    low = min(start for start, _, _ in spreads)
    table: Array = np.zeros((max(start + len(part) for start, part, _ in spreads) - low, len(nodes)))
    for size, weight, (start, part, _) in zip(sizes, weights[:, 0], spreads, strict=True):
        tilted = part * (half * (start + np.arange(len(part))) / size + 1)
        rows = slice(start - low, start - low + len(part))
        _divide(table[rows], weight * tilted / tilted.sum(), half * (start + np.arange(len(part))), nodes, int(size))
    end = low + len(table)
    counts, table = _round_down(low, table)
    pull = half * (np.append(counts[1:], end) - 1)[:, None]  # π rises with s: that of the largest count of a bucket
    error += 2 * max(own for _, _, own in spreads)
    missing = _TAIL * (2 + buckets)  # the tilt multiplies each tail by at most k/2 + 1
    return _Mixture(counts, pull / (pull + nodes), nodes / (pull + nodes), table, epsilon, error, missing)


def _divide(rows: Array, weights: Array, pulls: Array, nodes: Indices, size: int) -> None:
    """Add weights of M(s, π) to the rows, divided between the nodes beside their π such that π is kept.

    Both sides of M are linear in π, so M(s, π) is the mixture of its neighbours, and to reveal which of them it was
    costs privacy. π is x/(x + m) for the pull x = c·s/2; its interpolation is written such that nothing cancels.
    """
    right = min(max(int(np.searchsorted(nodes, size)), 1), len(nodes) - 1) if len(nodes) > 1 else 0
    if right == 0:
        rows[:, 0] += weights
        return
    below, above = int(nodes[right - 1]), int(nodes[right])
    share = (above - size) / (above - below) * (pulls + below) / (pulls + size)
    rows[:, right - 1] += weights * share
    rows[:, right] += weights * (1 - share)


def _choose_nodes(sizes: Indices, weights: Array) -> Indices:
    """Return the sizes m whose π are kept: all of a few, else close ones where the weight is, and both ends."""
    mean = float(sizes @ weights / weights.sum())
    spread = math.sqrt(float((sizes - mean) ** 2 @ weights / weights.sum()))
    count = math.ceil(2 * _SPREADS * spread / (mean * _APART))
    if len(sizes) <= max(count, _FEW):
        return sizes
    inner = np.linspace(mean - _SPREADS * spread, mean + _SPREADS * spread, max(count, 3)).astype(np.int64)
    return np.unique(np.concatenate((sizes[[0, -1]], inner.clip(sizes[0], sizes[-1]))))


def _spread(trials: int, rate: float, tail: float = _TAIL) -> tuple[int, Array, float]:
    """Return where a binomial distribution starts, its masses but for a tail, and a bound on their relative error.

    The masses follow from their ratios and add up to 1; Bernstein's inequality bounds what lies outside. `rate` is
    rounded down, for fewer reports hide less.
    """
    rate *= 1 - 2.0**-50
    mean, log = trials * rate, math.log(2 / tail)
    reach = log / 3 + math.sqrt(log**2 / 9 + 2 * mean * (1 - rate) * log)
    low, high = max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))
    if rate <= 0 or low == high:
        return low, np.ones(1), 0.0
    steps = np.arange(low, high)
    odds = math.log(rate) - math.log1p(-rate)
    logs = np.concatenate(([0.0], np.cumsum(np.log((trials - steps) / (steps + 1.0)) + odds)))
    masses = np.exp(logs - logs.max())
    # Each ratio is rounded, and so is each of their sums, which are at most as large as the log of the tail.
    error = len(masses) * 2.0**-52 * (256 + 2 * abs(odds) + float(np.abs(logs).max()))
    return low, masses / masses.sum(), error


def _round_down(first: int, weights: Array) -> tuple[Indices, Array]:
    """Return the counts from the first on, in buckets of which each counts as its least, and their weights added up.

    A bucket is as wide as a share of 8e-5 of the middle count. Zero, which tells nothing, is by itself.
    """
    middle = first + len(weights) // 2
    width = max(1, int(_SHARE * middle))
    starts = np.unique(np.concatenate(([0], np.arange(max(0, 1 - first), len(weights), width))))
    return first + starts, np.add.reduceat(weights, starts, axis=0)


def _make_law(mixture: _Mixture) -> DiscreteLaw:
    """Return the law of the mixture, rounded up: what the windows left out has the largest loss."""
    gathered = _Gathered(mixture)
    rows = zip(mixture.counts, mixture.shares, mixture.rests, mixture.weights, strict=True)
    for count, shares, rests, weights in rows:
        gathered.add(*_list_gains(int(count), shares, rests, weights, mixture.largest_loss))
    gains, masses = gathered.finish()
    missing = mixture.missing + 4 * _TAIL * mixture.weights.size
    masses = masses * (1 + mixture.error + gathered.error)
    return _mirror(np.append(gains, mixture.largest_loss), np.append(masses, missing))


def _list_gains(count: int, shares: Array, rests: Array, weights: Array, most: float) -> tuple[Array, Array, float]:
    """Return the losses of M(s, π) above zero, their masses under P, and a bound on the relative error of these.

    Of a row with a small weight a shorter part is enough.
    """
    low, coins, error = _spread(count, 0.5, min(0.1, _TAIL / (float(weights.sum()) + _TAIL)))
    skipped = max(0, count // 2 + 1 - low)
    lean = 2 * (low + np.arange(skipped, len(coins))) / max(count, 1)
    p = rests[:, None] + shares[:, None] * lean
    q = rests[:, None] + shares[:, None] * (2 - lean)
    losses = np.log1p(shares[:, None] * (2 * lean - 2) / q) * (1 + 2.0**-44)
    return np.minimum(losses, most).ravel(), (weights[:, None] * coins[skipped:] * p).ravel(), error


class _Gathered:
    """Losses above zero with their masses: as they are while they are few, else divided between fixed points.

    Dividing keeps the masses of both distributions ("connect the dots", as in `privacy_loss.split`).
    """

    def __init__(self, mixture: _Mixture) -> None:
        width = math.sqrt(float(mixture.counts[len(mixture.counts) // 2]) + 1)
        self.error = 0.0
        self._kept: list[tuple[Array, Array]] = []
        self._size = 0
        self._is_few = mixture.weights.size * min(13 * width, float(mixture.counts[-1])) <= _MOST_ATOMS
        self._points = _grade(mixture.largest_loss, float(mixture.shares.max()) / width)
        self._masses = np.zeros(len(self._points))

    def add(self, gains: Array, masses: Array, error: float) -> None:
        """Add losses of which each mass has at most that relative error."""
        self.error = max(self.error, error)
        self._kept.append((gains, masses))
        self._size += len(gains)
        if self._size > _BLOCK and not self._is_few:
            self._divide()

    def finish(self) -> tuple[Array, Array]:
        """Return the losses and their masses."""
        if self._is_few:
            return np.concatenate([each for each, _ in self._kept]), np.concatenate([each for _, each in self._kept])
        self._divide()
        keep = (self._masses > 0) & (self._points > 0)
        return self._points[keep], self._masses[keep]

    def _divide(self) -> None:
        gains, masses = (np.concatenate(each) for each in zip(*self._kept, strict=True))
        self._kept, self._size = [], 0
        right = np.clip(np.searchsorted(self._points, gains), 1, len(self._points) - 1)
        low, high = self._points[right - 1], self._points[right]
        up = np.clip(np.expm1(low - gains) / np.expm1(low - high) + _LEAN, 0.0, 1.0)
        self._masses += np.bincount(right, masses * up, len(self._points))
        self._masses += np.bincount(right - 1, masses * (1 - up), len(self._points))


def _grade(most: float, scale: float) -> Array:
    """Return points from zero to the largest loss, whose spacing grows with the distance from zero."""
    scale = min(scale, most)
    points: Array = scale * np.sinh(np.linspace(0, math.asinh(most / scale), _POINTS))
    points[-1] = most
    return points
