"""``dpfed bounds``: release ranges of columns with noise, charged to the accounts whose records they are."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import init_answers as answers
from dpfed.cli import ledger_access, options
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from dpfed.analytics.queries import Histogram
    from dpfed.analytics.releases import ColumnRelease
    from dpfed.analytics.tables import TablePart
    from dpfed.guarantee import Guarantee
    from dpfed.ledger.ledger import Ledger

ASKED, PAID = "What is asked", "Who pays"
ONE_OWNER = "owner"  # as `dpfed init` names the client of a table without sites
MOST_CELLS = 10_000
Pairs = Mapping[str, tuple[float, float] | None]


@click.command(cls=Command)
@click.argument("data", type=click.Path(dir_okay=False, path_type=Path))
@options.option("--column", "columns", multiple=True, required=True, section=ASKED, help="A column of numbers.")
@options.option(
    "--grid",
    "grids",
    multiple=True,
    metavar="COLUMN=LOW:HIGH:CELLS",
    section=ASKED,
    help="Public cells to count a column in.  [default: powers of two]",
)
@options.option("--site-column", section=ASKED, help="The column that names the site of each record.")
@options.option("--sites", metavar="A,B", section=ASKED, help="The names of all sites.")
@options.option("--person-column", section=ASKED, help="The column that names the person: for accounts of a person.")
@options.option("--max-sites-per-person", type=click.IntRange(min=1), default=1, show_default=True, section=ASKED,
                help="At how many sites a person may be.")  # fmt: skip
@options.option("--account", required=True, section=PAID, help="The account that pays; {id} stands for the site.")
@options.option("-e", "--epsilon", type=click.FloatRange(min=0, min_open=True), required=True, section=PAID,
                help="ε of all columns together.")  # fmt: skip
@options.option("--delta", type=float, section=PAID, help="δ for the noise.  [default: that of the account]")
@options.option("--name", section=PAID, help="Name of the release in the ledger.  [default: bounds-DATA]")
@ledger_access.address
@options.option("--dry-run", is_flag=True, section=options.OUTPUT, help="Show the noise; charge and release nothing.")
@options.as_json
def bounds(data: Path, as_json: bool, dry_run: bool, **given: Any) -> None:
    """Release ranges of columns, with noise, for `feature_bounds`.

    A run needs a range for every column of numbers. One that anybody may know costs nothing: declare it. For others
    this counts records in public cells, charges the account, adds noise, and prints what a run's file may then say:
    released values, which a run uses at no further cost. One name is released once.

    \b
      dpfed ledger open ward-owner --epsilon 4 --delta 1e-6
      dpfed bounds ward.csv --column age --column pay --account ward-{id} --epsilon 0.3
    """
    from dpfed.cli.progress import show_progress
    from dpfed.data.sources import TABLES, is_table, read_file

    if not is_table(str(data)):
        raise click.UsageError(f"DATA must end in {' or '.join(TABLES)}, got {data.name}")
    query, sites = _make_query(given["columns"], given["grids"]), _read_sites(given)
    with show_progress(is_quiet=as_json):
        parts = _read_parts(read_file(data), sites, given)
    name = given["name"] or f"bounds-{data.stem}"
    with ledger_access.open_ledger(given["url"]) as ledger:
        accounts = {site: given["account"].replace("{id}", site) for site in sites}
        promise = _make_promise(ledger, accounts, name, given)
        release = _make_release(query, promise, given["max_sites_per_person"])
        found = None if dry_run else _ask(name, query, parts, accounts, ledger, release)
    _say(release, len(parts), found, given, as_json)


def _make_query(columns: tuple[str, ...], grids: tuple[str, ...]) -> Histogram:
    from dpfed.analytics.queries import FIXED, Histogram

    known = answers.parse_pairs("--grid", grids, "COLUMN=LOW:HIGH:CELLS", _parse_grid)
    if strange := [column for column in known if column not in columns]:
        raise click.UsageError(f"--grid names {strange[0]}, which is not asked: add --column {strange[0]}")
    return Histogram(tuple(known.get(column, FIXED) for column in columns))


def _parse_grid(text: str) -> tuple[float, ...]:
    """Return the edges of LOW:HIGH:CELLS."""
    ends, _, cells = text.rpartition(":")
    low, high = answers.parse_range(ends)
    if not 1 <= int(cells) <= MOST_CELLS:
        raise ValueError(text)
    return tuple(low + (high - low) * place / int(cells) for place in range(int(cells) + 1))


def _read_sites(given: dict[str, Any]) -> tuple[str, ...]:
    if (given["site_column"] is None) != (given["sites"] is None):
        raise click.UsageError("--site-column and --sites A,B go together: give both or neither")
    if given["sites"] is None:
        return (ONE_OWNER,)
    sites = answers.parse_pairs("--sites", [f"x={given['sites']}"], "A,B", answers.parse_list)["x"]
    if "{id}" not in given["account"]:
        raise click.UsageError("every site pays from an account of its own: write --account ward-{id}")
    return sites


def _read_parts(table: Any, sites: tuple[str, ...], given: dict[str, Any]) -> dict[str, TablePart]:
    from dpfed.analytics.tables import read_parts

    same = {name: given[name] for name in ("site_column", "person_column", "max_sites_per_person")}
    return read_parts(table, given["columns"], sites=sites, **same)


def _make_promise(ledger: Ledger, accounts: Mapping[str, str], name: str, given: dict[str, Any]) -> Guarantee:
    """Return what the accounts promise, at the ε that is asked for; refuse what they are not for."""
    from dpfed.guarantee import PERSON, Guarantee

    first = next(iter(accounts.values()))
    terms = ledger.terms(accounts.values())[first]
    if terms.unit == "client":
        raise click.UsageError(f"account {first} is for one client: name one for a record or person, or declare ranges")
    if (terms.unit == PERSON) != (given["person_column"] is not None):
        remedy = "give --person-column" if terms.unit == PERSON else "leave --person-column out, or name another one"
        raise click.UsageError(f"account {first} is for one {terms.unit}: {remedy}")
    if ledger.has_run(name):
        message = f"{name} was released already: use its ranges, which costs nothing"
        raise click.UsageError(f"{message}; --name NEW releases others, and is charged again")
    deltas = [ledger.balance(account).cap.delta for account in accounts.values()]
    delta = min(deltas) if given["delta"] is None else given["delta"]
    return Guarantee(given["epsilon"], delta, terms.unit, terms.adjacency)


def _make_release(query: Histogram, promise: Guarantee, sites: int) -> ColumnRelease:
    from dpfed.analytics.releases import ColumnRelease
    from dpfed.guarantee import PERSON

    return ColumnRelease(query, promise, sites if promise.unit == PERSON else 1)


def _ask(
    name: str,
    query: Histogram,
    parts: Mapping[str, TablePart],
    accounts: Mapping[str, str],
    ledger: Ledger,
    release: ColumnRelease,
) -> tuple[tuple[float, float] | None, ...]:
    """Charge the accounts, and return the released bounds of each column.

    Privacy: one `ColumnRelease`, committed before its noise is drawn; the rest is post-processing.
    """
    from dpfed.analytics.answers import HistogramAnswer
    from dpfed.analytics.scaling import find_bounds
    from dpfed.analytics.sites import ColumnStudy, Owner

    owners = {site: Owner(accounts[site], part.values, part.rows) for site, part in parts.items()}
    answer = ColumnStudy(name, query, owners, ledger, sites=release.sites).ask(record=release.guarantee)
    return find_bounds(answer) if isinstance(answer, HistogramAnswer) else ()


def _say(
    release: ColumnRelease,
    owners: int,
    found: tuple[tuple[float, float] | None, ...] | None,
    given: dict[str, Any],
    as_json: bool,
) -> None:
    from dpfed.analytics.queries import Histogram
    from dpfed.analytics.scaling import find_least_count
    from dpfed.cli.show import describe_unit, print_json, say

    noise, query = release.noise * math.sqrt(owners), release.query
    least = find_least_count(query, noise) if isinstance(query, Histogram) else 0
    pairs = {} if found is None else dict(zip(given["columns"], found, strict=True))
    if as_json:
        facts = {"noise": noise, "least": least, "feature_bounds": {} if found is None else pairs}
        return print_json({**facts, "event": release.event.to_dict(), "is_charged": found is not None})
    paid = "would be charged" if found is None else "are charged"
    promise = release.guarantee
    say(f"ε = {promise.epsilon:g} at δ = {promise.delta:g} {paid} to {given['account']}, {describe_unit(promise)}")
    say(f"Noise of {noise:.3g} on each count: a column with fewer than about {least:,} values gets no range.")
    return None if found is None else _say_found(pairs, given)


def _say_found(pairs: Pairs, given: dict[str, Any]) -> None:
    from dpfed.cli.show import say

    say("Under data: write")
    click.echo(f"  feature_bounds: {json.dumps(pairs, ensure_ascii=False)}")
    if "{id}" in given["account"]:
        say("and, so that training is charged to the same accounts,")
        url = given["url"] if "@" not in given["url"] else "URL"  # which may hold a password
        click.echo(f"ledger: {json.dumps({'url': url, 'client_accounts': given['account']}, ensure_ascii=False)}")
    if lacking := [column for column, pair in pairs.items() if pair is None]:
        message = f"USELESS for {', '.join(lacking)}: noise leaves the range open, and the charge stays spent"
        say(f"{message}. Declare a range that anybody may know, or ask fewer columns of more records.")
