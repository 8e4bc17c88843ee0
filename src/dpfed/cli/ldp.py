"""``dpfed ldp collect|estimate``: local differential privacy for one column of a table, from answers to a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command, Group

if TYPE_CHECKING:
    from rich.table import Table

    from dpfed.data.tables import TextTable
    from dpfed.ldp.collecting import Collected, Terms
    from dpfed.ldp.estimates import Estimate
    from dpfed.ldp.settings import Mechanism

ASKED, NOISE = "What is asked", "How it is noised"
FILE = click.Path(dir_okay=False, path_type=Path)
ABSENT_NAME = "(none)"


@click.command(cls=Command)
@click.argument("data", type=FILE)
@options.option("--column", required=True, section=ASKED, help="The column to report.")
@options.option(
    "--values", section=ASKED, help="All values that it may have, declared: red,green,blue. Not for RAPPOR."
)
@options.option("--absent", is_flag=True, section=ASKED, help="Who has no value takes part too, as one who has none.")
@options.option(
    "--person-column", section=ASKED, help="Who each row belongs to: one report a person, of its first row."
)
@options.option("-e", "--epsilon", type=float, required=True, section=NOISE, help="ε of a person's report.")
@options.option("--mechanism", section=NOISE, help="Instead of the best one: unary, hashing, rappor or another.")
@options.option("--again", is_flag=True, section=NOISE, help="Draw new responses of everybody, whose ε add up.")
@options.option("--kept", type=FILE, section=options.OUTPUT, help="Private file of responses [default: DATA.kept].")
@options.option("--output", type=FILE, section=options.OUTPUT, help="File of reports [default: COLUMN.reports].")
@options.as_json
def collect(
    data: Path,
    column: str,
    values: str | None,
    absent: bool,
    person_column: str | None,
    epsilon: float,
    mechanism: str | None,
    again: bool,
    kept: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Noise one column of a table, with one report for each person.

    The table is a CSV or Parquet file. Responses are kept in a private file; the same command sends the same ones
    again, which costs nothing.

    \b
      dpfed ldp collect visits.csv --column ward --values a,b,c --epsilon 1 --person-column patient
    """
    from dpfed.ldp.files import write_reports
    from dpfed.ldp.kept_place import hold_place, note_place
    from dpfed.ldp.settings import RAPPOR, make

    declared = _read_declared(values, column)
    if (mechanism == RAPPOR) == bool(declared):
        what = "give either --values or --mechanism rappor" if declared else "the values of the column are not declared"
        ways = f"--values A,B lists all that {column} may hold, and --mechanism rappor leaves them open"
        raise click.UsageError(f"{what}: {ways}")
    if column == person_column:
        raise click.UsageError(
            "--person-column must be another one than --column: with one report for each value, their number would "
            "show which values are there"
        )
    noise, why = make(mechanism, epsilon, max(len(declared), 1), absent=absent)
    sent = output or Path(f"{column}.reports")
    table = _read_table(data)
    persons, rows, left_out = _find_persons(table, person_column)
    answers = _read_answers(table, column, declared, absent)
    terms = _make_terms(column, person_column, declared, noise, absent)
    shown = _show_progress(f"reports of {column}", len(persons), as_json)
    with hold_place(data, kept) as private, shown as advance:
        found = _collect(private, persons, answers[rows], terms, again, advance)
        note_place(data, private, found.kept)
        write_reports(sent, {**terms.settings, "total_epsilon": found.epsilon}, found.reports)
    _say_collected(found, terms, why, sent, private, left_out, as_json)


@click.command(cls=Command)
@click.argument("reports", type=FILE)
@options.option("--candidates", section=ASKED, help="Texts to look for in reports of RAPPOR: red,green,blue.")
@options.option(
    "--confidence", type=float, default=0.95, show_default=True, section=ASKED, help="Confidence of each interval."
)
@options.option("--top", type=int, default=20, show_default=True, section=options.OUTPUT, help="Most values to list.")
@options.option("--plot", type=FILE, section=options.OUTPUT, help="Draw estimates and intervals: .png, .svg or .pdf.")
@options.as_json
def estimate(
    reports: Path, candidates: str | None, confidence: float, top: int, plot: Path | None, as_json: bool
) -> None:
    """Estimate how frequent each value is, from a file of reports.

    Estimates are unbiased and shown as they are: a rare value may come out below zero.

    \b
      dpfed ldp estimate ward.reports --plot wards.png
    """
    from dpfed.ldp.files import read_reports
    from dpfed.ldp.settings import read_header

    if plot is not None:
        from dpfed.report.local_estimates import require_drawing

        require_drawing(plot)
    settings, array = read_reports(reports)
    mechanism = read_header(settings)
    names = _name_values(mechanism, settings, _split(candidates))
    with _show_progress("decoding", len(array), as_json) as advance:
        found = _estimate(mechanism, _watch(array, advance), _as_written(names, settings))
    low, high = found.interval(confidence)
    order = [int(place) for place in (-found.frequencies).argsort(kind="stable")]
    if plot is not None:
        _draw(plot, names, found, (low, high), order, confidence)
    if as_json:
        _print_json(names, found, (low, high), settings, confidence)
    else:
        _say_estimates(names, found, (low, high), order[:top], settings, confidence, plot)


