"""What ``dpfed ledger`` shows on a terminal: accounts, reservations and statements as tables.

Every text of a user goes through `rich.text.Text`, which shows markup as it was typed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dpfed.cli.show import console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from dpfed.ledger.views import Balance, OpenReservation
    from dpfed.report.statement import Entry, Page

BAR = 12
WIDE = 100
MOST_LINES = 500
STYLES = {"open": "green", "frozen": "yellow", "expired": "yellow", "closed": "dim"}
TONES = {"charge": "bold cyan", "late": "bold yellow", "refused": "bold red", "": "bold"}


def show_accounts(balances: Iterable[Balance]) -> None:
    """Print a table of accounts; an overspent one is said again below, in red."""
    from dpfed.report.figures import digits_for, figures, printable
    from dpfed.report.statement import alarm

    screen = console()
    table = _table("Account", right=("Cap ε", "Spent", "Reserved", "Remaining"))
    table.add_column("Used", justify="right", no_wrap=True)
    table.add_column("Status", no_wrap=True)
    alarms = []
    for each in balances:
        digits = digits_for(each.cap.epsilon)
        parts = figures(each.spent, each.reserved, each.remaining, digits)
        name = _two_lines(printable(each.account.name), _kind(each))
        table.add_row(name, f"{each.cap.epsilon:g}", *parts, _used(each, screen.width >= WIDE), _status(each))
        alarms += [alarm(each)] if each.is_overspent else []
    screen.print(table)
    for text in alarms:
        _shout(screen, text)


def show_account(balance: Balance) -> None:
    """Print one account: its line in the table, and what was agreed."""
    from dpfed.report.statement import promise, terms_in_words

    show_accounts([balance])
    screen = console()
    screen.print(_grid(terms_in_words(balance)))
    screen.print(f"\n{promise(balance)}", markup=False)


def show_reservations(found: Iterable[OpenReservation]) -> None:
    """Print a table of runs and what they hold."""
    from rich.text import Text

    from dpfed.report.figures import moment, printable

    table = _table("Run", "Plan", right=("Committed", "Left"))
    table.add_column("Since and holder", ratio=2, overflow="fold")
    for each in found:
        plans = [
            f"{account}: {count:,} × {event}"
            for account, plan in each.reserved.items()
            for event, count in plan.items()
        ]
        alive = Text("alive", style="green") if each.is_alive else Text("dead", style="bold red")
        holder = Text.assemble(moment(each.since), "\n", printable(each.holder), ", ", alive)
        shown = Text(printable("; ".join(plans)))
        table.add_row(Text(printable(each.run)), shown, f"{each.committed:,}", f"{each.left:,}", holder)
    console().print(table)


def show_statement(page: Page, screen: Console | None = None, most: int = MOST_LINES) -> None:
    """Print a statement, with the last `most` of its entries."""
    from rich.text import Text

    screen = screen or console()
    screen.print(Text.assemble((page.title, "bold"), f"\n{page.at}\n"))
    if page.alarm:
        _shout(screen, page.alarm)
    screen.print(_grid(page.terms))
    screen.print(_entries(page, screen.width >= WIDE, most))
    screen.print(_grid(page.balance))
    screen.print()
    screen.print(_grid(page.notes))
    screen.print(f"\nHead {page.head}", markup=False, soft_wrap=True)


def statement_text(page: Page) -> str:
    """The statement as it looks on a terminal of 100 columns, without colours."""
    from io import StringIO

    from rich.console import Console

    text = StringIO()
    show_statement(page, Console(file=text, width=WIDE, highlight=False, color_system=None), len(page.entries))
    return text.getvalue()


def _entries(page: Page, is_wide: bool, most: int) -> Table:
    right = ("Spent ε", "Reserved ε", "Remaining ε") if is_wide else ("Spent", "Reserved", "Remaining")
    table = _table("No.", "Date (UTC)", "Entry", right=right, show_footer=True)
    number, date, entry, *figures = table.columns
    number.justify = "right"
    number.no_wrap, number.min_width = False, 3
    date.min_width = date.max_width = 16 if is_wide else 10
    entry.ratio, entry.footer = 1, "Closing balance"
    for column, figure in zip(figures, page.closing, strict=True):
        column.footer = figure
    hidden = max(0, len(page.entries) - most)
    if hidden:
        table.add_row("", "", f"… {hidden:,} earlier entries: --output FILE has all")
    for line in page.entries[hidden:]:
        table.add_row(line.number, line.at, _entry(line), line.spent, line.reserved, line.remaining)
    return table


def _entry(line: Entry) -> Text:
    from rich.text import Text

    first = Text.assemble((line.kind, TONES[line.tone]), f" {line.what}")
    return Text.assemble(first, (f"\n{line.detail}", "dim")) if line.detail else first


def _table(*left: str, right: tuple[str, ...], show_footer: bool = False) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
        footer_style="bold",
        show_footer=show_footer,
    )
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _grid(pairs: Iterable[tuple[str, str]]) -> Table:
    """Two columns of text, names dimmed."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(max_width=24, overflow="fold")
    grid.add_column(overflow="fold")
    for name, text in pairs:
        grid.add_row(Text(name, style="dim"), Text(text))
    return grid


def _two_lines(first: str, second: str) -> Text:
    from rich.text import Text

    return Text.assemble(first, (f"\n{second}", "dim"))


def _kind(balance: Balance) -> str:
    cap = balance.cap
    return f"δ {cap.delta:g}, {cap.unit}, {cap.adjacency.replace('_', '-')}"


def _used(balance: Balance, with_bar: bool) -> Text:
    from rich.text import Text

    from dpfed.report.figures import percent

    share = min(1.0, balance.share)
    colour = "red" if share >= 0.8 else "yellow" if share >= 0.5 else "green"
    filled = round(BAR * share)
    figure = (f"{percent(balance.share):>8}", colour)
    if not with_bar:
        return Text.assemble(figure)
    return Text.assemble(("━" * filled, colour), ("─" * (BAR - filled), "dim"), figure)


def _status(balance: Balance) -> Text:
    from rich.text import Text

    if balance.is_overspent:
        return Text.assemble(("OVERSPENT", "bold white on red"), f"\n{balance.status}")
    return Text(balance.status, style=STYLES[balance.status])


def _shout(screen: Console, text: str) -> None:
    screen.print(text, style="bold white on red", markup=False, soft_wrap=not screen.is_terminal)
