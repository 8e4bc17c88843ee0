"""Clients that are alike, as a count and one plan: a million of them take no more room than one.

A population stands where a plan has a dict of its clients. Names are made from numbers, and a client is made when it is
drawn. What is charged is what a dict of as many equal clients would be charged.

>>> phone = LocalPlan(size=20, batch_size=10, steps=2)
>>> phones = Population(1_000_000, phone, prefix="phone-")
>>> len(phones), phones.names[7], phones.number("phone-7"), phones["phone-7"] is phone
(1000000, 'phone-7', 7, True)
>>> "phone-1000000" in phones, "phone-07" in phones
(False, False)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, overload

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.plan.local import LocalPlan

MOST = 1 << 53  # clients: every number up to here is a float as it is
LONGEST_PREFIX = 64


@dataclass(frozen=True)
class Names(Sequence[str]):
    """The names prefix0, prefix1, … as a sequence that makes each when it is asked for."""

    length: int
    prefix: str

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        numbers = range(self.length)[place]
        return f"{self.prefix}{numbers}" if isinstance(numbers, int) else tuple(f"{self.prefix}{n}" for n in numbers)

    def __contains__(self, name: object) -> bool:
        return self.number(name) is not None

    def number(self, name: object) -> int | None:
        """Return the number in a name, or None if there is no client of that name: no number has two names."""
        digits = name[len(self.prefix) :] if isinstance(name, str) else ""
        if not (digits.isascii() and digits.isdecimal()) or len(digits) > len(str(self.length)):
            return None
        number = int(digits)
        return number if number < self.length and name == f"{self.prefix}{number}" else None


@dataclass(frozen=True)
class Population(Mapping[str, LocalPlan]):
    """A number of clients with one plan for `each`, named by a prefix and a number from 0.

    Privacy: it describes who may be drawn and changes no charge. Each number must stand for one client of its own, the
    same one in every round: the clip bounds what one number contributes, not what one person behind two numbers does.
    """

    count: int
    each: LocalPlan
    prefix: str = "client-"

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", checks.count(count=self.count))
        if self.count > MOST:
            message = f"count must be at most 2⁵³ clients, got {self.count}: draws beyond it would not be exact"
            raise InvalidArgument("count", f"{message}; give a smaller count")
        _require_plan(self.each)
        _require_prefix(self.prefix)

    @property
    def names(self) -> Names:
        """The names of all clients, each made when it is asked for."""
        return Names(self.count, self.prefix)

    def number(self, name: str) -> int:
        """Return the number of the client of that name."""
        found = self.names.number(name)
        if found is None:
            raise KeyError(name)
        return found

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> LocalPlan:
        self.number(name)
        return self.each

    def __str__(self) -> str:
        first, last = self.names[0], self.names[-1]
        return first if self.count == 1 else f"{self.count} clients from {first} to {last}"

    def to_plain(self) -> dict[str, Any]:
        """Return the population as plain JSON values."""
        return {"count": self.count, "prefix": self.prefix, "each": self.each.to_plain()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Population:
        """Return the population that `to_plain` described."""
        values = dict(plain)
        return cls(each=LocalPlan.from_plain(values.pop("each")), **values)


def names_of(local: Mapping[str, LocalPlan]) -> Sequence[str]:
    """Return the names of the clients of a plan, in their order; none are made for a population."""
    return local.names if isinstance(local, Population) else tuple(local)


def kinds_of(local: Mapping[str, LocalPlan]) -> tuple[LocalPlan, ...]:
    """Return the plans that clients have, each once."""
    if isinstance(local, Population):
        return (local.each,)
    by_object = {id(part): part for part in local.values()}  # many clients share one, and hashing takes its time
    return tuple(dict.fromkeys(by_object.values()))


def parts_of(local: Mapping[str, LocalPlan], weighting: str) -> dict[str, int] | None:
    """Return each client's share in an average, its declared size or 1; None for a population, where all are equal."""
    if isinstance(local, Population):
        return None
    return {name: part.size if weighting == "declared" else 1 for name, part in local.items()}


def weights_of(
    local: Mapping[str, LocalPlan], weighting: str, expected: Fraction, came: Iterable[str]
) -> dict[str, float]:
    """Return the clients' weights in an average over the expected cohort.

    Of a population they are those of whoever came, and of its first client: there is a weight even if nobody came.
    """
    parts = parts_of(local, weighting)
    if parts is None:
        return dict.fromkeys([*names_of(local)[:1], *came], float(1 / expected))
    scale = len(parts) / expected / sum(parts.values())
    return {name: float(scale * part) for name, part in parts.items()}


def _require_plan(each: object) -> None:
    if not isinstance(each, LocalPlan):
        message = f"each must be the LocalPlan that all clients have in common, got {each!r:.60}"
        raise InvalidArgument("each", f"{message}: clients that differ are named in a dict of LocalPlans")


def _require_prefix(prefix: object) -> None:
    if not isinstance(prefix, str) or len(prefix) > LONGEST_PREFIX or not prefix.isprintable():
        message = f"prefix must be a printable text of at most {LONGEST_PREFIX} characters, got {prefix!r:.80}"
        raise InvalidArgument("prefix", f"{message}: names are made of it, such as 'phone-' for phone-0, phone-1")
