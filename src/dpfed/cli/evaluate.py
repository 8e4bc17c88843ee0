"""``dpfed evaluate``: measure how good the model of a run is."""

from __future__ import annotations

from pathlib import Path

import click

from dpfed.cli import options
from dpfed.cli.sections import Command


@click.command(cls=Command)
@click.argument("run")
@click.argument("data", required=False)
@options.as_json
def evaluate(run: str, data: str | None, as_json: bool) -> None:
    """Measure a run's model on the records held out, or on DATA.

    DATA is a .csv file with the same columns, or package.module:name. A score on records that nobody declared public
    is not covered by the promise: do not publish it.

    \b
      dpfed evaluate runs/hospitals-1
      dpfed evaluate runs/study-1 new_patients.csv
    """
    from dpfed.cli.run_directories import find_run
    from dpfed.cli.show import print_json, say
    from dpfed.federated import launch
    from dpfed.federated.state.checkpoint import Checkpoints
    from dpfed.runs.directory import NOT_PRIVATE, RunDirectory

    directory = find_run(run)
    prepared = launch.resume_run(directory)
    checkpoint = Checkpoints(RunDirectory(directory), prepared.model.layout).newest()
    if checkpoint is None:
        raise click.UsageError(f"{directory} holds no model yet: `dpfed resume {directory}` makes one")
    records = prepared.test if data is None else prepared.records(data, Path.cwd())
    if records is None:
        raise click.UsageError("no records were held out (data.test_fraction is 0): give DATA to measure on")
    is_public = data is None and prepared.config.data.test_is_public
    scores = prepared.scores(checkpoint.weights, records, is_public=is_public)
    is_private = prepared.config.is_private
    if as_json:
        measured = {score.name: {"value": score.value, "mark": score.mark} for score in scores}
        return print_json({"round": checkpoint.round, "metrics": measured, "is_private": is_private})
    stamp = "" if is_private else f" [{NOT_PRIVATE}]"
    say(f"{prepared.plan.name} after {checkpoint.round} of {prepared.plan.rounds} rounds{stamp}:")
    return say("\n".join(f"  {score}" for score in scores))
