"""Options that several commands share: those that describe a run, and the event that they describe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from dpfed.cli.sections import Option

if TYPE_CHECKING:
    from dpfed.events import Event

F = TypeVar("F", bound=Callable[..., Any])

RUN = "The run"
QUESTION = "The question"
METHOD = "How privacy is measured"
OUTPUT = "Output"


def option(*names: str, section: str, **settings: Any) -> Callable[[F], F]:
    """Return a click option under a heading of the help page."""
    return click.option(*names, cls=Option, section=section, **settings)


noise_multiplier = option(
    "-z",
    "--noise-multiplier",
    type=float,
    section=RUN,
    help="Standard deviation of the noise divided by the clip norm.",
)
sample_rate = option(
    "-q", "--sample-rate", type=float, section=RUN, help="Probability that a record is in a batch (Poisson sampling)."
)
steps = option("-t", "--steps", type=int, section=RUN, help="Number of steps in the whole run.")
event_file = option(
    "--event",
    type=click.File("rb"),
    section=RUN,
    help="Instead of the above: any event of dpfed.events as JSON; - reads stdin.",
)
adjacency = option(
    "--adjacency",
    type=click.Choice(["add_remove", "replace_one"]),
    default="add_remove",
    show_default=True,
    section=METHOD,
    help="Neighbouring data sets: one unit more or less, or one replaced.",
)
unit = option(
    "--unit",
    type=click.Choice(["record", "person", "client"]),
    default="record",
    show_default=True,
    section=METHOD,
    help="Whom the promise protects: the clip norm bounds its contribution.",
)
as_json = option("--json", "as_json", is_flag=True, section=OUTPUT, help="Print JSON.")


def require_svg(_context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a picture in another format than the one that is written, before anything is computed for it."""
    if path is not None and path.suffix.lower() != ".svg":
        raise click.BadParameter(f"it must end in .svg, the format that is written, got {path.name!r}", param=parameter)
    return path


def combine(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Return several options as one decorator, listed in the order given."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


run_options = combine(noise_multiplier, sample_rate, steps, event_file)
method_options = combine(adjacency, unit)


def read_run(
    noise_multiplier: float | None, sample_rate: float | None, steps: int | None, event: BinaryIO | None
) -> Event:
    """Return the event that the options describe: that of the file, or DP-SGD steps with Gaussian noise."""
    from dpfed import events
    from dpfed.accounting.calibrate import dp_sgd_event

    given = [value for value in (noise_multiplier, sample_rate, steps) if value is not None]
    if event is not None:
        if given:
            raise click.UsageError(
                "--event describes the whole run: leave --noise-multiplier, --sample-rate and --steps out"
            )
        return events.loads(event.read())
    if noise_multiplier is None:
        raise click.UsageError("give the run: --noise-multiplier, with --sample-rate and --steps, or --event FILE")
    rate = 1.0 if sample_rate is None else sample_rate
    return dp_sgd_event(noise_multiplier, rate, 1 if steps is None else steps)