@click.group(cls=Group, sections={"Commands": (collect, estimate)})
def ldp() -> None:
    """Ask about one column under local differential privacy.

    Every person's value is noised before anybody sees it.
    """


def _split(text: str | None) -> tuple[str, ...]:
    parts = [part.strip() for part in (text or "").split(",")]
    return tuple(part for part in parts if part)


def _read_declared(values: str | None, column: str) -> tuple[str, ...]:
    """Return the declared values; refuse one that a cell cannot have, since it is read as a missing one."""
    from dpfed.data.tables import MISSING

    declared = _split(values)
    for name in declared:
        if name.lower() in {*MISSING, ABSENT_NAME}:
            raise click.UsageError(
                f"--values must not have {name!r}, since a cell of {column} with it is read as a missing one: write "
                "another word in the table, or leave it out and say --absent"
            )
    return declared


def _read_table(data: Path) -> TextTable:
    from dpfed.data.sources import TABLES

    if data.suffix.lower() not in TABLES:
        raise click.UsageError(f"DATA must end in {' or '.join(TABLES)}, got {data.name}")
    return TABLES[data.suffix.lower()](data)


def _find_persons(table: TextTable, column: str | None) -> tuple[list[str], list[int], int]:
    """Return a name for each report, its row, and how many rows have none because their person has one already."""
    from dpfed.ldp.files import read_name

    if column is None:
        rows = list(range(len(table.lines)))
        return [f"row {row}" for row in rows], rows, 0
    table.require(column, "person_column")
    first: dict[str, int] = {}
    for row, name in enumerate(table.complete(column)):
        first.setdefault(read_name(name), row)
    return list(first), list(first.values()), len(table.lines) - len(first)


def _read_answers(table: TextTable, column: str, declared: Sequence[str], absent: bool) -> Any:
    """Return the column as codes of the declared values, or as texts if they are open."""
    import numpy as np

    from dpfed.data.tables import MISSING, TextTable
    from dpfed.ldp.oracle import ABSENT

    table.require(column)
    is_there = [not absent or cell.lower() not in MISSING for cell in table.columns[column]]
    cells = tuple(cell for cell, there in zip(table.columns[column], is_there, strict=True) if there)
    lines = tuple(line for line, there in zip(table.lines, is_there, strict=True) if there)
    part = TextTable(table.name, {column: cells}, lines, table.place)
    answers = np.full(len(is_there), ABSENT) if declared else np.full(len(is_there), "", dtype=f"U{_longest(cells)}")
    answers[is_there] = part.codes(column, declared) if declared else part.complete(column)
    return answers


def _longest(cells: Sequence[str]) -> int:
    return max([1, *map(len, cells)])


def _make_terms(column: str, person: str | None, declared: Sequence[str], noise: Mechanism, absent: bool) -> Terms:
    from dpfed.ldp.collecting import Terms

    return Terms(column, person, (*declared, *([ABSENT_NAME] if absent else [])), noise)


def _collect(
    private: Path, persons: list[str], answers: Any, terms: Terms, again: bool, advance: Callable[[int], None]
) -> Collected:
    """Return the reports, after the responses behind them are stored."""
    from dpfed.ldp.collecting import collect as collect_reports
    from dpfed.ldp.files import read_kept, write_kept

    found = collect_reports(read_kept(private), persons, answers, terms, again=again, progress=advance)
    write_kept(private, found.kept)
    return found


def _say_collected(
    found: Collected, terms: Terms, why: str, sent: Path, private: Path, left_out: int, as_json: bool
) -> None:
    from dpfed.cli.show import format_count, print_json, say

    if as_json:
        facts = {**terms.settings, "reports": len(found.reports), "drawn": found.drawn, "total_epsilon": found.epsilon}
        return print_json({**facts, "why": why, "file": str(sent), "kept": str(private), "rows_left_out": left_out})
    say(f"wrote {format_count(len(found.reports), 'report')} to {sent}: {why}")
    if left_out:
        say(f"{format_count(left_out, 'further row')} of the same persons left out: a person reports its first row")
    say(_describe_epsilon(found, terms))
    return say(f"{private} keeps the responses. It is private: leave it where it is, and do not lose it")


