"""Charges that are spent at once, without a reservation, and how often each event was charged in all.

An account that is opened later *carries* what its data was used for before; what happened without asking is *recorded*
after the fact.

>>> import tempfile
>>> from dpfed.events import Gaussian
>>> from dpfed.ledger.ledger import Ledger
>>> with tempfile.TemporaryDirectory() as folder, Ledger(f"sqlite:///{folder}/ledger.db") as ledger:
...     icu = ledger.open("icu", epsilon=8.0, delta=1e-5, opening={Gaussian(4.0): 3})
...     with ledger._store.reading() as link:
...         count_charges(link, "icu")
{Gaussian(noise_multiplier=4.0): 3}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dpfed import events
from dpfed.events import Event
from dpfed.ledger import amounts
from dpfed.ledger.items import dump_event
from dpfed.ledger.journal import Journal
from dpfed.ledger.rows import Draft, compact
from dpfed.ledger.rules import AccountState, Terms
from dpfed.ledger.store.schema import ENTRIES


def spend(
    journal: Journal,
    kind: str,
    terms: Terms,
    origin: str,
    counts: Mapping[Event, int],
    run: str | None = None,
    body: Mapping[str, Any] | None = None,
) -> AccountState:
    """Append an entry of that kind for each event, and return the account's state after them."""
    state = journal.states([terms.name])[terms.name]
    for event, count in counts.items():
        cost = terms.cost(event)
        state = state.after(kind, count, cost)
        draft = Draft(
            kind,
            terms.name,
            run,
            origin=origin,
            event=dump_event(event),
            times=count,
            cost=compact(amounts.texts(cost)),
            state=state.dumps(),
            body=compact(body or {}),
        )
        journal.move(state, draft)
    return state


def count_charges(link: Connection, name: str, *, with_reserved: bool = False) -> dict[Event, int]:
    """Return how often each event was charged to the account; on request with what is still reserved."""
    bag: Counter[Event] = Counter()
    for (_, event), total in count_by_run(link, name, with_reserved=with_reserved).items():
        bag[event] += total
    return {event: total for event, total in bag.items() if total}


def count_by_run(link: Connection, name: str, *, with_reserved: bool = False) -> dict[tuple[str | None, Event], int]:
    """Return how often each run charged each event to the account; None is what no run charged."""
    # What is still reserved is what was reserved and neither committed (counted by itself) nor released.
    weights = {"carried": 1, "recorded": 1, "committed": 1}
    if with_reserved:
        weights = {"carried": 1, "recorded": 1, "reserved": 1, "released": -1}
    count = sa.func.sum(sa.case(weights, value=ENTRIES.c.kind, else_=0) * ENTRIES.c.times)
    found = link.execute(
        sa.select(ENTRIES.c.run, ENTRIES.c.event, count)
        .where(ENTRIES.c.account == name, ENTRIES.c.kind.in_(weights))
        .group_by(ENTRIES.c.run, ENTRIES.c.event)
    )
    bag: Counter[tuple[str | None, Event]] = Counter()
    for run, text, total in found:
        bag[run, events.loads(text)] += int(total)
    return {key: total for key, total in bag.items() if total}
