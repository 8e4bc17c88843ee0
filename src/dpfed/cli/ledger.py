"""``dpfed ledger``: the accounts of privacy budget, for the people who answer for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dpfed.cli import ledger_access, ledger_backups, ledger_changes, run
from dpfed.cli.ledger_access import many
from dpfed.cli.sections import Command, Group, say_refusal
from dpfed.errors import LedgerCorrupted

FORMATS = {".html": "html", ".htm": "html", ".md": "markdown", ".json": "json"}


@click.group(
    cls=Group,
    sections={
        "Look": ("show", "statement", "reservations", "forecast"),
        "Change": ("open", "top-up", "freeze", "unfreeze", "release", "accept-clock"),
        "Check": ("verify", "head", "export"),
        "Keep": ("backup", "restore"),
    },
)
def ledger() -> None:
    """What each data owner's budget was spent on, and what is left.

    The ledger is sqlite:///ledger.db unless --ledger or DPFED_LEDGER says otherwise; only open makes a new one.
    """


@ledger.command(cls=Command)
@click.argument("account", required=False)
@ledger_access.common
def show(account: str | None, url: str, as_json: bool) -> None:
    """Where every account stands, or one with its terms.

    What is spent is ε at the account's declared order, so a first charge shows much; Used grows evenly.
    """
    from dpfed.cli import ledger_tables
    from dpfed.cli.show import print_json, say
    from dpfed.report.statement import balance_facts

    with ledger_access.reach(url) as book:
        balances = book.accounts() if account is None else (book.balance(account),)
        where, head = book.address, str(book.head())
    if as_json:
        return print_json({"ledger": where, "head": head, "accounts": [balance_facts(each) for each in balances]})
    if account is not None:
        return ledger_tables.show_account(balances[0])
    return ledger_tables.show_accounts(balances) if balances else say(f"{where} has no accounts")


@ledger.command(cls=Command)
@click.argument("account")
@ledger_access.address
@run.option(
    "--format",
    "style",
    type=click.Choice(["terminal", "markdown", "html", "json"]),
    section=run.OUTPUT,
    help="By default that of the file's name, else terminal.",
)
@ledger_access.output
@run.as_json
def statement(account: str, style: str | None, output: Path | None, url: str, as_json: bool) -> None:
    """Every entry of an account, as a bank would send it.

    \b
      dpfed ledger statement icu --output icu.html
    """
    from dpfed.cli import ledger_tables
    from dpfed.cli.show import as_json_text
    from dpfed.report import rendering
    from dpfed.report.statement import facts, page

    with ledger_access.reach(url) as book:
        found = book.statement(account)
        ledger_access.require_other_file(output, book)
    style = "json" if as_json else style or FORMATS.get("" if output is None else output.suffix.lower(), "terminal")
    if style == "terminal" and output is None:
        return ledger_tables.show_statement(page(found))
    made: dict[str, Callable[[], str]] = {
        "terminal": lambda: ledger_tables.statement_text(page(found)),
        "markdown": lambda: rendering.markdown(page(found)),
        "html": lambda: rendering.html(page(found)),
        "json": lambda: as_json_text(facts(found)),
    }
    return ledger_access.deliver(made[style](), output)


@ledger.command(cls=Command)
@run.option("--all", "everyone", is_flag=True, section="The runs", help="Also runs that hold nothing any more.")
@ledger_access.common
def reservations(everyone: bool, url: str, as_json: bool) -> None:
    """The runs that hold something reserved."""
    from dpfed.cli import ledger_tables
    from dpfed.cli.show import print_json, say

    with ledger_access.reach(url) as book:
        found = book.reservations(open_only=not everyone)
    if as_json:
        return print_json({"reservations": [ledger_access.reservation_facts(each) for each in found]})
    return ledger_tables.show_reservations(found) if found else say("no run holds anything reserved")


@ledger.command(cls=Command)
@click.argument("account")
@run.described
@ledger_access.common
def forecast(account: str, url: str, as_json: bool, **described: Any) -> None:
    """How many more such runs an account would admit now.

    By its filter, whatever else is chosen later; nothing is reserved.

    \b
      dpfed ledger forecast icu -z 1 -q 0.01
    """
    from dpfed.cli.show import print_json, say

    event = run.read_run(**described)
    with ledger_access.reach(url) as book:
        count, balance = book.forecast(account, event), book.balance(account)
    if as_json:
        facts = {"account": account, "event": event.to_dict(), "count": count, "status": balance.status}
        return print_json(facts)
    say(f"{count:,} more of {event} would fit {account}")
    if balance.status != "open":
        say(f"but {account} is {balance.status}, and takes no reservation")
    return None


@ledger.command(cls=Command)
@run.option("--head", section="What is checked", help="A head kept elsewhere, which the ledger must contain.")
@run.option(
    "--export",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    section="What is checked",
    help="An exported file instead of the ledger.",
)
@ledger_access.common
@click.pass_context
def verify(context: click.Context, head: str | None, export: Path | None, url: str, as_json: bool) -> None:
    """Recompute the chain, every cost and every balance.

    Exit code 1, and the first bad entry, if something does not add up.
    """
    from dpfed.cli.show import print_json, say
    from dpfed.ledger.rows import Head

    kept = None if head is None else Head.parse(head)
    try:
        found = ledger_access.verified(url, kept) if export is None else ledger_access.verified_export(export, kept)
    except LedgerCorrupted as error:
        if as_json:
            print_json({"is_sound": False, "row": error.row, "message": str(error)})
        say_refusal(str(error))
        context.exit(1)
    if as_json:
        return print_json({"is_sound": True, "rows": found.rows, "accounts": found.accounts, "head": str(found.head)})
    entries, accounts = many(found.rows, "entry", "entries"), many(found.accounts, "account", "accounts")
    say(f"sound: {entries}, {accounts}")
    return say(f"head {found.head}")


@ledger.command(cls=Command)
@ledger_access.common
def head(url: str, as_json: bool) -> None:
    """The number and digest of the last entry.

    Keep a copy where the ledger's administrator cannot write, and give it to verify --head later.
    """
    from dpfed.cli.show import print_json

    with ledger_access.reach(url) as book:
        found = book.head()
    if as_json:
        return print_json({"head": str(found), "sequence": found.sequence, "digest": found.digest})
    return click.echo(str(found))


@ledger.command(cls=Command)
@ledger_access.address
@ledger_access.output
@run.as_json
def export(output: Path | None, url: str, as_json: bool) -> None:
    """Every entry as a line of JSON, for whoever verifies it elsewhere.

    Fingerprints of data, and their key, stay in the ledger. With --output, --json says what was written; without, the
    export itself is JSON.
    """
    from dpfed.cli.show import print_json, say

    with ledger_access.reach(url) as book:
        ledger_access.require_other_file(output, book)
        if output is None:
            return ledger_access.export_to_stdout(book)
        with ledger_access.written(output) as stream:
            book.export(stream)
    found = ledger_access.last_head(output)
    if as_json:
        return print_json({"output": str(output), "rows": found.sequence, "head": str(found)})
    return say(f"wrote {many(found.sequence, 'entry', 'entries')} to {output}")


for command in (
    ledger_changes.open_account,
    ledger_changes.top_up,
    ledger_changes.freeze,
    ledger_changes.unfreeze,
    ledger_changes.release,
    ledger_changes.accept_clock,
    ledger_backups.backup,
    ledger_backups.restore,
):
    ledger.add_command(command)
