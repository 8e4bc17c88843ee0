"""``dpfed ledger backup`` and ``restore``: copies of a SQLite ledger that never make a budget larger."""

from __future__ import annotations

from pathlib import Path

import click

from dpfed.cli import ledger_access
from dpfed.cli.ledger_access import many
from dpfed.cli.sections import Command

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=Command)
@click.argument("file", type=_FILE)
@ledger_access.common
def backup(file: Path, url: str, as_json: bool) -> None:
    """Copy the ledger to a new file, while runs go on, and verify the copy.

    The copy is no ledger until it is restored. Keep the head that is printed where nobody can change it.

    \b
      dpfed ledger backup 2026-05-01.backup
    """
    from dpfed.cli.show import print_json, say

    with ledger_access.reach(url) as book:
        found = book.backup(file)
    if as_json:
        return print_json({"backup": str(file), "rows": found.rows, "head": str(found.head)})
    entries, accounts = many(found.rows, "entry", "entries"), many(found.accounts, "account", "accounts")
    say(f"backed up {entries}, {accounts} to {file}")
    return say(f"head {found.head}")


@click.command(cls=Command)
@click.argument("file", type=_FILE)
@ledger_access.common
def restore(file: Path, url: str, as_json: bool) -> None:
    """Make a ledger of a backup, where there is none.

    Every account is frozen, and what was reserved counts as committed, because it may have been spent since. No account
    is opened until a steward has answered for each by name, with the newest head that anybody has kept.

    \b
      dpfed ledger restore 2026-05-01.backup
      dpfed ledger unfreeze icu --steward dpo --reason "nothing came later"
    """
    from dpfed.cli.show import print_json, say
    from dpfed.ledger.ledger import Ledger

    with Ledger.restore(file, ledger_access.address_of(url)) as book:
        names, head, where = [each.account.name for each in book.accounts()], str(book.head()), book.address
    if as_json:
        return print_json({"ledger": where, "frozen": names, "head": head})
    say(f"restored {where} with {many(len(names), 'account', 'accounts')}, all frozen")
    return say("unfreeze each with --steward and --reason, and with --head, the newest that anybody has kept")
