"""``dpfed ledger backup`` and ``restore``: copies of a SQLite ledger that never make a budget larger."""

from __future__ import annotations

from pathlib import Path

import click

from dpfed.cli import ledger_access
from dpfed.cli.sections import Command

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=Command)
@click.argument("file", type=_FILE)
@ledger_access.common
def backup(file: Path, url: str, as_json: bool) -> None:
    """Copy the ledger to a new file while runs go on; verify the copy.

    The copy cannot be charged until it is restored. Keep the printed head where nobody can change it.

    \b
      dpfed ledger backup 2026-05-01.backup
    """
    from dpfed.cli.show import print_json, say

    with ledger_access.open_ledger(url) as book:
        found = book.backup(file)
    if as_json:
        return print_json({"backup": str(file), "rows": found.rows, "head": str(found.head)})
    say(f"backed up {ledger_access.format_contents(found)} to {file}")
    return say(f"head {found.head}")


@click.command(cls=Command)
@click.argument("file", type=_FILE)
@ledger_access.common
def restore(file: Path, url: str, as_json: bool) -> None:
    """Make a ledger from a backup, where there is none.

    Every account is frozen, and what was reserved counts as committed, because it may have been spent since. A steward
    unfreezes each account by name, with the newest head that anybody has kept.

    \b
      dpfed ledger restore 2026-05-01.backup
      dpfed ledger unfreeze icu --steward dpo --reason "nothing came later"
    """
    from dpfed.cli.show import format_count, print_json, say
    from dpfed.ledger.ledger import Ledger

    with Ledger.restore(file, ledger_access.parse_address(url)) as book:
        names, head, where = [each.account.name for each in book.accounts()], str(book.head()), book.address
    if as_json:
        return print_json({"ledger": where, "frozen": names, "head": head})
    say(f"restored {where} with {format_count(len(names), 'account', 'accounts')}, all frozen")
    return say("unfreeze each with --steward and --reason, and with --head, the newest that anybody has kept")
