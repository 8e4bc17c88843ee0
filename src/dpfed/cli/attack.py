"""``dpfed attack``: try to find out who was among the training records of a run's model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from dpfed.audit.roc import AttackResult

ATTACK = "The attack"
OWNER = "For the owner alone: these figures are of private records as they are, and no promise covers them."


@click.command(cls=Command)
@click.argument("run")
@options.option(
    "--shadows",
    type=click.IntRange(0),
    default=64,
    show_default=True,
    section=ATTACK,
    help="Shadow models; 0 leaves out the attacks that need them.",
)
@options.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=options.require_svg,
    section=options.OUTPUT,
    help="Draw the ROC curves to this .svg file.",
)
@options.as_json
def attack(run: str, shadows: int, plot: Path | None, as_json: bool) -> None:
    """Find out how well attackers tell who trained a run's model.

    Members are the run's own training records, others those held out. Shadow models, trained on random halves of both,
    serve the stronger attacks. What is found is for the owner alone. It bounds no ε: that is what `dpfed audit` does.

    \b
      dpfed attack runs/hospitals-1 --plot roc.svg
    """
    from dpfed.audit.membership import attack_run
    from dpfed.cli.run_directories import find_run
    from dpfed.cli.show import print_json
    from dpfed.federated import launch
    from dpfed.federated.state.export import newest
    from dpfed.runs.directory import RunDirectory

    directory = find_run(run)
    weights = newest(RunDirectory(directory)).weights
    results = attack_run(launch.resume_run(directory), weights, shadows=shadows)
    if plot is not None:
        _draw(results, plot)
    if as_json:
        return print_json({"attacks": [_collect(each) for each in results], "note": OWNER})
    return _show(results, plot)


def _collect(result: AttackResult) -> dict[str, Any]:
    from dataclasses import asdict

    facts = asdict(result)
    del facts["curve"]
    return facts


def _show(results: tuple[AttackResult, ...], plot: Path | None) -> None:
    from dpfed.cli.show import make_console, new_table, say

    table = new_table()
    for heading in ("Attack", "AUC", "Balanced accuracy", "Advantage", "Found at 0.1 %", "Found at 1 %"):
        table.add_column(heading, justify="left" if heading == "Attack" else "right")
    for each in results:
        table.add_row(*_make_row(each))
    make_console(120).print(table)
    for each in results:
        if each.failure:
            say(f"{each.name} failed: {each.failure}.")
    if any(rate.is_coarse for each in results for rate in each.rates):
        say("Too few other records were tried for 0.1 % of them to be one: not one of them may be accused there.")
    say(OWNER if plot is None else f"The curves: {plot}. {OWNER}")


def _make_row(result: AttackResult) -> tuple[str, ...]:
    if result.failure or result.auc is None or result.auc_interval is None:
        return (result.name, *["failed"] * 5)
    low, high = result.auc_interval
    rates = [f"{rate.found:.1%} ({rate.interval[0]:.1%}–{rate.interval[1]:.1%})" for rate in result.rates]
    figures = f"{result.balanced_accuracy:.3f}", f"{result.advantage:.3f}"
    return (result.name, f"{result.auc:.3f} ({low:.3f}–{high:.3f})", *figures, *rates)


def _draw(results: tuple[AttackResult, ...], plot: Path) -> None:
    from dpfed.report.leakage import draw_roc
    from dpfed.runs.directory import OWNER_ONLY, write_durably

    curves = [(each.name, each.curve[0].tolist(), each.curve[1].tolist()) for each in results if not each.failure]
    write_durably(plot, draw_roc(curves).encode(), mode=OWNER_ONLY)
