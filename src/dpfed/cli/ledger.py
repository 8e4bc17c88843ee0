"""``dpfed ledger``: show, change and check accounts of privacy budget, for the people who answer for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dpfed.cli import ledger_access, ledger_backups, ledger_changes, options
from dpfed.cli.sections import Command, Group, say_refusal
from dpfed.cli.show import format_count
from dpfed.errors import LedgerCorrupted

FORMATS = {".html": "html", ".htm": "html", ".md": "markdown", ".json": "json"}


@click.command(cls=Command)
@click.argument("account", required=False)
@ledger_access.common
def show(account: str | None, url: str, as_json: bool) -> None:
    """Show the balance of every account, or of one with its terms.

    Spent is ε at the account's declared Rényi order, so the first charge looks large; Used grows evenly.
    """
    from dpfed.cli import ledger_tables
    from dpfed.cli.show import print_json, say
    from dpfed.report.statement import collect_balance

    with ledger_access.open_ledger(url) as book:
        balances = book.accounts() if account is None else (book.balance(account),)
        where, head = book.address, str(book.head())
    if as_json:
        return print_json({"ledger": where, "head": head, "accounts": [collect_balance(each) for each in balances]})
    if account is not None:
        return ledger_tables.show_account(balances[0])
    return ledger_tables.show_accounts(balances) if balances else say(f"{where} has no accounts")


@click.command(cls=Command)
@click.argument("account")
@ledger_access.address
@options.option(
    "--format",
    "style",
    type=click.Choice(["terminal", "markdown", "html", "json"]),
    section=options.OUTPUT,
    help="How it is written.  [default: by the ending of --output, else terminal]",
)
@ledger_access.output
@options.as_json
def statement(account: str, style: str | None, output: Path | None, url: str, as_json: bool) -> None:
    """Print every entry of an account, like a bank statement.

    \b
      dpfed ledger statement icu --output icu.html
    """
    from dpfed.cli import ledger_tables
    from dpfed.cli.show import format_json
    from dpfed.report.documents import render_html, render_markdown
    from dpfed.report.statement import collect_facts, make_document, make_page

    with ledger_access.open_ledger(url) as book:
        found = book.statement(account)
        ledger_access.require_other_file(output, book)
    style = "json" if as_json else style or FORMATS.get("" if output is None else output.suffix.lower(), "terminal")
    if style == "terminal" and output is None:
        return ledger_tables.show_statement(make_page(found))
    made: dict[str, Callable[[], str]] = {
        "terminal": lambda: ledger_tables.render_statement(make_page(found)),
        "markdown": lambda: render_markdown(make_document(make_page(found))),
        "html": lambda: render_html(make_document(make_page(found))),
        "json": lambda: format_json(collect_facts(found)),
    }
    return ledger_access.deliver(made[style](), output)


@click.command(cls=Command)
@options.option(
    "--all", "everyone", is_flag=True, section="The runs", help="Also list runs that hold no reservation any more."
)
@ledger_access.common
def reservations(everyone: bool, url: str, as_json: bool) -> None:
    """List the runs that hold a reservation, and what is left of it."""
    from dpfed.cli import ledger_tables
    from dpfed.cli.show import print_json, say

    with ledger_access.open_ledger(url) as book:
        found = book.reservations(open_only=not everyone)
    if as_json:
        return print_json({"reservations": [ledger_access.collect_reservation(each) for each in found]})
    return ledger_tables.show_reservations(found) if found else say("no run holds a reservation")


@click.command(cls=Command)
@click.argument("account")
@options.run_options
@ledger_access.common
def forecast(account: str, url: str, as_json: bool, **described: Any) -> None:
    """Compute how many more such runs an account would admit now.

    The answer is that of the account's filter, and holds whatever else is chosen later. Nothing is reserved.

    \b
      dpfed ledger forecast icu -z 1 -q 0.01
    """
    from dpfed.cli.show import print_json, say

    event = options.read_run(**described)
    with ledger_access.open_ledger(url) as book:
        count, balance = book.forecast(account, event), book.balance(account)
    if as_json:
        facts = {"account": account, "event": event.to_dict(), "count": count, "status": balance.status}
        return print_json(facts)
    say(f"{count:,} more of {event} would fit {account}")
    if balance.status != "open":
        say(f"but {account} is {balance.status}, so no run can reserve anything")
    return None


@click.command(cls=Command)
@options.option("--head", section="What is checked", help="A head that was kept elsewhere: the ledger must contain it.")
@options.option(
    "--export",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    section="What is checked",
    help="Verify this exported file instead of the ledger.",
)
@ledger_access.common
@click.pass_context
def verify(context: click.Context, head: str | None, export: Path | None, url: str, as_json: bool) -> None:
    """Recompute the hash chain, every cost and every balance.

    If something does not add up, the first bad entry is printed and the exit code is 1.
    """
    from dpfed.cli.show import print_json, say
    from dpfed.ledger.rows import Head

    kept = None if head is None else Head.parse(head)
    try:
        found = ledger_access.verify_ledger(url, kept) if export is None else ledger_access.verify_export(export, kept)
    except LedgerCorrupted as error:
        if as_json:
            print_json({"is_sound": False, "row": error.row, "message": str(error)})
        say_refusal(str(error))
        context.exit(1)
    if as_json:
        return print_json({"is_sound": True, "rows": found.rows, "accounts": found.accounts, "head": str(found.head)})
    say(f"sound: {ledger_access.format_contents(found)}")
    return say(f"head {found.head}")


@click.command(cls=Command)
@ledger_access.common
def head(url: str, as_json: bool) -> None:
    """Print the number and digest of the last entry.

    Keep a copy where the ledger's administrator cannot write, and give it to `dpfed ledger verify --head` later.
    """
    from dpfed.cli.show import print_json

    with ledger_access.open_ledger(url) as book:
        found = book.head()
    if as_json:
        return print_json({"head": str(found), "sequence": found.sequence, "digest": found.digest})
    return click.echo(str(found))


@click.command(cls=Command)
@ledger_access.address
@ledger_access.output
@options.as_json
def export(output: Path | None, url: str, as_json: bool) -> None:
    """Print every entry as a line of JSON, to be verified elsewhere.

    Fingerprints of data, and their key, stay in the ledger. With --output, --json prints what was written; without, the
    export itself is JSON.
    """
    from dpfed.cli.show import print_json, say

    with ledger_access.open_ledger(url) as book:
        ledger_access.require_other_file(output, book)
        if output is None:
            return ledger_access.export_to_stdout(book)
        with ledger_access.open_output(output) as stream:
            book.export(stream)
    found = ledger_access.read_last_head(output)
    if as_json:
        return print_json({"output": str(output), "rows": found.sequence, "head": str(found)})
    return say(f"wrote {format_count(found.sequence, 'entry', 'entries')} to {output}")


@click.group(
    cls=Group,
    sections={
        "Look": (show, statement, reservations, forecast),
        "Change": (
            ledger_changes.open_account,
            ledger_changes.top_up,
            ledger_changes.freeze,
            ledger_changes.unfreeze,
            ledger_changes.release,
            ledger_changes.accept_clock,
        ),
        "Check": (verify, head, export),
        "Keep": (ledger_backups.backup, ledger_backups.restore),
    },
)
def ledger() -> None:
    """Show what each budget was spent on and what is left.

    The ledger is sqlite:///ledger.db unless --ledger or DPFED_LEDGER names another; only `open` makes a new one.
    """
