"""``dpfed init``: a configuration to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import run
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from dpfed.config.start import Start

DATA = "The data"


@click.command(cls=Command)
@click.argument("source")
@run.option("--label", section=DATA, help="The column of the CSV file that is to be predicted.")
@run.option("--site-column", section=DATA, help="The column that names the site of each record.")
@run.option(
    "--person-column", section=DATA, help="The column that names the person of each row, who is then protected."
)
@run.option(
    "--rows-per-person",
    type=click.IntRange(min=1),
    metavar="N",
    section=DATA,
    help="How many rows of a person are used at most (10).",
)
@run.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="[SITE=]N",
    section=DATA,
    help="Records, or persons, declared in public, for all sites or for one; else the true counts are published.",
)
@run.option(
    "-o", "--output", type=click.Path(dir_okay=False), section=run.OUTPUT, help="The file to write; - for stdout."
)
@run.option("--force", is_flag=True, section=run.OUTPUT, help="Overwrite the file if it exists.")
@run.as_json
def init(
    source: str,
    label: str | None,
    site_column: str | None,
    person_column: str | None,
    rows_per_person: int | None,
    sizes: tuple[str, ...],
    output: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write a commented file for `dpfed run`: hospitals, or your CSV.

    \b
      dpfed init hospitals
      dpfed init my.csv --site-column hospital --label y
      dpfed init my.csv --site-column hospital --label y --person-column patient
    """
    from dpfed.cli.show import print_json, say

    target = Path(output or f"{Path(source).stem}.yaml")
    if rows_per_person is not None and person_column is None:
        raise click.UsageError("--rows-per-person goes with --person-column")
    persons = {"person_column": person_column, "rows_per_person": rows_per_person}
    given = {name: value for name, value in persons.items() if value is not None}
    start = _start(source, label, site_column, sizes, target if output != "-" else Path("x.yaml"), **given)
    if output == "-":
        return click.echo(start.to_yaml(), nl=False)
    _write(target, start.to_yaml(), force)
    data = start.config.data
    if as_json:
        return print_json({"file": str(target), "source": data.source, "sizes_are_public": data.sizes_are_public})
    say(f"wrote {target}")
    if data.sizes_are_public:
        say("The sizes of the sites are published as they are (sizes: public); declare them with --size to avoid that.")
    return None


def _start(
    source: str, label: str | None, site_column: str | None, sizes: tuple[str, ...], target: Path, **persons: Any
) -> Start:
    from dpfed.config.start import TEMPLATES, from_csv

    if source in TEMPLATES:
        if label or site_column or sizes or persons:
            raise click.UsageError(f"{source} is an example with its own data: leave the options of the data out")
        return TEMPLATES[source]()
    if not source.lower().endswith(".csv"):
        raise click.UsageError(f"SOURCE must be {', '.join(TEMPLATES)} or a file that ends in .csv, got {source!r}")
    if label is None or site_column is None:
        raise click.UsageError("a CSV file needs --label and --site-column")
    return from_csv(source, label, site_column, _declared(sizes), _seen_from(target, Path(source)), **persons)


def _declared(sizes: tuple[str, ...]) -> dict[str, int] | int | None:
    if not sizes:
        return None
    pairs = [size.rpartition("=") for size in sizes]
    if not all(number.isdecimal() and int(number) for _, _, number in pairs) or (
        len(pairs) > 1 and not all(site for site, _, _ in pairs)
    ):
        raise click.UsageError("--size must be a whole number for all sites, or SITE=N once for each site")
    return {site: int(number) for site, _, number in pairs} if pairs[0][0] else int(pairs[0][2])


def _seen_from(target: Path, source: Path) -> str:
    """The source as the configuration names it: files are looked up beside the configuration."""
    here, there = target.parent.resolve(), source.resolve()
    return str(there.relative_to(here)) if there.is_relative_to(here) else str(there)


def _write(target: Path, text: str, force: bool) -> None:
    from dpfed.runs import write_durably

    try:
        if not force:
            target.open("x").close()
        write_durably(target, text.encode())
    except FileExistsError:
        raise click.UsageError(f"{target} exists: use --force to overwrite it, or --output for another file") from None
    except OSError as error:
        raise click.UsageError(f"{target} cannot be written: {error.strerror}") from None
