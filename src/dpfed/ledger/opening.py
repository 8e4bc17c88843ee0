"""Opening an account: its terms, the data it stands for, and what was released from that data before.

>>> fingerprint(b"key", b"patients") == fingerprint(b"key", b"patients")
True
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import sqlalchemy as sa

from dpfed import checks
from dpfed.accounting.filter import RenyiFilter
from dpfed.errors import BudgetExceeded, InvalidArgument
from dpfed.events import Event
from dpfed.guarantee import Guarantee
from dpfed.ledger import amounts, inputs, relations, seals
from dpfed.ledger.journal import Journal
from dpfed.ledger.rows import Draft, compact
from dpfed.ledger.rules import AccountState, Terms
from dpfed.ledger.spending import count_charges, spend
from dpfed.ledger.store.schema import SOURCES
from dpfed.ledger.wholes import require_carried


def make_terms(
    name: str,
    epsilon: float,
    delta: float,
    unit: str,
    adjacency: str,
    *,
    orders: Any = None,
    owner: str = "",
    purpose: str = "",
    parent: str | None = None,
    overlaps: Any = (),
    labels: Any = MappingProxyType({}),
    expires: Any = None,
) -> Terms:
    """Return the checked terms of an account; its source is settled within the transaction."""
    promise = Guarantee(checks.positive(epsilon=epsilon), checks.positive_probability(delta=delta), unit, adjacency)
    if orders is not None and (isinstance(orders, str | bytes) or not isinstance(orders, Iterable)):
        raise InvalidArgument("orders", f"orders must be numbers above 1, or None, got {orders!r:.80}")
    return Terms(
        name=inputs.name(account=name),
        epsilon=promise.epsilon,
        delta=promise.delta,
        unit=promise.unit,
        adjacency=promise.adjacency,
        orders=_choose_orders(promise, orders),
        owner=inputs.text(owner=owner),
        purpose=inputs.text(purpose=purpose),
        parent=None if parent is None else inputs.name(parent=parent),
        overlaps=_check_names(overlaps),
        labels=inputs.labels(labels),
        expires=inputs.expiry(expires),
    )


def _choose_orders(promise: Guarantee, orders: Iterable[float] | None) -> tuple[float, ...]:
    """Return the orders, or the filter's own; refuse a promise that leaves no room that the ledger can count."""
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
            f"epsilon = {promise.epsilon:g} at delta = {promise.delta:g} is beyond what a ledger can count: "
            "give an epsilon between 1e-9 and 1e9, or declare orders",
        )
    return declared


def open_account(journal: Journal, terms: Terms, opening: Mapping[Event, int], known: Mapping[str, Terms]) -> None:
    """Append the account and what its data was used for before, also to every account that it reaches.

    `known` are the accounts there are, with those that the same transaction opened.
    """
    if terms.name in known:
        raise InvalidArgument("account", f"the ledger has an account {terms.name!r} already: choose another name")
    relations.require_sound(terms, known)
    everyone = {**known, terms.name: terms}
    require_carried(journal, terms.name, everyone)
    # What others still hold reserved may be committed at any time, so it is carried too.
    carried = {
        name: count_charges(journal.link, name, with_reserved=True) for name in relations.find_carried(terms, known)
    }
    state = AccountState.new(terms)
    journal.move(state, Draft("opened", terms.name, state=state.dumps(), body=compact(terms.to_dict())))
    for origin, bag in [*carried.items(), *([(terms.name, opening)] if opening else [])]:
        seen_by = relations.find_reached(origin, known) if origin != terms.name else ()
        for account in relations.find_reached(terms.name, everyone):
            if account not in seen_by or account == terms.name:
                _carry(journal, everyone[account], origin, bag)


def settle_source(journal: Journal, terms: Terms, source: Any) -> Terms:
    """Return the terms with the source's name: as declared, or that of the data with this fingerprint."""
    if source is None or isinstance(source, str):
        return replace(terms, source=f"declared:{inputs.name(source=terms.name if source is None else source)}")
    link = journal.link
    seals.require_sound(link, journal.terms.values(), journal.seal())
    key = seals.read_key(link)
    mark = fingerprint(bytes.fromhex(key), source)
    known = {found: name for name, found in seals.read_fingerprints(link).items()}
    if mark not in known:
        known[mark] = f"fingerprint:{len(known) + 1}"
        link.execute(sa.insert(SOURCES), {"name": known[mark], "fingerprint": mark})
    return replace(terms, source=known[mark], key_digest=seals.digest(key), source_digest=seals.digest(mark))


def fingerprint(key: bytes, data: Any) -> str:
    """Return a keyed digest of the data: equal data gives equal digests, and without the key it reveals nothing."""
    mark = hmac.new(key, digestmod=hashlib.sha256)
    if isinstance(data, Path):
        _update_from_file(mark, data)
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


def _update_from_file(mark: hmac.HMAC, path: Path) -> None:
    mark.update(b"bytes\0")
    try:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                mark.update(block)
    except (OSError, ValueError) as error:  # a NUL in its name is a ValueError
        why = getattr(error, "strerror", None) or error
        raise InvalidArgument("source", f"source must be a readable file: {why}") from None


def _check_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidArgument("overlaps", f"overlaps must be names of accounts, got {value!r:.80}")
    return tuple(dict.fromkeys(inputs.name(overlaps=item) for item in value))


def _carry(journal: Journal, terms: Terms, origin: str, bag: Mapping[Event, int]) -> None:
    state = spend(journal, "carried", terms, origin, bag)
    if bag and not amounts.fits(state.total, terms.caps(state.cap)):
        spent = amounts.epsilon_of(state.total, terms.delta, terms.orders)
        raise BudgetExceeded(
            f"what was released before costs {terms.name} ε = {spent:.6g} and its cap is {state.cap:g}: "
            "open it with a larger epsilon"
        )
