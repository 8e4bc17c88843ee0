"""``dpfed init``: write a configuration to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from dpfed.config.templates import Template

DATA = "The data"


@click.command(cls=Command)
@click.argument("source")
@options.option("--label", section=DATA, help="The column of the CSV file to predict.")
@options.option("--site-column", section=DATA, help="The column that names the site of each record.")
@options.option(
    "--person-column", section=DATA, help="The column that names the person of each row: protects a person, not a row."
)
@options.option(
    "--rows-per-person",
    type=click.IntRange(min=1),
    metavar="N",
    section=DATA,
    help="The most rows of a person that are used.  [default: 10]",
)
@options.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="[SITE=]N",
    section=DATA,
    help="Declared number of records (or persons) of all sites or of one; without it, true counts are published.",
)
@options.option(
    "-o", "--output", type=click.Path(dir_okay=False), section=options.OUTPUT, help="The file to write; - for stdout."
)
@options.option("--force", is_flag=True, section=options.OUTPUT, help="Overwrite the file if it exists.")
@options.as_json
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

    hospitals is an example with five hospitals and public data of scikit-learn.

    \b
      dpfed init hospitals
      dpfed init my.csv --site-column hospital --label y
      dpfed init my.csv --site-column hospital --label y --person-column patient
    """
    from dpfed.cli.show import print_json, say

    target = Path(output or f"{Path(source).stem}.yaml")
    if rows_per_person is not None and person_column is None:
        raise click.UsageError(
            "--rows-per-person goes with --person-column, which names the person of each row: give both or neither"
        )
    persons = {"person_column": person_column, "rows_per_person": rows_per_person}
    given = {name: value for name, value in persons.items() if value is not None}
    template = _make_template(source, label, site_column, sizes, target if output != "-" else Path("x.yaml"), **given)
    if output == "-":
        return click.echo(template.to_yaml(), nl=False)
    _write(target, template.to_yaml(), force)
    data = template.config.data
    if as_json:
        return print_json({"file": str(target), "source": data.source, "sizes_are_public": data.sizes_are_public})
    say(f"wrote {target}")
    if data.sizes_are_public:
        say(
            "The true sizes of the sites are published (sizes: public); declare sizes with --size to keep them private."
        )
    return None


def _make_template(
    source: str, label: str | None, site_column: str | None, sizes: tuple[str, ...], target: Path, **persons: Any
) -> Template:
    from dpfed.config.templates import TEMPLATES, from_csv

    if source in TEMPLATES:
        if label or site_column or sizes or persons:
            raise click.UsageError(
                f"{source} is an example with its own data: leave --label and the other options of the data out"
            )
        return TEMPLATES[source]()
    if not source.lower().endswith(".csv"):
        raise click.UsageError(f"SOURCE must be {', '.join(TEMPLATES)} or a file that ends in .csv, got {source!r}")
    if label is None or site_column is None:
        raise click.UsageError(
            "a CSV file needs --label and --site-column: the column to predict, and the one that names the site"
        )
    return from_csv(source, label, site_column, _parse_sizes(sizes), _relative_source(target, Path(source)), **persons)


def _parse_sizes(sizes: tuple[str, ...]) -> dict[str, int] | int | None:
    if not sizes:
        return None
    pairs = [size.rpartition("=") for size in sizes]
    if not all(number.isdecimal() and int(number) for _, _, number in pairs) or (
        len(pairs) > 1 and not all(site for site, _, _ in pairs)
    ):
        raise click.UsageError(
            "--size must be a whole number for all sites (--size 100) or for each (--size north=100 --size south=80)"
        )
    return {site: int(number) for site, _, number in pairs} if pairs[0][0] else int(pairs[0][2])


def _relative_source(target: Path, source: Path) -> str:
    """Return the source as the configuration names it: files are looked up beside the configuration."""
    here, there = target.parent.resolve(), source.resolve()
    return str(there.relative_to(here)) if there.is_relative_to(here) else str(there)


def _write(target: Path, text: str, force: bool) -> None:
    from dpfed.runs.directory import write_durably

    try:
        if not force:
            target.open("x").close()
        write_durably(target, text.encode())
    except FileExistsError:
        raise click.UsageError(f"{target} exists: use --force to overwrite it, or --output for another file") from None
    except OSError as error:
        raise click.UsageError(f"{target} cannot be written: {error.strerror}") from None
