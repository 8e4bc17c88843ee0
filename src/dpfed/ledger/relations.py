"""Which accounts a charge reaches: parents, and accounts on the same data that carry the first one's charges.

A budget belongs to data and unit. All accounts on one source must therefore lead to one that sees
everything: a later account *overlaps* the earlier ones (and carries their charges), or has one of them as
its *parent* (and charges that too).

What hides which records one client has hides each of them as well: under replace-one an account of unit client may pass
its charges on to one of unit record or person. No other promises of different kinds are ever added up, and the account
that sees everything has the unit and adjacency of those that lead to it: one for records says nothing of whole clients.

>>> ward = Terms("ward", 4.0, 1e-5, parent="hospital")
>>> find_reached("ward", {"ward": ward, "hospital": Terms("hospital", 8.0, 1e-5)})
('ward', 'hospital')
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from dpfed.checks import REPLACE_ONE
from dpfed.errors import InvalidArgument, UnknownAccount
from dpfed.guarantee import CLIENT
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
    for other in new.overlaps:
        _require_same_kind(new, _find_other(new, other, terms), is_carried=True)
    if new.parent:
        _require_same_kind(new, _find_other(new, new.parent, terms), is_carried=False)
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

    That is those on the same source for another unit or adjacency that do not pass their charges on to it, and parents
    on another source: their data include this account's.
    """
    own = terms[name]
    others = [other for other, known in terms.items() if known.source == own.source and not _are_alike(own, known)]
    others = [other for other in others if name not in find_reached(other, terms)]
    parents = [each for each in _find_ancestors(name, terms) if terms[each].source != own.source]
    return (*others, *parents)


def find_unreached(names: Iterable[str], terms: Mapping[str, Terms]) -> dict[str, tuple[str, ...]]:
    """Return which accounts on the same source, for other units or adjacencies, a charge to each one does not reach.

    Of each unit and adjacency it is one that sees all charges on the source. An account that carries the charges of one
    for whole clients is refused: the other one must be charged, and what it is charged is carried.
    """
    kinds: dict[str, dict[tuple[str, str], str]] = {}
    for other, known in terms.items():
        kinds.setdefault(known.source, {}).setdefault(_kind(known), other)
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        own = require_known(name, terms)
        others = [other for kind, other in kinds[own.source].items() if kind != _kind(own)]
        tops = [find_tops(other, terms) for other in others]
        reached = set(find_reached(name, terms)) if tops else set()
        found[name] = tuple(each[0] for each in tops if not reached.intersection(each))
        _require_lowest(name, found[name], terms)
    return found


def find_uncarried(names: Iterable[str], terms: Mapping[str, Terms]) -> dict[str, tuple[str, ...]]:
    """Return the accounts of unit client under replace-one on each one's data that charge it nothing, and should.

    They should whatever the adjacency of the account is; if it is another, it cannot carry them. The data of an account
    include those of all that reach it: its children's, and those it carries.
    """
    whole: dict[str, list[str]] = {}
    for other, known in terms.items():
        if _kind(known) == (CLIENT, REPLACE_ONE):
            whole.setdefault(known.source, []).append(other)
    below = _list_below(terms) if whole else {}
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        own = require_known(name, terms)
        sources = dict.fromkeys(terms[each].source for each in _follow([name], below)) if whole else ()
        others = [] if own.unit == CLIENT else [other for source in sources for other in whole.get(source, ())]
        tops = set(find_tops(name, terms)) if others else set()
        found[name] = tuple(other for other in others if not tops.intersection(find_reached(other, terms)))
    return found


def find_including(sources: Collection[str], terms: Mapping[str, Terms]) -> tuple[str, ...]:
    """Return the accounts whose data include one of these sources."""
    on_them = [name for name, known in terms.items() if known.source in sources]
    above = find_reached_by_each(on_them, terms)
    return tuple(dict.fromkeys(reached for name in on_them for reached in above[name]))


def _list_below(terms: Mapping[str, Terms]) -> dict[str, list[str]]:
    """Return the accounts whose charges reach each one directly."""
    below = {name: list(known.overlaps) for name, known in terms.items()}
    for name, known in terms.items():
        if known.parent:
            below[known.parent].append(name)
    return below


def _follow(names: Sequence[str], links: Mapping[str, Sequence[str]]) -> list[str]:
    found = list(names)
    for name in found:
        found.extend(other for other in links[name] if other not in found)
    return found


def _require_lowest(name: str, others: Iterable[str], terms: Mapping[str, Terms]) -> None:
    """Refuse an account that a charge to one of the others reaches: both would be charged, and this one twice."""
    for other in others:
        if name in find_reached(other, terms):
            message = f"account {name} carries the charges of {other}, which is for one {terms[other].unit} of the same"
            raise InvalidArgument("account", f"{message} data and would not be charged: name {other} in its place")


def _find_ancestors(name: str, terms: Mapping[str, Terms]) -> list[str]:
    found: list[str] = []
    parent = terms[name].parent
    while parent is not None and parent not in found:
        found.append(parent)
        parent = terms[parent].parent
    return found


def _find_common(names: Sequence[str], terms: Mapping[str, Terms]) -> tuple[str, ...]:
    """Return the accounts that accounts of one kind all reach and that are of this kind too."""
    chains = [find_reached(name, terms) for name in names]
    alike = [account for account in chains[0] if _are_alike(terms[account], terms[names[0]])]
    return tuple(account for account in alike if all(account in chain for chain in chains))


def _follow_reach(name: str, terms: Mapping[str, Terms], carriers: Mapping[str, list[str]]) -> tuple[str, ...]:
    found = [name]
    for account in found:
        parent = require_known(account, terms).parent
        above = [*([parent] if parent else []), *carriers.get(account, ())]
        found.extend(other for other in above if other not in found)
    return tuple(found)


def _find_other(new: Terms, other: str, terms: Mapping[str, Terms]) -> Terms:
    if other not in terms:
        raise UnknownAccount(f"the ledger has no account {other!r} that {new.name} could refer to: open it first")
    return terms[other]


def _require_same_kind(new: Terms, other: Terms, *, is_carried: bool) -> None:
    """Refuse charges between two accounts that the one they reach does not promise anything for."""
    charged, reached = (other, new) if is_carried else (new, other)
    if not _are_alike(charged, reached) and not _implies(charged, reached):
        raise InvalidArgument(
            "unit",
            f"{new.name} ({new.unit}, {new.adjacency}) cannot share charges with {other.name} "
            f"({other.unit}, {other.adjacency}): promises of different kinds are never added up; "
            "give both the same unit and adjacency, or leave out parent and overlaps",
        )


def _implies(charged: Terms, reached: Terms) -> bool:
    """Return whether a charge for the one holds for the other: another client in its place has other records too."""
    return charged.unit == CLIENT and charged.adjacency == reached.adjacency == REPLACE_ONE


def _are_alike(one: Terms, other: Terms) -> bool:
    return _kind(one) == _kind(other)


def _kind(terms: Terms) -> tuple[str, str]:
    return terms.unit, terms.adjacency
