"""``dpfed evaluate``: measure how good the model of a run is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from rich.table import Table

    from dpfed.federated.assessment import ClassAssessment, QuantityAssessment

MINE = "For the owner alone: exact figures on records that nobody declared public are not covered by the promise."


@click.command(cls=Command)
@click.argument("run")
@click.argument("data", required=False)
@options.as_json
def evaluate(run: str, data: str | None, as_json: bool) -> None:
    """Measure a run's model on the records held out, or on DATA.

    DATA is a table with the same columns, or package.module:name. Besides loss and metric: AUC, sensitivity,
    specificity, calibration and the confusion matrix of a classifier, the errors of a regression, and what guessing
    would reach. A score on records that nobody declared public is not covered by the promise: do not publish it.

    \b
      dpfed evaluate runs/hospitals-1
      dpfed evaluate runs/study-1 new_patients.csv
    """
    from dpfed.cli.progress import show_progress
    from dpfed.cli.run_directories import find_run
    from dpfed.cli.show import print_json, say
    from dpfed.runs.directory import NOT_PRIVATE, RunDirectory

    directory = find_run(run)
    with show_progress(is_quiet=as_json):
        from dpfed.federated import launch
        from dpfed.federated.state.checkpoint import Checkpoints

        prepared = launch.resume_run(directory)
    checkpoint = Checkpoints(RunDirectory(directory), prepared.model.layout).newest()
    if checkpoint is None:
        raise click.UsageError(f"{directory} holds no model yet: `dpfed resume {directory}` makes one")
    records = prepared.test if data is None else prepared.records(data, Path.cwd())
    if records is None:
        raise click.UsageError("no records were held out (data.test_fraction is 0): give DATA to measure on")
    is_public = data is None and prepared.config.data.test_is_public
    scores = prepared.scores(checkpoint.weights, records, is_public=is_public)
    found = prepared.assess(checkpoint.weights, records)
    is_private = prepared.config.is_private
    if as_json:
        measured = {score.name: {"value": score.value, "mark": score.mark} for score in scores}
        more = {} if found is None else {"assessment": found.to_plain()}
        facts = {"round": checkpoint.round, "metrics": measured, "is_private": is_private, "is_public": is_public}
        return print_json(facts | more)
    stamp = "" if is_private else f" [{NOT_PRIVATE}]"
    say(f"{prepared.plan.name} after {checkpoint.round} of {prepared.plan.rounds} rounds{stamp}:")
    say("\n".join(f"  {score}" for score in scores))
    if not is_public:
        say(MINE)
    return None if found is None else _show(found)


def _show(found: ClassAssessment | QuantityAssessment) -> None:
    from dpfed.cli.show import make_console, say
    from dpfed.federated.assessment import ClassAssessment

    if isinstance(found, ClassAssessment):
        auc = "" if found.auc is None else f"  AUC {found.auc:.4f},"
        say(f"{auc} calibration error {found.calibration_error:.4f}")
        make_console().print(_make_table(found))
        guess = f"guessing the most frequent class: {found.guessing:.4f}"
        said = f"accuracy {found.accuracy:.4f}, {guess}"
    else:
        r2 = "" if found.r2 is None else f", R² {found.r2:.4f}"
        say(f"  root mean square error {found.rmse:.4g}, mean absolute error {found.mae:.4g}{r2}")
        said = f"error {found.rmse:.4g}, guessing the mean: {found.guessing:.4g}"
    verdict = "The model is better than guessing" if found.is_better else "The model is NO BETTER THAN GUESSING"
    say(f"{verdict}: {said}.")


def _make_table(found: ClassAssessment) -> Table:
    """Return the confusion matrix with sensitivity and specificity of each class."""
    from dpfed.cli.show import new_table

    table = new_table()
    for title in ("true class", *(f"said {name}" for name in found.classes), "sensitivity", "specificity"):
        table.add_column(title, justify="left" if title == "true class" else "right")
    for number, name in enumerate(found.classes):
        rates = (found.sensitivity[number], found.specificity[number])
        cells = [f"{count:,}" for count in found.confusion[number]]
        table.add_row(name, *cells, *("–" if rate is None else f"{rate:.4f}" for rate in rates))
    return table
