"""The options that describe a run, and the event they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from dpfed.cli.sections import Option

if TYPE_CHECKING:
    from dpfed.events import Event

F = TypeVar("F", bound=Callable[..., Any])

RUN = "The run"
QUESTION = "The question"
METHOD = "How it is counted"
OUTPUT = "Output"


def option(*names: str, section: str, **settings: Any) -> Callable[[F], F]:
    """A click option under a heading of the help page."""
    return click.option(*names, cls=Option, section=section, **settings)


noise_multiplier = option(
    "-z", "--noise-multiplier", type=float, section=RUN, help="Noise divided by the clip norm, per step."
)
sample_rate = option(
    "-q", "--sample-rate", type=float, section=RUN, help="Chance of each unit to be in a step (Poisson)."
)
steps = option("-t", "--steps", type=int, section=RUN, help="Number of steps in the whole run.")
event_file = option(
    "--event",
    type=click.File("rb"),
    section=RUN,
    help="Instead of the above: any event of dpfed.events as JSON, from a file or - for stdin.",
)
adjacency = option(
    "--adjacency",
    type=click.Choice(["add_remove", "replace_one"]),
    default="add_remove",
    show_default=True,
    section=METHOD,
    help="What makes two data sets neighbours.",
)
unit = option(
    "--unit",
    type=click.Choice(["record", "person", "client"]),
    default="record",
    show_default=True,
    section=METHOD,
    help="Whose contribution the clip norm bounds.",
)
as_json = option("--json", "as_json", is_flag=True, section=OUTPUT, help="Print JSON.")


def combined(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, listed in the order given."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


described = combined(noise_multiplier, sample_rate, steps, event_file)
counted = combined(adjacency, unit)


def read_run(
    noise_multiplier: float | None, sample_rate: float | None, steps: int | None, event: BinaryIO | None
) -> Event:
    """The event that the options describe: that of the file, or DP-SGD steps with Gaussian noise."""
    from dpfed import events
    from dpfed.accounting.calibrate import dp_sgd_event

    given = [value for value in (noise_multiplier, sample_rate, steps) if value is not None]
    if event is not None:
        if given:
            raise click.UsageError("--event describes the whole run: leave the other options of the run out")
        return events.loads(event.read())
    if noise_multiplier is None:
        raise click.UsageError("give the run: --noise-multiplier (with --sample-rate and --steps), or --event")
    rate = 1.0 if sample_rate is None else sample_rate
    return dp_sgd_event(noise_multiplier, rate, 1 if steps is None else steps)
