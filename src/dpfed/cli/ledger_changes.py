"""``dpfed ledger open``, ``top-up``, ``freeze``, ``unfreeze`` and ``release``: what writes into a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import ledger_access, run
from dpfed.cli.ledger_access import ACCOUNT
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from datetime import datetime

PROMISE = "The promise"
DATA = "The data"
RESTORED = "After a restore"


@click.command("open", cls=Command)
@click.argument("account")
@run.option("--epsilon", type=float, required=True, section=PROMISE, help="The cap on ε.")
@run.option("--delta", type=float, required=True, section=PROMISE, help="The δ at which it is kept.")
@run.option(
    "--unit",
    type=click.Choice(["record", "person", "client"]),
    default="record",
    show_default=True,
    section=PROMISE,
    help="What is protected.",
)
@run.option(
    "--adjacency",
    type=click.Choice(["add_remove", "replace_one"]),
    default="add_remove",
    show_default=True,
    section=PROMISE,
    help="What makes two data sets neighbours.",
)
@run.option("--order", "orders", type=float, multiple=True, section=PROMISE, help="A Rényi order (repeatable).")
@run.option(
    "--expires",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    section=PROMISE,
    help="Last day (UTC) on which it can be charged; nothing is refunded.",
)
@run.option("--owner", default="", section=ACCOUNT, help="Who answers for the data.")
@run.option("--purpose", default="", section=ACCOUNT, help="What it may be used for.")
@run.option("--label", "labels", multiple=True, metavar="KEY=VALUE", section=ACCOUNT, help="Anything (repeatable).")
@run.option("--source", section=DATA, help="A name for the data; the account's own by default.")
@run.option(
    "--fingerprint",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    section=DATA,
    help="A file with the data, known again by a keyed fingerprint.",
)
@run.option("--parent", section=DATA, help="An account that is charged too.")
@run.option("--overlaps", multiple=True, section=DATA, help="An account on the same data, carried here (repeatable).")
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
    """Open an account; makes the ledger if there is none.

    \b
      dpfed ledger open icu --epsilon 8 --delta 1e-5 --owner dpo
    """
    if source is not None and fingerprint is not None:
        raise click.UsageError("give --source or --fingerprint, not both")
    settled: dict[str, Any] = {
        "labels": ledger_access.read_labels(labels),
        "source": source if fingerprint is None else fingerprint,
        "orders": orders or None,
        "expires": None if expires is None else expires.date(),
    }
    with ledger_access.reach(url, create=True) as book:
        book.open(account, **terms, **settled)
        ledger_access.say_done(book, account, "opened", as_json)


@click.command(cls=Command)
@click.argument("run_name", metavar="RUN")
@ledger_access.reason
@ledger_access.common
def release(run_name: str, reason: str, url: str, as_json: bool) -> None:
    """Return what a run that died never committed.

    What it committed stays spent. A run whose process still lives is refused.
    """
    from dpfed.cli.show import print_json, say

    with ledger_access.reach(url) as book:
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
    with ledger_access.reach(url) as book:
        book.freeze(account, reason=reason)
        ledger_access.say_done(book, account, "frozen", as_json)


@click.command(cls=Command)
@click.argument("account")
@ledger_access.reason
@run.option("--steward", section=RESTORED, help="Who answers for what may be missing; the statement shows it.")
@run.option("--head", section=RESTORED, help="The newest head that anybody has kept; it must be the backup's own.")
@ledger_access.common
def unfreeze(account: str, reason: str, head: str | None, steward: str | None, url: str, as_json: bool) -> None:
    """Let an account be charged again.

    After a restore this needs --steward; give --head too, if anybody has kept one.
    """
    with ledger_access.reach(url) as book:
        book.unfreeze(account, reason=reason, head=head, steward=steward)
        ledger_access.say_done(book, account, "unfrozen", as_json)


@click.command("accept-clock", cls=Command)
@ledger_access.reason
@ledger_access.common
def accept_clock(reason: str, url: str, as_json: bool) -> None:
    """Say that this machine's clock is right, although the last entry is later.

    Entries go on saying the later time until the clock has reached it, so nothing that expired comes back.
    """
    from dpfed.cli.show import print_json, say

    with ledger_access.reach(url) as book:
        book.accept_clock(reason=reason)
        head = str(book.head())
    if as_json:
        return print_json({"done": "clock accepted", "head": head})
    return say("accepted this machine's clock; charges go on")


@click.command("top-up", cls=Command)
@click.argument("account")
@run.option("--epsilon", type=float, required=True, section=ACCOUNT, help="By how much the cap on ε is raised.")
@ledger_access.reason
@ledger_access.common
def top_up(account: str, epsilon: float, reason: str, url: str, as_json: bool) -> None:
    """Raise an account's cap; its statement is then for the new one."""
    with ledger_access.reach(url) as book:
        book.top_up(account, epsilon=epsilon, reason=reason)
        ledger_access.say_done(book, account, "topped up", as_json)