def _describe_epsilon(found: Collected, terms: Terms) -> str:
    from dpfed.rounding import decimal_up

    whose = "for one person" if terms.unit == "person" else "per row"
    text = f"ε = {decimal_up(found.epsilon)} {whose} in all, in the local model (replace-one)"
    if not found.drawn:
        text += "; these are the responses sent before, and nothing was spent"
    elif found.collections > 1:
        text += f", over {found.collections} collections that add up"
    if terms.unit == "row":
        text += "; a person with several rows has that many times as much: name the --person-column"
    return text


@contextmanager
def _show_progress(what: str, total: int, is_quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that moves a bar on a terminal, and does nothing elsewhere."""
    from dpfed.cli.show import make_console

    screen = make_console()
    if is_quiet or not screen.is_terminal:
        yield lambda _: None
        return
    from rich.progress import Progress

    with Progress(console=screen, transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda count: bars.advance(task, count)


def _watch(array: Any, advance: Callable[[int], None]) -> Iterator[Any]:
    from dpfed.ldp.oracle import batches

    for batch in batches(array):
        yield batch
        advance(len(batch))


def _name_values(mechanism: Mechanism, settings: dict[str, Any], candidates: tuple[str, ...]) -> tuple[str, ...]:
    from dpfed.ldp.rappor import Rappor

    if isinstance(mechanism, Rappor) != bool(candidates):
        what = "needs" if not candidates else "takes no"
        raise click.UsageError(f"a file of these reports {what} --candidates: only RAPPOR's values are open")
    return candidates or tuple(settings["values"])


def _as_written(names: tuple[str, ...], settings: dict[str, Any]) -> tuple[str, ...]:
    """Return the texts of which reports were made: who has none reported an empty one."""
    has_absent = ABSENT_NAME in settings["values"]
    return tuple("" if has_absent and name == ABSENT_NAME else name for name in names)


def _estimate(mechanism: Mechanism, reports: Any, names: tuple[str, ...]) -> Estimate:
    from dpfed.ldp.rappor import Rappor

    if isinstance(mechanism, Rappor):
        return mechanism.estimate(reports, names)
    return mechanism.estimate(reports)


def _draw(
    plot: Path, names: Sequence[str], found: Estimate, ends: tuple[Any, Any], order: list[int], confidence: float
) -> None:
    from dpfed.report.local_estimates import draw_estimates

    title = f"estimated share of {found.users:,} reports, with {100 * confidence:g} % intervals"
    estimates, low, high = ([float(column[place]) for place in order] for column in (found.frequencies, *ends))
    draw_estimates(plot, [names[place] for place in order], estimates, low, high, title)


def _print_json(
    names: Sequence[str], found: Estimate, ends: tuple[Any, Any], settings: dict[str, Any], confidence: float
) -> None:
    from dpfed.cli.show import print_json

    rows = zip(names, found.frequencies, found.standard_errors, *ends, strict=True)
    keys = ("value", "frequency", "standard_error", "low", "high")
    values = [dict(zip(keys, (name, *map(float, numbers)), strict=True)) for name, *numbers in rows]
    print_json({**settings, "users": found.users, "confidence": confidence, "estimates": values})


def _say_estimates(
    names: Sequence[str],
    found: Estimate,
    ends: tuple[Any, Any],
    order: list[int],
    settings: dict[str, Any],
    confidence: float,
    plot: Path | None,
) -> None:
    from dpfed.cli.show import format_count, make_console, say
    from dpfed.rounding import decimal_up

    whose = "for one person" if settings["unit"] == "person" else "per row"
    total = decimal_up(settings["total_epsilon"])
    say(f"{format_count(found.users, 'report')} of {settings['column']}, ε = {total} {whose} in all")
    make_console(200).print(_make_table(names, found, ends, order, confidence))
    if len(order) < len(names):
        say(f"{format_count(len(names) - len(order), 'more value')} not listed: --top {len(names)} lists all")
    if plot is not None:
        say(f"drew {plot}")


def _make_table(
    names: Sequence[str], found: Estimate, ends: tuple[Any, Any], order: list[int], confidence: float
) -> Table:
    from rich.text import Text

    from dpfed.cli.show import new_table

    table = new_table()
    for title in ("value", "share", "standard error", f"{100 * confidence:g} % interval"):
        table.add_column(title, justify="left" if title == "value" else "right")
    for place in order:
        interval = f"{ends[0][place]:.4f} to {ends[1][place]:.4f}"
        shares = f"{found.frequencies[place]:.4f}", f"{found.standard_errors[place]:.4f}"
        table.add_row(Text(names[place]), *shares, interval)
    return table
