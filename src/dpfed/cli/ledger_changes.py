"""``dpfed ledger open``, ``top-up``, ``freeze``, ``unfreeze``, ``release``, ``accept-clock``: write into a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import ledger_access, options
from dpfed.cli.ledger_access import ACCOUNT
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from datetime import datetime

PROMISE = "The promise"
DATA = "The data"
RESTORED = "After a restore"


@click.command("open", cls=Command)
@click.argument("account")
@options.option("--epsilon", type=float, required=True, section=PROMISE, help="The cap on ε, over all runs.")
@options.option("--delta", type=float, required=True, section=PROMISE, help="The δ at which ε is measured.")
@options.option(
    "--unit",
    type=click.Choice(["record", "person", "client"]),
    default="record",
    show_default=True,
    section=PROMISE,
    help="Whom the account protects.",
)
@options.option(
    "--adjacency",
    type=click.Choice(["add_remove", "replace_one"]),
    default="add_remove",
    show_default=True,
    section=PROMISE,
    help="Neighbouring data sets: one unit more or less, or one replaced.",
)
@options.option(
    "--order",
    "orders",
    type=float,
    multiple=True,
    section=PROMISE,
    help="A Rényi order of the filter (repeatable).  [default: chosen by cap and δ]",
)
@options.option(
    "--expires",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    section=PROMISE,
    help="Last day (UTC) on which it can be charged; nothing is refunded afterwards.",
)
@options.option("--owner", default="", section=ACCOUNT, help="Who answers for the data.")
@options.option("--purpose", default="", section=ACCOUNT, help="What the data may be used for.")
@options.option(
    "--label", "labels", multiple=True, metavar="KEY=VALUE", section=ACCOUNT, help="Any further note (repeatable)."
)
@options.option("--source", section=DATA, help="A name for the data.  [default: the account's name]")
@options.option(
    "--fingerprint",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    section=DATA,
    help="A file with the data, recognised later by a keyed fingerprint.",
)
@options.option("--parent", section=DATA, help="An account that is charged together with this one.")
@options.option(
    "--overlaps",
    multiple=True,
    section=DATA,
    help="An account on the same data, whose charges are copied here (repeatable).",
)
@ledger_access.common
def open_account(
    account: str,
    url: str,
    as_json: bool,
    labels: tuple[str, ...],
    source: str | None,
    fingerprint: Path | None,
    orders: tuple[float, ...],
    expires: datetime | None,
    **terms: Any,
) -> None:
    """Open an account; make the ledger if there is none.

    \b
      dpfed ledger open icu --epsilon 8 --delta 1e-5 --owner dpo
    """
    if source is not None and fingerprint is not None:
        raise click.UsageError("--source and --fingerprint are two names of the same data: give one of them")
    settled: dict[str, Any] = {
        "labels": ledger_access.read_labels(labels),
        "source": source if fingerprint is None else fingerprint,
        "orders": orders or None,
        "expires": None if expires is None else expires.date(),
    }
    with ledger_access.open_ledger(url, create=True) as book:
        book.open(account, **terms, **settled)
        ledger_access.say_done(book, account, "opened", as_json)


@click.command(cls=Command)
@click.argument("run_name", metavar="RUN")
@ledger_access.reason
@ledger_access.common
def release(run_name: str, reason: str, url: str, as_json: bool) -> None:
    """Release what a dead run reserved and never committed.

    What it committed stays spent. A run whose process is alive is refused.
    """
    from dpfed.cli.show import print_json, say

    with ledger_access.open_ledger(url) as book:
        left = sum(each.left for each in book.reservations() if each.run == run_name)
        book.release(run_name, reason=reason)
        head = str(book.head())
    if as_json:
        return print_json({"run": run_name, "released": left, "head": head})
    return say(f"released {left:,} that {run_name} never committed; what it committed stays spent")


@click.command(cls=Command)
@click.argument("account")
@ledger_access.reason
@ledger_access.common
def freeze(account: str, reason: str, url: str, as_json: bool) -> None:
    """Stop every charge on an account."""
    with ledger_access.open_ledger(url) as book:
        book.freeze(account, reason=reason)
        ledger_access.say_done(book, account, "frozen", as_json)


@click.command(cls=Command)
@click.argument("account")
@ledger_access.reason
@options.option(
    "--steward", section=RESTORED, help="Who answers for entries that may be missing; the statement shows the name."
)
@options.option(
    "--head", section=RESTORED, help="The newest head that anybody has kept; it must be that of the backup."
)
@ledger_access.common
def unfreeze(account: str, reason: str, head: str | None, steward: str | None, url: str, as_json: bool) -> None:
    """Allow charges on a frozen account again.

    After a restore this needs --steward; give --head too, if anybody has kept one.
    """
    with ledger_access.open_ledger(url) as book:
        book.unfreeze(account, reason=reason, head=head, steward=steward)
        ledger_access.say_done(book, account, "unfrozen", as_json)


@click.command("accept-clock", cls=Command)
@ledger_access.reason
@ledger_access.common
def accept_clock(reason: str, url: str, as_json: bool) -> None:
    """Accept this machine's clock, although the last entry is later.

    New entries bear the later time until the clock has reached it, so no expired account comes back.
    """
    from dpfed.cli.show import print_json, say

    with ledger_access.open_ledger(url) as book:
        book.accept_clock(reason=reason)
        head = str(book.head())
    if as_json:
        return print_json({"done": "clock accepted", "head": head})
    return say("accepted this machine's clock; accounts can be charged again")


@click.command("top-up", cls=Command)
@click.argument("account")
@options.option("--epsilon", type=float, required=True, section=ACCOUNT, help="By how much the cap on ε is raised.")
@ledger_access.reason
@ledger_access.common
def top_up(account: str, epsilon: float, reason: str, url: str, as_json: bool) -> None:
    """Raise an account's cap; its statement is then for the new cap."""
    with ledger_access.open_ledger(url) as book:
        book.top_up(account, epsilon=epsilon, reason=reason)
        ledger_access.say_done(book, account, "topped up", as_json)
