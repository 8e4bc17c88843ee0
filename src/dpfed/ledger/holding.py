"""Who holds a run, and what the run has reserved: looked up before a process goes on with it.

>>> require_plan("study-12", [], wanted=None)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection

from dpfed.errors import InvalidArgument, LeaseHeld, UnknownRun
from dpfed.ledger import lease
from dpfed.ledger.inputs import Charges
from dpfed.ledger.items import Item, add_up
from dpfed.ledger.journal import Journal, last_lease, last_of_items, rows
from dpfed.ledger.rows import Draft, Row, compact
from dpfed.ledger.store.schema import ENTRIES, HELD


def take_lease(journal: Journal, run: str, holder: Mapping[str, Any] | None = None, *, marks: int | None = None) -> int:
    """Append that this process holds the run, and return the entry's number; `marks` counts steps of the run."""
    return journal.append(Draft("leased", run=run, times=marks, body=compact(holder or lease.this_process()))).seq


def read_first_lease(link: Connection, run: str) -> Row | None:
    """Return the entry by which the run was first taken, together with its reservation."""
    first = next(rows(link, HELD, ENTRIES.c.run == run, ENTRIES.c.kind == "leased"), None)
    return None if first is None else first.check()


def read_items(link: Connection, run: str) -> list[Item]:
    """Return what the run has reserved."""
    return [Item.of(row.check()) for row in rows(link, HELD, ENTRIES.c.run == run, ENTRIES.c.kind == "reserved")]


def require_free(journal: Journal, run: str, items: list[Item]) -> None:
    """Refuse a run that another living process holds."""
    taken = last_lease(journal.link, run)
    if taken is None:
        raise UnknownRun(f"the ledger has no run {run!r}: reserve for it first, or check the name")
    holder = taken.details()
    latest = last_of_items(journal.link, [item.number for item in items])
    age = lease.age([taken.at, *(row.at for row in latest)])
    if not lease.is_me(holder) and lease.is_alive(holder, age):
        raise LeaseHeld(
            f"run {run!r} is held by {lease.describe(holder)}, which is alive: end it first, or wait for it"
        )


def require_plan(run: str, items: list[Item], wanted: Charges | None) -> None:
    """Refuse a run that has reserved another plan than is wanted, if one is."""
    for account, plan in (wanted or {}).items():
        if add_up(item for item in items if item.origin == account == item.account) != plan:
            raise InvalidArgument(
                "run",
                f"run {run!r} reserved another plan on {account} than is asked for now: "
                "go on with the same plan, or choose another name for the run",
            )
