"""Apple's count-mean sketch and its one-bit Hadamard form: for domains too large to list in every report.

Values are hashed by one of k public functions into m buckets, so reports have m bits (or one) for any domain. Values
that share a bucket disturb each other: that part of the error stays the same however many users there are, and shrinks
with m and k only (Apple's Differential Privacy Team 2017).

>>> sketch = CountMeanSketch(epsilon=2.0, domain=1000, buckets=1024, functions=2048)
>>> round(sketch.scale, 6), round(HadamardSketch(epsilon=2.0, domain=1000).scale, 6)
(2.163953, 1.313035)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.ldp import coins, hadamard_matrix, hashes, packed
from dpfed.ldp.coins import ONE
from dpfed.ldp.estimates import Estimate, Floats
from dpfed.ldp.oracle import (
    Codes,
    FrequencyOracle,
    Reports,
    as_frequency,
    batches,
    read_codes,
    refuse_reports,
    require_reports,
    require_users,
    sampling_variance,
)
from dpfed.randomness import RandomSource, or_system

_VALUES = 1 << 10  # of the domain, looked up in all functions at a time


@dataclass(frozen=True)
class _Sketch(FrequencyOracle):
    """A sketch of `functions` rows by `buckets`; `label` is the public text from which the hash functions follow."""

    buckets: int = 1024
    functions: int = 1024
    label: str = "dpfed"
    _keep: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("buckets", "functions"):
            object.__setattr__(self, name, checks.count(**{name: getattr(self, name)}))
            if getattr(self, name) > hashes.MOST_BUCKETS:
                raise InvalidArgument(name, f"{name} must be at most 2¹⁶: more rows or columns only slow it down")
        if self.buckets < 2:
            raise InvalidArgument("buckets", "buckets must be at least 2: in one bucket all values look the same")

    @property
    def scale(self) -> float:
        """The factor c = 1/(1 − 2·flip chance), by which a noised bit stands for a true one."""
        return 1.0 / (2.0 * (self._keep / ONE) - 1.0)

    @property
    def flip_chance(self) -> float:
        """The chance that a bit is flipped."""
        return (ONE - self._keep) / ONE

    def positions(self, functions: Codes, values: Codes) -> Codes:
        """Return the bucket of each value under the function given for it, a polynomial of degree two.

        Whether two other values meet a third is then independent, as the variance needs it. Of lines it is not: where
        a value's neighbour above meets it, the one below nearly does.
        """
        second, first, constant = hashes.public_coefficients(self.label, 3 * self.functions).reshape(3, -1)
        slopes = hashes.evaluate(second[functions], first[functions], values)
        return hashes.buckets(hashes.evaluate(slopes, constant[functions], values), self.buckets)

    def variance(
        self, users: int, frequency: ArrayLike = 0.0, *, sampled: bool = False, others: ArrayLike | None = None
    ) -> Any:
        """Return the variance of an estimate, over coins and over the choice of hash functions.

        `others` are the frequencies of all other values; without them the worst case is taken, in which all other
        users have one and the same value.
        """
        users, share = checks.count(users=users), as_frequency(frequency)
        rest = 1 - share
        squares = rest**2 if others is None else float(np.sum(np.square(as_frequency(others))))
        return self._variance(users, share, squares) + sampling_variance(share, sampled) / users

    def estimate(self, reports: Reports | Iterable[Reports]) -> Estimate:
        """Return the estimate for every value; standard errors allow for the values seen to share buckets."""
        table, users = np.zeros((self.functions, self.buckets), dtype=np.int64), 0
        for batch in batches(reports):
            checked = self.check_reports(batch)
            self._add_to(table, checked)
            users += len(checked)
        means = self._means(table, require_users(users))
        frequencies = self.buckets / (self.buckets - 1) * (means - 1 / self.buckets)
        share = np.clip(frequencies, 0.0, 1.0)
        # Squared estimates are too large by their variance on average: collisions are rather over- than understated.
        squares = min(float(np.sum(share**2)), 1.0)
        return Estimate(frequencies, np.sqrt(self._variance(users, share, np.maximum(squares - share**2, 0.0))), users)

    def _variance(self, users: int, share: Any, squares: Any) -> Any:
        spread = (1 - 1 / self.buckets) / self.buckets
        shared = users * squares - (1 - share)  # (S₂ − S₁)/n of the paper's counts
        stretch = (self.buckets / (self.buckets - 1)) ** 2
        return stretch * (self._noise(share, spread) + spread * np.maximum(shared, 0.0) / self.functions) / users

    def _noise(self, share: Any, spread: float) -> Any:
        raise NotImplementedError

    def _add_to(self, table: Codes, reports: Reports) -> None:
        raise NotImplementedError

    def _means(self, table: Codes, users: int) -> Floats:
        raise NotImplementedError

    def _look_up(self, table: Floats) -> Floats:
        """Return the sum over all functions of the entry of each value."""
        functions = np.arange(self.functions)[:, None]
        sums = [
            table[functions, self.positions(functions, values[None, :])].sum(axis=0)
            for values in np.split(np.arange(self.size), range(_VALUES, self.size, _VALUES))
        ]
        return np.concatenate(sums)

    def _draw(self, values: ArrayLike, source: RandomSource) -> tuple[Codes, Codes]:
        """Return a random function for each user, and the bucket of the user's value under it."""
        codes = read_codes(values, self.domain, self.absent)
        functions = coins.below(source, self.functions, codes.size).astype(np.int64)
        return functions, self.positions(functions, codes)


