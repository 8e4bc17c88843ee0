"""The tables of ``dpfed ledger`` on a terminal: accounts, reservations and statements.

Texts of users go through `rich.text.Text`, which shows markup as it was typed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dpfed.cli.show import make_console, new_table

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
    """Print a table of accounts; overspent ones are named again below, in red."""
    from dpfed.report.figures import digits_for, format_balance, replace_controls
    from dpfed.report.statement import describe_overspending

    screen = make_console()
    table = _make_table("Account", right=("Cap ε", "Spent", "Reserved", "Remaining"))
    table.add_column("Used", justify="right", no_wrap=True)
    table.add_column("Status", no_wrap=True)
    alarms = []
    for each in balances:
        digits = digits_for(each.cap.epsilon)
        parts = format_balance(each.spent, each.reserved, each.remaining, digits)
        name = _two_lines(replace_controls(each.account.name), _describe_cap(each))
        table.add_row(name, f"{each.cap.epsilon:g}", *parts, _make_bar(each, screen.width >= WIDE), _style_status(each))
        alarms += [describe_overspending(each)] if each.is_overspent else []
    screen.print(table)
    for text in alarms:
        _print_alarm(screen, text)


def show_account(balance: Balance) -> None:
    """Print one account: its line in the table, and its terms."""
    from dpfed.report.statement import describe_promise, describe_terms

    show_accounts([balance])
    screen = make_console()
    screen.print(_make_grid(describe_terms(balance)))
    screen.print(f"\n{describe_promise(balance)}", markup=False)


def show_reservations(found: Iterable[OpenReservation]) -> None:
    """Print a table of runs and their reservations."""
    from rich.text import Text

    from dpfed.report.figures import format_time, replace_controls

    table = _make_table("Run", "Plan", right=("Committed", "Left"))
    table.add_column("Since and holder", ratio=2, overflow="fold")
    for each in found:
        plans = [
            f"{account}: {count:,} × {event}"
            for account, plan in each.reserved.items()
            for event, count in plan.items()
        ]
        alive = Text("alive", style="green") if each.is_alive else Text("dead", style="bold red")
        holder = Text.assemble(format_time(each.since), "\n", replace_controls(each.holder), ", ", alive)
        shown = Text(replace_controls("; ".join(plans)))
        table.add_row(Text(replace_controls(each.run)), shown, f"{each.committed:,}", f"{each.left:,}", holder)
    make_console().print(table)


def show_statement(page: Page, screen: Console | None = None, most: int = MOST_LINES) -> None:
    """Print a statement, with the last `most` of its entries."""
    from rich.text import Text

    screen = screen or make_console()
    screen.print(Text.assemble((page.title, "bold"), f"\n{page.at}\n"))
    if page.alarm:
        _print_alarm(screen, page.alarm)
    screen.print(_make_grid(page.terms))
    screen.print(_make_entries(page, screen.width >= WIDE, most))
    screen.print(_make_grid(page.balance))
    screen.print()
    screen.print(_make_grid(page.notes))
    screen.print(f"\nHead {page.head}", markup=False, soft_wrap=True)


def render_statement(page: Page) -> str:
    """Return the statement as it looks on a terminal of 100 columns, without colours."""
    from io import StringIO

    from rich.console import Console

    text = StringIO()
    show_statement(page, Console(file=text, width=WIDE, highlight=False, color_system=None), len(page.entries))
    return text.getvalue()


def _make_entries(page: Page, is_wide: bool, most: int) -> Table:
    right = ("Spent ε", "Reserved ε", "Remaining ε") if is_wide else ("Spent", "Reserved", "Remaining")
    table = _make_table("No.", "Date (UTC)", "Entry", right=right, show_footer=True)
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
        table.add_row(line.number, line.at, _make_entry(line), line.spent, line.reserved, line.remaining)
    return table


def _make_entry(line: Entry) -> Text:
    from rich.text import Text

    first = Text.assemble((line.kind, TONES[line.tone]), f" {line.what}")
    return Text.assemble(first, (f"\n{line.detail}", "dim")) if line.detail else first


def _make_table(*left: str, right: tuple[str, ...], show_footer: bool = False) -> Table:
    table = new_table(show_footer=show_footer)
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _make_grid(pairs: Iterable[tuple[str, str]]) -> Table:
    """Return two columns of text, with the names dimmed."""
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


def _describe_cap(balance: Balance) -> str:
    cap = balance.cap
    return f"δ {cap.delta:g}, {cap.unit}, {cap.adjacency.replace('_', '-')}"


def _make_bar(balance: Balance, with_bar: bool) -> Text:
    from rich.text import Text

    from dpfed.report.figures import format_percent

    share = min(1.0, balance.share)
    colour = "red" if share >= 0.8 else "yellow" if share >= 0.5 else "green"
    filled = round(BAR * share)
    figure = (f"{format_percent(balance.share):>8}", colour)
    if not with_bar:
        return Text.assemble(figure)
    return Text.assemble(("━" * filled, colour), ("─" * (BAR - filled), "dim"), figure)


def _style_status(balance: Balance) -> Text:
    from rich.text import Text

    if balance.is_overspent:
        return Text.assemble(("OVERSPENT", "bold white on red"), f"\n{balance.status}")
    return Text(balance.status, style=STYLES[balance.status])


def _print_alarm(screen: Console, text: str) -> None:
    screen.print(text, style="bold white on red", markup=False, soft_wrap=not screen.is_terminal)
