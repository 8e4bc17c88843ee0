"""Opening an account: its terms, the data it stands for, and what was released from that data before.

>>> fingerprint(b"key", b"patients") == fingerprint(b"key", b"patients")
True
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dpfed import checks, events
from dpfed.accounting.filter import RenyiFilter
from dpfed.errors import BudgetExceeded, InvalidArgument
from dpfed.events import Event
from dpfed.guarantee import Guarantee
from dpfed.ledger import amounts, relations, seals, words
from dpfed.ledger.journal import Journal
from dpfed.ledger.model import State, Terms
from dpfed.ledger.rows import Draft, compact
from dpfed.ledger.schema import ENTRIES, SOURCES


def agreed(name: str, epsilon: float, delta: float, unit: str, adjacency: str, orders: Any, **others: Any) -> Terms:
    """The terms, checked; the source is settled within the transaction."""
    promise = Guarantee(checks.positive(epsilon=epsilon), checks.positive_probability(delta=delta), unit, adjacency)
    if orders is not None and (isinstance(orders, str | bytes) or not isinstance(orders, Iterable)):
        raise InvalidArgument("orders", f"orders must be numbers above 1, or None, got {orders!r:.80}")
    return Terms(
        name=words.name(account=name),
        epsilon=promise.epsilon,
        delta=promise.delta,
        unit=promise.unit,
        adjacency=promise.adjacency,
        orders=_declared(promise, orders),
        owner=words.text(owner=others["owner"]),
        purpose=words.text(purpose=others["purpose"]),
        parent=None if others["parent"] is None else words.name(parent=others["parent"]),
        overlaps=_names(others["overlaps"]),
        labels=words.labels(others["labels"]),
        expires=words.expiry(others["expires"]),
    )


def _declared(promise: Guarantee, orders: Iterable[float] | None) -> tuple[float, ...]:
    """The orders, if they leave room for anything that the ledger can count."""
    try:
        declared = RenyiFilter(promise.epsilon, promise.delta, orders, adjacency=promise.adjacency).orders
        has_room = max(amounts.caps(promise.epsilon, promise.delta, declared)) > 0
    except (ArithmeticError, InvalidArgument):
        if orders is not None:
            raise
        has_room = False
    if not has_room:
        raise InvalidArgument(
            "epsilon",
            f"epsilon = {promise.epsilon:g} at delta = {promise.delta:g} is out of this ledger's range, which is that "
            "of promises: say an epsilon between 1e-9 and 1e9, or declare orders",
        )
    return declared


def open_account(journal: Journal, terms: Terms, opening: Mapping[Event, int], known: Mapping[str, Terms]) -> None:
    """Append the account, what its data was used for before, and the same to every account it reaches.

    `known` are the accounts there are, with those that the same transaction opened.
    """
    if terms.name in known:
        raise InvalidArgument("account", f"the ledger has an account {terms.name!r} already: choose another name")
    relations.require_sound(terms, known)
    everyone = {**known, terms.name: terms}
    carried = _carried(journal.link, relations.carried_from(terms, known))
    state = State.new(terms)
    journal.move(state, Draft("opened", terms.name, state=state.dumps(), body=compact(terms.to_dict())))
    for origin, bag in [*carried.items(), *([(terms.name, opening)] if opening else [])]:
        seen_by = relations.reached(origin, known) if origin != terms.name else ()
        for account in relations.reached(terms.name, everyone):
            if account not in seen_by or account == terms.name:
                _carry(journal, everyone[account], origin, bag)


def settle_source(journal: Journal, terms: Terms, source: Any) -> Terms:
    """Return the terms with the source's name: as declared, or that of the data with this fingerprint."""
    if source is None or isinstance(source, str):
        return replace(terms, source=f"declared:{words.name(source=terms.name if source is None else source)}")
    link = journal.link
    seals.require_sound(link, journal.terms.values(), journal.seal())
    key = seals.key(link)
    mark = fingerprint(bytes.fromhex(key), source)
    known = {found: name for name, found in seals.marks(link).items()}
    if mark not in known:
        known[mark] = f"fingerprint:{len(known) + 1}"
        link.execute(sa.insert(SOURCES), {"name": known[mark], "fingerprint": mark})
    return replace(terms, source=known[mark], key_digest=seals.digest(key), source_digest=seals.digest(mark))


def fingerprint(key: bytes, data: Any) -> str:
    """A keyed digest of the data: equal data gives equal digests, and without the key it tells nothing."""
    mark = hmac.new(key, digestmod=hashlib.sha256)
    if isinstance(data, Path):
        _read_into(mark, data)
    elif isinstance(data, bytes | bytearray | memoryview):
        mark.update(b"bytes\0")
        mark.update(bytes(data))
    elif isinstance(data, np.ndarray) and not data.dtype.hasobject:
        mark.update(f"array\0{data.dtype.str}\0{data.shape}\0".encode())
        mark.update(np.ascontiguousarray(data).tobytes())
    else:
        raise InvalidArgument(
            "source", f"source must be a name, or data as bytes, an array or a Path, got {type(data).__name__}"
        )
    return mark.hexdigest()


def _read_into(mark: hmac.HMAC, path: Path) -> None:
    mark.update(b"bytes\0")
    try:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                mark.update(block)
    except (OSError, ValueError) as error:  # a NUL in its name is a ValueError
        why = getattr(error, "strerror", None) or error
        raise InvalidArgument("source", f"source must be a readable file: {why}") from None


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidArgument("overlaps", f"overlaps must be names of accounts, got {value!r:.80}")
    return tuple(dict.fromkeys(words.name(overlaps=item) for item in value))


def _carried(link: Connection, names: tuple[str, ...]) -> dict[str, dict[Event, int]]:
    """What each account was charged for or still holds reserved: a reservation may be committed at any time."""
    return {name: charged(link, name, with_reserved=True) for name in names}


def charged(link: Connection, name: str, *, with_reserved: bool = False) -> dict[Event, int]:
    """How often each event was charged to the account, equal ones added up."""
    # What is still reserved is what was reserved and neither committed (counted by itself) nor released.
    weights = {"carried": 1, "recorded": 1, "committed": 1}
    if with_reserved:
        weights = {"carried": 1, "recorded": 1, "reserved": 1, "released": -1}
    count = sa.func.sum(sa.case(weights, value=ENTRIES.c.kind, else_=0) * ENTRIES.c.times)
    found = link.execute(
        sa.select(ENTRIES.c.event, count)
        .where(ENTRIES.c.account == name, ENTRIES.c.kind.in_(weights))
        .group_by(ENTRIES.c.event)
    )
    bag: Counter[Event] = Counter()
    for text, total in found:
        bag[events.loads(text)] += int(total)
    return {event: total for event, total in bag.items() if total}


def _carry(journal: Journal, terms: Terms, origin: str, bag: Mapping[Event, int]) -> None:
    state = journal.states([terms.name])[terms.name]
    for event, count in bag.items():
        cost = terms.cost(event)
        state = state.after("carried", count, cost)
        journal.move(
            state,
            Draft(
                "carried",
                terms.name,
                origin=origin,
                event=events.dumps(event),
                times=count,
                cost=compact(amounts.texts(cost)),
                state=state.dumps(),
            ),
        )
    if bag and not amounts.fits(state.total, terms.caps(state.cap)):
        spent = amounts.epsilon_of(state.total, terms.delta, terms.orders)
        raise BudgetExceeded(
            f"what was released before costs {terms.name} ε = {spent:.6g} and its cap is {state.cap:g}: "
            "open it with a larger epsilon"
        )