@dataclass(frozen=True)
class CountMeanSketch(_Sketch):
    """Send a row of m bits, of which the one of the value's bucket is set, each flipped with chance 1/(e^{ε/2} + 1).

    Privacy: two values differ in at most two bits of a row, so one report is 2·ln(p/(1 − p))-DP with p = 1 − flip
    chance rounded down to 2⁻⁵³ (replace-one, local model); the event is PureDP(ε, adjacency="replace_one"). This is ε
    for one report: whoever sends d a day spends d times as much.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_keep", coins.chance_down(coins.exp(self.epsilon / 2)))
        coins.require_signal(self._keep, ONE - self._keep)
        object.__setattr__(self, "epsilon", coins.epsilon_of_bits(self._keep, ONE - self._keep, changed=1))

    @property
    def report(self) -> np.dtype[Any]:
        """The type of a report: the number of the function, and the bits."""
        return np.dtype([("function", "<u4"), ("bits", "u1", (packed.width(self.buckets),))])

    def randomize(self, values: ArrayLike, source: RandomSource | None = None) -> Reports:
        """Return a function and a row of noised bits for each user."""
        coin = or_system(source)
        functions, places = self._draw(values, coin)
        reports = np.empty(functions.size, dtype=self.report)
        reports["function"] = functions
        for part in packed.chunks(functions.size, self.buckets):
            bits = packed.flip_rows(coin, ONE - self._keep, len(places[part]), self.buckets)
            bits[np.arange(len(bits)), places[part]] ^= True
            reports["bits"][part] = packed.pack(bits)
        return reports

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports, if their functions and bits are of this sketch."""
        array = require_reports(reports, self.report)
        if len(array) and array["function"].max() >= self.functions:
            raise refuse_reports("hash functions that this sketch does not have")
        packed.require_padding(array["bits"], self.buckets)
        return array

    def _supports(self, reports: Reports, code: int) -> NDArray[np.bool_]:
        functions = reports["function"].astype(np.int64)
        return packed.bit(reports["bits"], self.positions(functions, np.asarray(code)))

    def _add_to(self, table: Codes, reports: Reports) -> None:
        functions = reports["function"].astype(np.int64)
        ones = packed.count_bits_by_group(functions, np.ascontiguousarray(reports["bits"]), table.shape)
        table += 2 * ones - np.bincount(functions, minlength=self.functions)[:, None]  # bits as ±1

    def _means(self, table: Codes, users: int) -> Floats:
        return (self.scale * self._look_up(table.astype(np.float64)) / users + 1) / 2

    def _noise(self, share: Any, spread: float) -> Any:
        return (self.scale**2 - 1) / 4 + spread * (1 - share)


@dataclass(frozen=True)
class HadamardSketch(_Sketch):
    """Send one entry, at random, of the Hadamard transform of the row: a single bit, flipped with chance 1/(e^ε + 1).

    `buckets` must be a power of two.

    Privacy: function and entry do not depend on the value, and the bit is a randomized response, so one report is
    ln(p/(1 − p))-DP with p = 1 − flip chance rounded down to 2⁻⁵³ (replace-one, local model); the event is
    PureDP(ε, adjacency="replace_one"). This is ε for one report: whoever sends d a day spends d times as much.
    """

    REPORT = np.dtype([("function", "<u4"), ("entry", "<u4"), ("sign", "i1")])

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buckets & (self.buckets - 1):
            raise InvalidArgument("buckets", "buckets must be a power of two, as a Hadamard matrix needs it: use 1024")
        object.__setattr__(self, "_keep", coins.chance_down(coins.exp(self.epsilon)))
        coins.require_signal(self._keep, ONE - self._keep)
        object.__setattr__(self, "epsilon", hadamard_matrix.sign_epsilon(self._keep))

    def randomize(self, values: ArrayLike, source: RandomSource | None = None) -> Reports:
        """Return a function, an entry and a noised sign for each user."""
        coin = or_system(source)
        functions, places = self._draw(values, coin)
        entries = coins.below(coin, self.buckets, functions.size).astype(np.int64)
        reports = np.empty(functions.size, dtype=self.REPORT)
        reports["function"], reports["entry"] = functions, entries
        reports["sign"] = hadamard_matrix.noisy_signs(entries, places, self._keep, coin)
        return reports

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports, if their functions, entries and signs are of this sketch."""
        array = require_reports(reports, self.REPORT)
        if len(array) and (array["function"].max() >= self.functions or array["entry"].max() >= self.buckets):
            raise refuse_reports("functions or entries that this sketch does not have")
        return hadamard_matrix.require_signs(array)

    def _supports(self, reports: Reports, code: int) -> NDArray[np.bool_]:
        places = self.positions(reports["function"].astype(np.int64), np.asarray(code))
        return np.asarray(reports["sign"] == hadamard_matrix.signs(reports["entry"].astype(np.int64), places))

    def _add_to(self, table: Codes, reports: Reports) -> None:
        cells = reports["function"].astype(np.int64) * self.buckets + reports["entry"]
        sums = np.bincount(cells, weights=reports["sign"], minlength=table.size)
        table += sums.astype(np.int64).reshape(table.shape)

    def _means(self, table: Codes, users: int) -> Floats:
        return self.scale * self._look_up(hadamard_matrix.transform(table.astype(np.float64))) / users

    def _noise(self, share: Any, spread: float) -> Any:
        return share * (self.scale**2 - 1) + (1 - share) * (self.scale**2 - 1 / self.buckets**2)
