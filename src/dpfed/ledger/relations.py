"""Which accounts a charge reaches: parents, and accounts on the same data that carry the first one's charges.

A budget belongs to data and unit. All accounts on one source must therefore lead to one that sees
everything: a later account *overlaps* the earlier ones (and carries their charges), or has one of them as
its *parent* (and charges that too).

>>> ward = Terms("ward", 4.0, 1e-5, parent="hospital")
>>> find_reached("ward", {"ward": ward, "hospital": Terms("hospital", 8.0, 1e-5)})
('ward', 'hospital')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dpfed.errors import InvalidArgument, UnknownAccount
from dpfed.ledger.rules import Terms


def require_known(name: str, terms: Mapping[str, Terms]) -> Terms:
    """Return the terms of the account; raise UnknownAccount if there is none of that name."""
    if name not in terms:
        raise UnknownAccount(f"the ledger has no account {name!r}: open it first, or check the name")
    return terms[name]


def find_reached(name: str, terms: Mapping[str, Terms]) -> tuple[str, ...]:
    """Return the account and every other one that is charged with it, each once."""
    return find_reached_by_each([name], terms)[name]


def find_reached_by_each(names: Iterable[str], terms: Mapping[str, Terms]) -> dict[str, tuple[str, ...]]:
    """Return the accounts that each one reaches; the relations of all accounts are read once."""
    carriers: dict[str, list[str]] = {}
    for other, known in terms.items():
        for carried in known.overlaps:
            carriers.setdefault(carried, []).append(other)
    return {name: _follow_reach(name, terms, carriers) for name in names}


def find_carried(new: Terms, terms: Mapping[str, Terms]) -> tuple[str, ...]:
    """Return the accounts whose charges a new account takes over; none that another of them carries already."""
    kept: list[str] = []
    for name in new.overlaps:
        if not set(kept) & set(find_reached(name, terms)):
            # Of accounts that reach each other the first one stays.
            kept = [*(other for other in kept if name not in find_reached(other, terms)), name]
    return tuple(kept)


def require_sound(new: Terms, terms: Mapping[str, Terms]) -> None:
    """Refuse a new account after which no account sees all charges on its source."""
    for other in (*new.overlaps, *([new.parent] if new.parent else [])):
        _require_alike(new, other, terms)
    if new.parent in new.overlaps:
        raise InvalidArgument("overlaps", f"{new.parent} is the parent already: leave it out of overlaps")
    others = [name for name, known in terms.items() if known.source == new.source and _are_alike(new, known)]
    if others and not _find_common([*others, new.name], {**terms, new.name: new}):
        raise InvalidArgument(
            "overlaps",
            f"the source {new.source!r} has the account{'s' if len(others) > 1 else ''} {', '.join(others)} already: "
            f"say overlaps={others!r}, so that {new.name} carries those charges too, or name one as parent",
        )


def find_tops(name: str, terms: Mapping[str, Terms]) -> tuple[str, ...]:
    """Return the accounts that see all charges on this account's source; the account itself first if it does."""
    alike = [
        other for other, known in terms.items() if known.source == terms[name].source and _are_alike(terms[name], known)
    ]
    return _find_common(alike, terms)


def find_beside(name: str, terms: Mapping[str, Terms]) -> tuple[str, ...]:
    """Return the accounts that may be charged for the same data without those that see all of its source.

    That is those on the same source for another unit or adjacency, and parents on another source: their data
    include this account's.
    """
    own = terms[name]
    others = [other for other, known in terms.items() if known.source == own.source and not _are_alike(own, known)]
    parents = [each for each in _find_ancestors(name, terms) if terms[each].source != own.source]
    return (*others, *parents)


def find_unreached(name: str, terms: Mapping[str, Terms]) -> tuple[str, ...]:
    """Return which accounts on the same source, for other units or adjacencies, a charge to this one does not reach.

    Of each unit and adjacency it is one that sees all charges on the source.
    """
    own, reached = require_known(name, terms), set(find_reached(name, terms))
    kinds: dict[tuple[str, str], str] = {}
    for other, known in terms.items():
        if known.source == own.source and not _are_alike(own, known):
            kinds.setdefault((known.unit, known.adjacency), other)
    tops = (find_tops(other, terms) for other in kinds.values())
    return tuple(found[0] for found in tops if not reached.intersection(found))


def _find_ancestors(name: str, terms: Mapping[str, Terms]) -> list[str]:
    found: list[str] = []
    parent = terms[name].parent
    while parent is not None and parent not in found:
        found.append(parent)
        parent = terms[parent].parent
    return found


def _find_common(names: Iterable[str], terms: Mapping[str, Terms]) -> tuple[str, ...]:
    chains = [find_reached(name, terms) for name in names]
    return tuple(account for account in chains[0] if all(account in chain for chain in chains))


def _follow_reach(name: str, terms: Mapping[str, Terms], carriers: Mapping[str, list[str]]) -> tuple[str, ...]:
    found = [name]
    for account in found:
        parent = require_known(account, terms).parent
        above = [*([parent] if parent else []), *carriers.get(account, ())]
        found.extend(other for other in above if other not in found)
    return tuple(found)


def _require_alike(new: Terms, other: str, terms: Mapping[str, Terms]) -> None:
    if other not in terms:
        raise UnknownAccount(f"the ledger has no account {other!r} that {new.name} could refer to: open it first")
    if not _are_alike(new, terms[other]):
        raise InvalidArgument(
            "unit",
            f"{new.name} ({new.unit}, {new.adjacency}) cannot share charges with {other} "
            f"({terms[other].unit}, {terms[other].adjacency}): promises of different kinds are never added up; "
            "give both the same unit and adjacency, or leave out parent and overlaps",
        )


def _are_alike(one: Terms, other: Terms) -> bool:
    return (one.unit, one.adjacency) == (other.unit, other.adjacency)
