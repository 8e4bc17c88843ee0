"""``dpfed epsilon``, ``dpfed delta`` and ``dpfed calibrate``: the accountant on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from dpfed.events import Event
    from dpfed.guarantee import Guarantee

NOTIONS = ("exact", "rdp", "zcdp", "advanced", "basic")


@click.command(cls=Command)
@options.run_options
@options.option("--delta", type=float, required=True, section=options.QUESTION, help="The δ at which to give ε.")
@options.method_options
@options.option(
    "--notion",
    type=click.Choice(NOTIONS),
    default="exact",
    show_default=True,
    section=options.METHOD,
    help="How the steps are composed; all but exact are looser.",
)
@options.option("--bounds", is_flag=True, section=options.METHOD, help="Also show the certified lower bound.")
@options.as_json
def epsilon(
    delta: float, adjacency: str, unit: str, notion: str, bounds: bool, as_json: bool, **described: Any
) -> None:
    """Compute the ε of a run at a given δ: an upper bound, rounded up.

    \b
    Ten thousand steps of DP-SGD, each on 1 % of the records:
      dpfed epsilon -z 1 -q 0.01 -t 10000 --delta 1e-5
    """
    from dpfed import accounting
    from dpfed.cli.show import describe_unit, print_json, say
    from dpfed.guarantee import Guarantee
    from dpfed.rounding import decimal_down, decimal_up

    if bounds and notion != "exact":
        raise click.UsageError(
            f"--bounds goes with --notion exact only: {notion} has no lower bound, so leave one of the two out"
        )
    event = options.read_run(**described)
    lower = None
    if bounds:
        lower, upper = accounting.epsilon_bounds(event, delta, adjacency=adjacency)
    else:
        upper = accounting.epsilon(event, delta, adjacency=adjacency, notion=notion)
    promise = Guarantee(upper, delta, unit, adjacency)
    caught = _compute_detection_rate(promise, event) if notion == "exact" else promise.detection_rate(0.01)
    if as_json:
        facts = _collect_facts(promise, event, caught) | {"notion": notion}
        return print_json(facts | ({"epsilon_lower": lower} if bounds else {}))
    below = "" if lower is None else f"{decimal_down(lower)} ≤ "
    say(f"{below}ε ≤ {decimal_up(upper)} at δ = {delta:g} {describe_unit(promise)} ({notion})")
    return say(promise.sentence(caught))


@click.command(cls=Command)
@options.run_options
@options.option("--epsilon", type=float, required=True, section=options.QUESTION, help="The ε at which to give δ.")
@options.method_options
@options.as_json
def delta(epsilon: float, adjacency: str, unit: str, as_json: bool, **described: Any) -> None:
    """Compute the δ of a run at a given ε: an upper bound, rounded up.

    \b
      dpfed delta -z 1 -q 0.01 -t 10000 --epsilon 6
    """
    from dpfed import accounting
    from dpfed.cli.show import describe_unit, print_json, say
    from dpfed.guarantee import Guarantee
    from dpfed.rounding import decimal_up

    event = options.read_run(**described)
    promise = Guarantee(epsilon, accounting.delta(event, epsilon, adjacency=adjacency), unit, adjacency)
    caught = _compute_detection_rate(promise, event)
    if as_json:
        return print_json(_collect_facts(promise, event, caught))
    say(f"δ ≤ {decimal_up(promise.delta)} at ε = {epsilon:g} {describe_unit(promise)}")
    return say(promise.sentence(caught))


@click.command(cls=Command)
@options.option("--epsilon", type=float, required=True, section="The target", help="The ε to keep.")
@options.option("--delta", type=float, required=True, section="The target", help="The δ to keep it at.")
@options.noise_multiplier
@options.sample_rate
@options.steps
@options.method_options
@options.as_json
def calibrate(
    epsilon: float,
    delta: float,
    noise_multiplier: float | None,
    sample_rate: float | None,
    steps: int | None,
    adjacency: str,
    unit: str,
    as_json: bool,
) -> None:
    """Find the least noise, most steps or largest rate for a target.

    Give two of --noise-multiplier, --sample-rate and --steps; the third is found.

    \b
    How much noise keeps a thousand steps within ε = 8?
      dpfed calibrate --epsilon 8 --delta 1e-5 -q 0.1 -t 1000
    How many steps can I afford?
      dpfed calibrate --epsilon 8 --delta 1e-5 -z 1 -q 0.01
    """
    from dpfed import accounting
    from dpfed.accounting.calibrate import dp_sgd_event
    from dpfed.cli.show import describe_unit, print_json, say
    from dpfed.guarantee import Guarantee
    from dpfed.rounding import decimal_up

    plan: dict[str, Any] = {"noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "steps": steps}
    found = _find_missing(plan)
    settings = {name: value for name, value in plan.items() if value is not None}
    value = _solve(found, epsilon, delta, adjacency, settings)
    event = dp_sgd_event(**{**settings, found: value})
    spent = accounting.epsilon(event, delta, adjacency=adjacency)
    promise = Guarantee(spent, delta, unit, adjacency)
    caught = _compute_detection_rate(promise, event)
    if as_json:
        facts = {"found": found, **plan, found: value, "target_epsilon": epsilon}
        return print_json(facts | _collect_facts(promise, event, caught))
    say(f"{found} = {_format_answer(found, value)}")
    say(f"ε ≤ {decimal_up(spent)} of {epsilon:g} at δ = {delta:g} {describe_unit(promise)}")
    return say(promise.sentence(caught))


def _find_missing(plan: dict[str, Any]) -> str:
    missing = [name for name, value in plan.items() if value is None]
    if len(missing) != 1:
        raise click.UsageError(
            "give two of --noise-multiplier, --sample-rate (1 without sampling) and --steps: the third is found; "
            f"got {3 - len(missing)}"
        )
    return missing[0]


def _solve(found: str, epsilon: float, delta: float, adjacency: str, settings: dict[str, Any]) -> float:
    from dpfed.accounting import calibrate

    if found == "steps":
        return calibrate.steps_for(epsilon, delta, **settings, adjacency=adjacency)
    if found == "sample_rate":
        return calibrate.sample_rate_for(epsilon, delta, **settings, adjacency=adjacency)
    return calibrate.compute_noise_multiplier(
        epsilon, delta, settings["sample_rate"], settings["steps"], 1, adjacency=adjacency
    )


def _format_answer(found: str, value: float) -> str:
    """Return the answer, rounded such that it still keeps the target."""
    from dpfed.rounding import decimal_down, decimal_up

    if found == "steps":
        return str(value)
    return decimal_up(value) if found == "noise_multiplier" else decimal_down(value)


def _compute_detection_rate(promise: Guarantee, event: Event) -> float:
    """Return the share of members that an attacker detects at 1 % false alarms, by the run's whole privacy curve."""
    from dpfed.accounting.tradeoff import detection_rate

    return min(promise.detection_rate(0.01), detection_rate(event, 0.01, adjacency=promise.adjacency))


def _collect_facts(promise: Guarantee, event: Event, caught: float) -> dict[str, Any]:
    return {
        "epsilon": promise.epsilon,
        "delta": promise.delta,
        "unit": promise.unit,
        "adjacency": promise.adjacency,
        "detection_rate_at_1_percent": caught,
        "sentence": promise.sentence(caught),
        "event": event.to_dict(),
    }
