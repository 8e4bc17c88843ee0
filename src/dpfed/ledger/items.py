"""What a reservation is made of: one event on one account each, and the entries that move it.

>>> from dpfed.events import Gaussian
>>> from dpfed.ledger.rows import GENESIS
>>> event = dump_event(Gaussian(4.0))
>>> draft = Draft("reserved", "icu", "study-12", origin="icu", event=event, times=10, left=10, cost='["5"]')
>>> Item.of(draft.row(7, "2026-01-01T00:00:00.000000Z", GENESIS)).cost
(5,)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dpfed import events
from dpfed.events import Event
from dpfed.ledger import amounts, relations
from dpfed.ledger.admission import Verdict
from dpfed.ledger.amounts import Amounts
from dpfed.ledger.inputs import Charges
from dpfed.ledger.journal import Journal
from dpfed.ledger.rows import Draft, Row, compact
from dpfed.ledger.rules import AccountState


@dataclass(frozen=True)
class Item:
    """One event reserved on one account; ``origin`` is the account by whose name it is committed."""

    number: int
    account: str
    origin: str
    event: Event
    text: str
    count: int
    cost: Amounts
    is_extension: bool

    @classmethod
    def of(cls, row: Row) -> Item:
        """Return the item that a reserved entry made."""
        cost = amounts.from_texts(json.loads(str(row.cost)))
        event = events.loads(str(row.event))
        return cls(
            row.seq,
            str(row.account),
            str(row.origin),
            event,
            str(row.event),
            int(row.times or 0),
            cost,
            "extended" in row.details(),
        )


def add_up(items: Iterable[Item]) -> dict[Event, int]:
    """Return how often each event was reserved in all."""
    plan: dict[Event, int] = {}
    for item in items:
        plan[item.event] = plan.get(item.event, 0) + item.count
    return plan


@lru_cache(maxsize=4096)
def dump_event(event: Event) -> str:
    """Return the canonical JSON text of the event."""
    return events.dumps(event)


def reserve_items(
    journal: Journal, run: str, charges: Charges, verdicts: Mapping[str, Verdict], *, is_extension: bool = False
) -> list[Item]:
    """Append the entries of admitted charges and return their items; an extension was chosen later than the plan."""
    states = {account: verdict.state for account, verdict in verdicts.items()}
    made = []
    for origin, reached in relations.find_reached_by_each(charges, journal.terms).items():
        for account in reached:
            for event, count in charges[origin].items():
                item, states[account] = _reserve(
                    journal, run, origin, states[account], verdicts[account], event, count, is_extension
                )
                made.append(item)
    return made


def _reserve(
    journal: Journal,
    run: str,
    origin: str,
    state: AccountState,
    verdict: Verdict,
    event: Event,
    count: int,
    is_extension: bool,
) -> tuple[Item, AccountState]:
    cost = verdict.terms.cost(event)
    body: dict[str, Any] = {"extended": True} if is_extension else {}
    if verdict.plan is not None:
        body["plan"] = verdict.plan
    after = state.after("reserved", count, cost, body)
    draft = Draft(
        "reserved",
        verdict.terms.name,
        run,
        origin=origin,
        event=dump_event(event),
        times=count,
        left=count,
        cost=compact(amounts.texts(cost)),
        state=after.dumps(),
        body=compact(body),
    )
    row = journal.move(after, draft)
    return Item(row.seq, verdict.terms.name, origin, event, dump_event(event), count, cost, is_extension), after


def move_item(
    journal: Journal, state: AccountState, kind: str, item: Item, count: int, left: int, run: str, body: str = "{}"
) -> AccountState:
    """Append that `count` of the item is committed or released, and return the account's state after it."""
    after = state.after(kind, count, item.cost)
    draft = Draft(kind, item.account, run, item.number, item.origin, item.text, count, left, None, after.dumps(), body)
    journal.move(after, draft)
    return after


def release_items(journal: Journal, items: list[Item], reason: str, run: str) -> None:
    """Append the release of everything that is left of the items."""
    left = {number: rest for number, rest in journal.left(item.number for item in items).items() if rest}
    body = compact({"reason": reason}) if reason else "{}"
    for item in items:
        if item.number in left:
            state = journal.states([item.account])[item.account]
            move_item(journal, state, "released", item, left[item.number], 0, run, body)
