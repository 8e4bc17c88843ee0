"""``dpfed init``: write a configuration to begin with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import init_answers as answers
from dpfed.cli import options
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from dpfed.cli.init_report import InitReport
    from dpfed.config.drafts import TableDraft
    from dpfed.data.survey import ColumnSurvey
    from dpfed.data.tables import TextTable

DATA, DECLARED = "The data", "What anybody may know"


@click.command(cls=Command)
@click.argument("source")
@options.option("--label", section=DATA, help="The column to predict.")
@options.option(
    "--site-column", section=DATA, help="The column that names the site of each record; without it, one owner."
)
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
    "--max-sites-per-person",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    section=DATA,
    help="At how many sites one person may have rows.",
)
@options.option(
    "--ignore", multiple=True, metavar="COLUMN", section=DATA, help="A column that is no feature (repeatable)."
)
@options.option(
    "--fill", multiple=True, metavar="COLUMN=VALUE", section=DATA, help="What stands for missing cells (repeatable)."
)
@options.option(
    "--indicator",
    multiple=True,
    metavar="COLUMN",
    section=DATA,
    help="A column with a feature for missing cells (repeatable).",
)
@options.option(
    "--bounds",
    multiple=True,
    metavar="COLUMN=LOW:HIGH",
    section=DECLARED,
    help="The public range of numbers (repeatable).",
)
@options.option(
    "--categories",
    multiple=True,
    metavar="COLUMN=A,B",
    section=DECLARED,
    help="The texts that a column may hold (repeatable).",
)
@options.option("--classes", metavar="A,B", section=DECLARED, help="What the label may be, in order.")
@options.option("--sites", metavar="A,B", section=DECLARED, help="The names of the sites.")
@options.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="[SITE=]N",
    section=DECLARED,
    help="Declared number of records (or persons) to train on, of all sites or of one (repeatable).",
)
@options.option(
    "--public",
    metavar="WORDS",
    section=DECLARED,
    help="Write what is found in the file: any of bounds,categories,classes,sites,sizes.",
)
@options.option(
    "--private-bounds",
    "private",
    multiple=True,
    metavar="COLUMN",
    section=DECLARED,
    help="Numbers whose range nobody knows: the run releases one, with an eighth of its ε (repeatable).",
)
@options.option("--epsilon", type=click.FloatRange(min=0, min_open=True), default=4.0, show_default=True,
                section=DECLARED, help="The promise for one record or person.")  # fmt: skip
@options.option("--yes", is_flag=True, section=options.OUTPUT, help="Ask nothing; what is not declared stays open.")
@options.option(
    "-o", "--output", type=click.Path(dir_okay=False), section=options.OUTPUT, help="The file to write; - for stdout."
)
@options.option("--force", is_flag=True, section=options.OUTPUT, help="Overwrite the file if it exists.")
@options.as_json
def init(source: str, output: str | None, force: bool, as_json: bool, **given: Any) -> None:
    """Write a commented file for `dpfed run`: hospitals, or your table.

    SOURCE is a CSV file (any separator, decimal comma, UTF-8 or Latin-1), a Parquet file, or hospitals: an example with
    five hospitals and public data of scikit-learn. On a terminal, init asks for what is not declared. Nothing that was
    read from the table is written unless you answer or list it in --public.

    \b
      dpfed init hospitals
      dpfed init my.csv
      dpfed init my.csv --label y --bounds age=0:110 --public categories,classes,sizes
    """
    from dpfed.config.templates import TEMPLATES

    target = Path(output or f"{Path(source).stem}.yaml")
    if source in TEMPLATES:
        _refuse_options(source, given)
        return _finish(TEMPLATES[source]().to_yaml(), target, output, force, as_json, None)
    _require_table(source, given)
    if output != "-" and target.exists() and not force:
        raise _exists(target)
    report = _declare(source, target if output != "-" else Path("x.yaml"), given, is_quiet=as_json or output == "-")
    return _finish(report.draft.to_yaml(), target, output, force, as_json, report)


def _finish(text: str, target: Path, output: str | None, force: bool, as_json: bool, report: InitReport | None) -> None:
    from dpfed.cli.show import print_json, say

    if output == "-":
        return click.echo(text, nl=False)
    _write(target, text, force)
    if as_json:
        return print_json({"file": str(target)} | ({} if report is None else _collect_facts(report)))
    say(f"wrote {target}")
    if report is not None:
        report.show()
    return None


def _collect_facts(report: InitReport) -> dict[str, Any]:
    return {
        "source": report.draft.source,
        "sizes_are_public": report.draft.sizes == "public",
        "to_declare": report.list_open(),
        "next": f"dpfed run {report.target}" if report.is_ready else report.make_command(),
    }


def _refuse_options(source: str, given: dict[str, Any]) -> None:
    if any(value for name, value in given.items() if name not in ("yes", "epsilon", "max_sites_per_person")):
        raise click.UsageError(
            f"{source} is an example with its own data: leave --label and the other options of the data out"
        )


def _require_table(source: str, given: dict[str, Any]) -> None:
    from dpfed.config.templates import TEMPLATES
    from dpfed.data.sources import TABLES, is_table

    if not is_table(source):
        raise click.UsageError(
            f"SOURCE must be {', '.join(TEMPLATES)} or a file that ends in {', '.join(TABLES)}, got {source!r}"
        )
    if given["rows_per_person"] is not None and given["person_column"] is None:
        raise click.UsageError(
            "--rows-per-person goes with --person-column, which names the person of each row: give both or neither"
        )


def _declare(source: str, target: Path, given: dict[str, Any], *, is_quiet: bool) -> InitReport:
    """Read the table, and return what is declared of it by options, by --public and by answers."""
    from dpfed.cli.init_report import InitReport
    from dpfed.cli.progress import show_progress
    from dpfed.config.publishing import publish
    from dpfed.data.sources import read_file
    from dpfed.data.survey import survey

    public = answers.parse_public(given["public"])
    with show_progress(is_quiet=is_quiet):
        table = read_file(Path(source))
        columns = {each.name: each for each in survey(table)}
    is_asking = sys.stdin.isatty() and sys.stdout.isatty() and not given["yes"] and not is_quiet
    draft = publish(_make_draft(_relative_source(target, Path(source)), table, given, is_asking), table, public)
    if is_asking:
        draft = _ask(draft, table, columns)
    return InitReport(draft, table, columns, source, str(target))


def _make_draft(source: str, table: TextTable, given: dict[str, Any], is_asking: bool) -> TableDraft:
    from dpfed.cli import init_questions as questions
    from dpfed.config.drafts import ROWS_PER_PERSON, TableDraft

    label, site = given["label"], given["site_column"]
    if label is None:
        if not is_asking:
            columns = ", ".join(table.columns)
            raise click.UsageError(f"name the column to predict: dpfed init {source} --label COLUMN, one of {columns}")
        label = questions.ask_label(table)
        site = site or questions.ask_site_column(table)
    bounds = answers.parse_pairs("--bounds", given["bounds"], "COLUMN=LOW:HIGH", answers.parse_range)
    classes = _parse_list("--classes", given["classes"])
    return TableDraft(
        source,
        tuple(table.columns),
        label,
        site_column=site,
        person_column=given["person_column"],
        rows_per_person=given["rows_per_person"] or ROWS_PER_PERSON,
        max_sites_per_person=given["max_sites_per_person"],
        bounds=bounds,
        categories=answers.parse_pairs("--categories", given["categories"], "COLUMN=A,B", answers.parse_list),
        fill=answers.parse_pairs("--fill", given["fill"], "COLUMN=VALUE", answers.parse_constant),
        ignore=given["ignore"],
        indicator=given["indicator"],
        sizes=answers.parse_sizes(given["sizes"]),
        epsilon=given["epsilon"],
        private=given["private"],
        classes=() if classes is None and label in bounds else classes,  # a label with a range is a quantity
        sites=_parse_list("--sites", given["sites"]),
    )


def _parse_list(option: str, text: str | None) -> tuple[str, ...] | None:
    return None if text is None else answers.parse_pairs(option, [f"x={text}"], "A,B", answers.parse_list)["x"]


def _ask(draft: TableDraft, table: TextTable, columns: dict[str, ColumnSurvey]) -> TableDraft:
    from dpfed.cli import init_questions as questions

    draft = questions.ask_person_column(draft, columns)
    return questions.ask_facts(questions.ask_columns(draft, columns), table)


def _relative_source(target: Path, source: Path) -> str:
    """Return the source as the configuration names it: files are looked up beside the configuration."""
    here, there = target.parent.resolve(), source.resolve()
    return str(there.relative_to(here)) if there.is_relative_to(here) else str(there)


def _exists(target: Path) -> click.UsageError:
    return click.UsageError(f"{target} exists: use --force to overwrite it, or --output for another file")


def _write(target: Path, text: str, force: bool) -> None:
    from dpfed.runs.directory import write_durably

    try:
        if not force:
            target.open("x").close()
        write_durably(target, text.encode())
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        raise click.UsageError(f"{target} cannot be written: {error.strerror}") from None
