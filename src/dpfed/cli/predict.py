"""``dpfed predict``: let the model of a run predict the records of a new table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from dpfed.data.tables import TextTable
    from dpfed.federated.predicting import Predictor

PREDICTION = "prediction"


@click.command(cls=Command)
@click.argument("run")
@click.argument("table", type=click.Path(dir_okay=False, path_type=Path))
@options.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    section=options.OUTPUT,
    help="The file to write, .csv or .parquet.  [default: CSV on stdout]",
)
@options.option(
    "--keep", multiple=True, metavar="COLUMN", section=options.OUTPUT, help="A column of TABLE to copy beside."
)
@options.option("--force", is_flag=True, section=options.OUTPUT, help="Overwrite a file that exists.")
@options.as_json
def predict(run: str, table: Path, output: Path | None, keep: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Predict each record of a TABLE with a run's model.

    TABLE is a .csv, .tsv or .parquet file with the columns that the run was trained on, in any order; it needs no
    label. Each record gets its class and the probability of every class, in the order of the table. It costs no budget.

    \b
      dpfed predict runs/study-1 new.csv
      dpfed predict runs/study-1 new.csv --keep patient -o predictions.csv
    """
    from dpfed.cli.progress import show_progress
    from dpfed.cli.run_directories import find_run
    from dpfed.cli.show import print_json, say
    from dpfed.data.sources import read_file

    _require_writable(table, output, force)
    with show_progress(is_quiet=as_json):
        from dpfed.federated.predicting import open_predictor

        predictor = open_predictor(find_run(run))
        read = read_file(table)
        for column in keep:
            read.require(column, "keep")
        columns = {column: list(read.columns[column]) for column in keep} | _predict(predictor, read)
    if output is not None:
        _write(output, columns)
    if as_json:
        return print_json({"round": predictor.round, **({"file": str(output)} if output else {"columns": columns})})
    if output is None:
        return click.echo(_format_csv(columns), nl=False)
    return say(f"wrote {output}: one line for each record of {table}, after {predictor.round} rounds")


def _predict(predictor: Predictor, table: TextTable) -> dict[str, list[Any]]:
    found = predictor.predict(table)
    if not predictor.classes:
        return {PREDICTION: found[:, 0].tolist()}
    names = [predictor.classes[number] for number in found.argmax(axis=1)]
    shares = {f"p({name})": found[:, number].tolist() for number, name in enumerate(predictor.classes)}
    return {PREDICTION: names, **shares}


def _require_writable(table: Path, output: Path | None, force: bool) -> None:
    from dpfed.data.sources import TABLES, is_table

    if not is_table(str(table)):
        raise click.UsageError(f"TABLE must end in {' or '.join(TABLES)}, got {table.name}")
    if output is None:
        return
    if output.suffix.lower() not in (".csv", ".parquet"):
        raise click.UsageError(f"--output must end in .csv or .parquet, got {output.name}")
    if not output.parent.is_dir():
        raise click.UsageError(f"there is no folder {output.parent}: make it first")
    if output.exists() and not force:
        raise click.UsageError(f"{output} exists: use --force to overwrite it, or choose another name")


def _write(output: Path, columns: dict[str, list[Any]]) -> None:
    from dpfed.data.parquet import write_parquet
    from dpfed.runs.directory import write_durably

    if output.suffix.lower() == ".parquet":
        write_durably(output, write_parquet(columns))
    else:
        write_durably(output, _format_csv(columns).encode())


def _format_csv(columns: dict[str, list[Any]]) -> str:
    import csv
    import io

    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(
        [f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row]
        for row in zip(*columns.values(), strict=True)
    )
    return made.getvalue()
