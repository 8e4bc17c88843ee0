"""``dpfed attack``: try to find out who trained a run's model, and what its records say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from dpfed.audit.attacks import AttributeResult
    from dpfed.audit.inversion import Inversion
    from dpfed.audit.roc import AttackResult, Interval
    from dpfed.federated.launch import Launch
    from dpfed.federated.state.layout import Vector

ATTACK, MORE = "The attack", "Other attacks"
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
@options.option("--attribute", metavar="COLUMN", section=MORE, help="Guess this column of members and of others.")
@options.option("--guesses", section=MORE, help="What to guess from: 20,40,60.  [default: all categories]")
@options.option(
    "--gradients",
    type=click.IntRange(1),
    section=MORE,
    help="Read so many members from the gradient of a step on each.",
)
@options.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=options.require_svg,
    section=options.OUTPUT,
    help="Draw the ROC curves to this .svg file.",
)
@options.as_json
def attack(
    run: str,
    shadows: int,
    attribute: str | None,
    guesses: str | None,
    gradients: int | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Find out how well attackers tell who trained a run's model.

    Members are the run's own training records, others those held out. Shadow models, trained on random halves of both,
    serve the stronger attacks. What is found is for the owner alone. It bounds no ε: that is what `dpfed audit` does.

    \b
      dpfed attack runs/hospitals-1 --plot roc.svg
      dpfed attack runs/wards-1 --attribute sex --gradients 100
    """
    from dpfed.audit.membership import attack_run
    from dpfed.cli.run_directories import find_run
    from dpfed.cli.show import print_json
    from dpfed.federated import launch
    from dpfed.federated.state.export import newest
    from dpfed.runs.directory import RunDirectory

    if guesses is not None and attribute is None:
        raise click.UsageError("--guesses are for --attribute: name the column to guess")
    directory = find_run(run)
    weights, prepared = newest(RunDirectory(directory)).weights, launch.resume_run(directory)
    guessed = _guess(prepared, weights, attribute, guesses)  # what is refused is refused before shadow models train
    read = _read_gradients(prepared, weights, gradients)
    results = attack_run(prepared, weights, shadows=shadows)
    if plot is not None:
        _draw(results, plot)
    if as_json:
        return print_json(_collect(results, attribute, guessed, read))
    _show(results)
    if guessed is not None:
        _say_guessed(str(attribute), guessed)
    if read:
        _show_read(read)
    return _say_owner(plot)


def _guess(prepared: Launch, weights: Vector, column: str | None, guesses: str | None) -> AttributeResult | None:
    if column is None:
        return None
    from dpfed.audit.attributes import attack_column

    parts = [part.strip() for part in (guesses or "").split(",")]
    return attack_column(prepared, weights, column, [part for part in parts if part])


def _read_gradients(prepared: Launch, weights: Vector, count: int | None) -> tuple[Inversion, ...]:
    if count is None:
        return ()
    from dpfed.audit.inversion import invert_run

    return invert_run(prepared, weights, count)


def _collect(
    results: tuple[AttackResult, ...],
    attribute: str | None,
    guessed: AttributeResult | None,
    read: tuple[Inversion, ...],
) -> dict[str, Any]:
    from dataclasses import asdict

    facts: dict[str, Any] = {"attacks": [asdict(each) for each in results], "note": OWNER}
    for each in facts["attacks"]:
        del each["curve"]
    if guessed is not None:
        facts["attribute"] = {"column": attribute, "advantage": guessed.advantage} | asdict(guessed)
    if read:
        keys = ("noise_multiplier", "likeness", "labels")
        facts["gradients"] = [{key: getattr(each, key) for key in keys} for each in read]
    return facts


def _show(results: tuple[AttackResult, ...]) -> None:
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
    coarse = sorted({rate.false_alarms for each in results for rate in each.rates if rate.is_coarse})
    if coarse:
        rates = " or ".join(f"{100 * rate:g} %" for rate in coarse)
        say(f"Too few other records were tried for {rates} of them to be one: not one of them may be accused there.")


def _say_guessed(column: str, guessed: AttributeResult) -> None:
    from dpfed.cli.show import say

    if guessed.failure:
        return say(f"Guessing {column} failed: {guessed.failure}.")
    members = _format_share(guessed.members, guessed.members_interval)
    others = _format_share(guessed.others, guessed.others_interval)
    return say(
        f"{column} was guessed right for {members} of the members and for {others} of the others, from the loss."
    )


def _show_read(read: tuple[Inversion, ...]) -> None:
    from dpfed.cli.show import format_count, make_console, new_table, say

    say(f"{format_count(len(read[0].read), 'member')} read from the gradient of a step on one record:")
    table = new_table()
    for heading in ("Noise multiplier", "Correlation with the record", "Labels that are right"):
        table.add_column(heading, justify="right")
    for each in read:
        noise = "none" if each.noise_multiplier is None else f"{each.noise_multiplier:.4g}"
        table.add_row(noise, f"{each.likeness:.2f}", f"{each.labels:.1%}")
    make_console(120).print(table)


def _say_owner(plot: Path | None) -> None:
    from dpfed.cli.show import say

    say(OWNER if plot is None else f"The curves: {plot}. {OWNER}")


def _format_share(share: float | None, interval: Interval | None) -> str:
    low, high = interval or (0.0, 1.0)
    return f"{share or 0.0:.1%} ({low:.1%}–{high:.1%})"


def _make_row(result: AttackResult) -> tuple[str, ...]:
    if result.failure or result.auc is None or result.auc_interval is None:
        return (result.name, *["failed"] * 5)
    low, high = result.auc_interval
    rates = [_format_share(rate.found, rate.interval) for rate in result.rates]
    figures = f"{result.balanced_accuracy:.3f}", f"{result.advantage:.3f}"
    return (result.name, f"{result.auc:.3f} ({low:.3f}–{high:.3f})", *figures, *rates)


def _draw(results: tuple[AttackResult, ...], plot: Path) -> None:
    from dpfed.report.leakage import draw_roc
    from dpfed.runs.directory import OWNER_ONLY, write_durably

    curves = [(each.name, each.curve[0].tolist(), each.curve[1].tolist()) for each in results if not each.failure]
    write_durably(plot, draw_roc(curves).encode(), mode=OWNER_ONLY)
