"""One report a person: new persons draw theirs, the others send theirs again, and what adds up is added up.

A fresh response to the same question costs its ε once more. So each person's response is kept, and a second collection
with the same settings sends it again, which costs nothing. Anything else for a person who has reported already is
refused, unless that is asked for; then the ε of all collections add up.

>>> from dpfed.ldp.files import Kept
>>> from dpfed.ldp import KaryResponse
>>> terms = Terms("ward", "patient", ("a", "b"), KaryResponse(1.0, 2))
>>> first = collect(Kept.new(), ["ann", "ben"], [0, 1], terms)
>>> second = collect(first.kept, ["ann", "ben", "cleo"], [1, 1, 0], terms)
>>> second.reports[:2].tolist() == first.reports.tolist(), second.drawn, second.epsilon == first.epsilon
(True, 1, True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed.errors import BudgetExceeded, InvalidArgument
from dpfed.ldp.files import Collection, Digests, Kept
from dpfed.ldp.rappor import Rappor
from dpfed.ldp.settings import Mechanism, describe
from dpfed.randomness import RandomSource, or_system
from dpfed.rounding import decimal_up, round_up

STEP = 1 << 16  # persons at a time, between two steps of a progress bar

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Terms:
    """What is asked: the column, who is asked, the declared values, the mechanism.

    `person_column` is where persons are named; without it (None) a row is asked, which nobody can find again in a
    file that has changed.
    """

    column: str
    person_column: str | None
    values: tuple[str, ...]
    mechanism: Mechanism

    @property
    def unit(self) -> str:
        """Whose report it is: a person's or a row's."""
        return "row" if self.person_column is None else "person"

    @property
    def settings(self) -> dict[str, Any]:
        """The terms as plain values."""
        asked = {"column": self.column, "unit": self.unit, "person_column": self.person_column}
        return {
            **asked,
            "values": list(self.values),
            "mechanism": describe(self.mechanism),
            "epsilon": self.mechanism.epsilon,
        }


@dataclass(frozen=True, eq=False)
class Collected:
    """The reports to send, what to keep, and the ε of the person who has spent most, over all collections."""

    reports: NDArray[Any] = field(repr=False)
    kept: Kept = field(repr=False)
    epsilon: float
    drawn: int
    collections: int


def collect(
    kept: Kept,
    persons: Sequence[str],
    values: ArrayLike,
    terms: Terms,
    *,
    again: bool = False,
    source: RandomSource | None = None,
    progress: Progress | None = None,
) -> Collected:
    """Return one report for each person, new or kept; `kept` of what is returned is to be stored before they are sent.

    Privacy: a person's response is drawn once for the same terms, whatever happens to its value; each further draw,
    with again=True, is one more collection, and `epsilon` is the sum over those a person was in. Whoever was named by
    another column, or not at all, is taken to have been in every collection.
    """
    digests, answers, coin = kept.digests(persons), np.asarray(values), or_system(source)
    _require_one_each(digests, answers)
    same = None if again else _find_same(kept, terms)
    earlier = tuple(each for each in kept.collections if each is not same)
    is_new = np.ones(len(digests), dtype=np.bool_) if same is None else ~np.isin(digests, same.persons)
    if not again:
        # Rows that a file has now and had not before may be old ones, moved by a row that came in above them.
        _require_unspent(kept.collections if terms.unit == "row" else earlier, digests[is_new], terms)
    (progress or _ignore)(int(np.count_nonzero(~is_new)))
    now = _extend(same, digests[is_new], _draw(terms.mechanism, answers[is_new], coin, progress or _ignore), terms)
    responses = now.responses[_find(now.persons, digests)]
    reports = terms.mechanism.report(responses, coin) if isinstance(terms.mechanism, Rappor) else responses
    after = (*earlier, now)
    spent = _add_up(after, digests, terms)
    return Collected(reports, Kept(kept.key, after, kept.writes + 1), spent, int(np.count_nonzero(is_new)), len(after))


def _require_one_each(digests: Digests, values: NDArray[Any]) -> None:
    if values.shape != digests.shape or len(np.unique(digests)) < len(digests):
        message = "persons must be different, with one value each: a second report of a person would cost ε again"
        raise InvalidArgument("persons", message)


def _find_same(kept: Kept, terms: Terms) -> Collection | None:
    """Return the latest collection on the same terms."""
    found = (each for each in reversed(kept.collections) if dict(each.settings) == terms.settings)
    return next(found, None)


def _require_unspent(earlier: tuple[Collection, ...], digests: Digests, terms: Terms) -> None:
    """Refuse to draw a response of a person who has another one already."""
    spent = _add_up(earlier, digests, terms)
    if spent:
        total = round_up(Fraction(spent) + Fraction(terms.mechanism.epsilon))
        raise BudgetExceeded(
            f"some have, or may have, reported already on other terms, other rows or under another name, at "
            f"ε = {decimal_up(spent)}, and a further report adds to it: collect on the same terms with the same "
            "--person-column, which sends the same responses and costs nothing, or say --again and spend "
            f"ε = {decimal_up(total)} in all"
        )


def _draw(mechanism: Mechanism, values: NDArray[Any], source: RandomSource, progress: Progress) -> list[NDArray[Any]]:
    """Return what persons keep: the permanent response of RAPPOR, or the report itself."""
    draw, parts = mechanism.enroll if isinstance(mechanism, Rappor) else mechanism.randomize, []
    for start in range(0, len(values), STEP):
        parts.append(draw(values[start : start + STEP], source))
        progress(len(parts[-1]))
    return parts


def _extend(same: Collection | None, digests: Digests, parts: list[NDArray[Any]], terms: Terms) -> Collection:
    """Return the collection with the new persons and their responses."""
    names, kept = ([], []) if same is None else ([same.persons], [same.responses])
    return Collection(terms.settings, np.concatenate([*names, digests]), np.concatenate([*kept, *parts]))


def _find(names: Digests, wanted: Digests) -> NDArray[np.int64]:
    order = np.argsort(names)
    return np.asarray(order[np.searchsorted(names, wanted, sorter=order)])


def _add_up(collections: tuple[Collection, ...], digests: Digests, terms: Terms) -> float:
    """Return the largest sum of ε of a person; who cannot be found by the same name is taken to be in."""
    if not collections or not len(digests):
        return 0.0
    is_in = np.array([_took_part(each, digests, terms) for each in collections])
    costs = [Fraction(each.settings["epsilon"]) for each in collections]
    histories = np.unique(is_in.T, axis=0)  # few, however many persons there are
    return round_up(max(_sum_where(costs, row) for row in histories))


def _took_part(collection: Collection, digests: Digests, terms: Terms) -> NDArray[np.bool_]:
    if terms.unit == "row" or collection.settings.get("person_column") != terms.person_column:
        return np.ones(len(digests), dtype=np.bool_)
    return np.isin(digests, collection.persons)


def _sum_where(costs: list[Fraction], is_in: NDArray[np.bool_]) -> Fraction:
    return sum((cost for cost, hit in zip(costs, is_in, strict=True) if hit), Fraction(0))


def _ignore(count: int) -> None:
    """Show no progress."""
