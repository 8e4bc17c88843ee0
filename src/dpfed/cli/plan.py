"""``dpfed plan``: compute what a run would cost, before anything is spent."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from rich.table import Table

    from dpfed.plan.fits import Fit
    from dpfed.plan.plan import Plan

QUESTION = "The question"


@click.command(cls=Command)
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@options.option(
    "--budget",
    "budgets",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    metavar="ε",
    section=QUESTION,
    help="Show what would fit within this ε (repeatable).  [default: half and twice the ε of the file]",
)
@options.option(
    "--by-round",
    is_flag=True,
    section=QUESTION,
    help="Also print ε after each round, and draw it to CONFIG-epsilon-UNIT.svg.",
)
@options.option(
    "--no-code",
    is_flag=True,
    section=QUESTION,
    help="Import no module that the file names, and list them: for a file of somebody else.",
)
@options.as_json
def plan(config: Path, budgets: tuple[float, ...], by_round: bool, no_code: bool, as_json: bool) -> None:
    """Show what a run would cost and what else would fit; spend nothing.

    If data.source is package.module:name, that module is imported and run, as `dpfed run` does. With --no-code it is
    not, and the plan is made of the sizes that the file declares.

    \b
      dpfed plan hospitals.yaml
      dpfed plan hospitals.yaml --budget 1 --by-round
    """
    from dpfed.aggregation.adversaries import describe_attack
    from dpfed.cli.progress import show_progress
    from dpfed.cli.show import print_json
    from dpfed.config import RunConfig
    from dpfed.federated.glance import glance
    from dpfed.federated.planning import make_plan, read_declared

    settings = RunConfig.read(config)
    is_code = no_code and "data.source" in settings.code
    with show_progress(is_quiet=as_json):
        made = make_plan(settings, read_declared(settings) if is_code else glance(settings, config.parent))
        fits = _find_fits(made, budgets)
    rounds = _compute_by_round(made) if by_round and made.guarantees else []
    drawn = _draw(made, rounds, Path(f"{config.stem}-epsilon")) if rounds else []
    if as_json:
        named = {"not_imported": settings.code} if no_code else {}
        return print_json(_collect_facts(made, fits, rounds) | {"plots": list(map(str, drawn))} | named)
    mark = describe_attack(settings.attack_sim)
    _print(made, fits, rounds, drawn, is_private=settings.is_private, simulation=mark)
    return _say_code(settings.code) if no_code else None


def _say_code(code: dict[str, str]) -> None:
    """List the modules of the file that a run imports, and say that none was imported."""
    from dpfed.cli.show import say

    if not code:
        return say("\nThe file names no module: a run imports none either.")
    for key, name in code.items():
        when = (
            "plan without --no-code, run, resume and evaluate" if key == "data.source" else "run, resume and evaluate"
        )
        say(f"\nNot imported: {key} is {name}, which {when} import and run.")
    return None


def _find_fits(made: Plan, budgets: tuple[float, ...]) -> list[Fit]:
    from dpfed.plan.fits import fit_budget

    return [
        fit_budget(made, replace(promise, epsilon=epsilon))
        for promise in made.guarantees
        for epsilon in budgets or (promise.epsilon / 2, 2 * promise.epsilon)
    ]


def _compute_by_round(made: Plan) -> list[dict[str, Any]]:
    """Return the largest ε after each round, for a client that takes part whenever it is asked."""
    from dpfed.plan.costs import compute_spent, find_charges_until

    deltas = {promise.unit: promise.delta for promise in made.guarantees}
    rows = []
    for number in range(1, made.rounds + 1):
        costs = compute_spent(made, deltas, *find_charges_until(made, number)).statements
        rows.append({"round": number, **{each.unit: each.epsilon for each in costs}})
    return rows


def _draw(made: Plan, rounds: list[dict[str, Any]], stem: Path) -> list[Path]:
    from dpfed.report.charts import draw_by_round
    from dpfed.runs.directory import write_durably

    paths = []
    for promise in made.guarantees:
        points = [(row["round"], row[promise.unit]) for row in rounds]
        paths.append(stem.with_name(f"{stem.name}-{promise.unit}.svg"))
        write_durably(paths[-1], draw_by_round(points, made.rounds, promise.epsilon).encode())
    return paths


def _collect_facts(made: Plan, fits: list[Fit], rounds: list[dict[str, Any]]) -> dict[str, Any]:
    import json

    return {
        "plan": json.loads(made.to_json()),
        "statements": [asdict(statement) for statement in _list_statements(made)],
        "shuffled": _collect_shuffled(made),
        "per_round": _collect_rounds(made),
        "binding": made.binding() if made.guarantee is not None else None,
        "fits": [asdict(fit) for fit in fits],
        "by_round": rounds,
    }


def _collect_rounds(made: Plan) -> list[dict[str, Any]]:
    """Return ε and δ of one round alone for each promise; none where the rounds are one event."""
    is_tree = made.client is not None and made.client.tree is not None
    promises = [each for each in made.guarantees if not (is_tree and each.unit == "client")]
    costs = {each.unit: made.round_cost(each) for each in promises}
    return [{"unit": unit, "epsilon": epsilon, "delta": delta} for unit, (epsilon, delta) in costs.items()]


def _collect_shuffled(made: Plan) -> dict[str, Any] | None:
    """Return what holds for one client after shuffling; None without a shuffler."""
    from dpfed.plan.shuffling import find_shuffled

    found = None if made.client_guarantee is None else find_shuffled(made, made.client_guarantee.delta)
    return None if found is None else asdict(found)


def _list_statements(made: Plan) -> list[Any]:
    return list(made.statements()) if made.units else []


def _print(
    made: Plan, fits: list[Fit], rounds: list[dict[str, Any]], drawn: list[Path], *, is_private: bool, simulation: str
) -> None:
    from dpfed.cli.show import make_console, say
    from dpfed.federated.planning import describe_algorithm
    from dpfed.runs.directory import NOT_PRIVATE

    say(made.explain())
    if text := describe_algorithm(made):
        say(f"\n{text}")
    if simulation:
        say(f"\n{simulation}")
    if not is_private:
        say(f"\n{NOT_PRIVATE}: the file has a seed, and whoever knows it can subtract the noise.")
    if fits:
        say("\nWhat would fit:")
        make_console().print(_make_fit_table(made, fits))
    if rounds:
        say("\nε after each round, at most:")
        make_console().print(_make_round_table(rounds))
    for path in drawn:
        say(f"wrote {path}")


def _make_fit_table(made: Plan, fits: list[Fit]) -> Table:
    from dpfed.rounding import decimal_up

    rows = []
    for fit in fits:
        noise = "no noise is enough" if fit.noise_multiplier is None else decimal_up(fit.noise_multiplier)
        rows.append([f"{fit.budget.epsilon:g}", fit.budget.unit, noise, str(fit.rounds)])
    return _make_table(["ε", "for one", f"noise multiplier for {made.rounds} rounds", "or rounds at this noise"], rows)


def _make_round_table(rounds: list[dict[str, Any]]) -> Table:
    from dpfed.rounding import decimal_up

    units = [name for name in rounds[0] if name != "round"]
    rows = [[str(row["round"]), *(decimal_up(row[unit], 4) for unit in units)] for row in rounds]
    return _make_table(["round", *(f"ε for one {unit}" for unit in units)], rows)


def _make_table(titles: list[str], rows: list[list[str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*row)
    return table
