"""The display of a run in progress: bars on a terminal, plain lines elsewhere, nothing with --json.

Others look at a terminal, and its lines are kept in logs: it shows what everyone may see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from dpfed.federated.results import RoundResult
    from dpfed.guarantee import Guarantee
    from dpfed.plan.plan import Plan

STOPPING = "Ctrl-C: stopping after this round, with everything saved; press it again to stop at once"


class Display(Protocol):
    """A place where the rounds of a run are shown."""

    def show(self, result: RoundResult) -> None:
        """Show a round that is done."""

    def announce_stop(self) -> None:
        """Show that the run will end after this round."""


@contextmanager
def open_display(plan: Plan, done: int, *, is_quiet: bool, is_private: bool) -> Iterator[Display]:
    """Yield the display that suits the present stdout, for the rounds after `done`."""
    from dpfed.cli.show import make_console

    screen = make_console()
    if is_quiet:
        yield _NoDisplay()
    elif not screen.is_terminal:
        yield _LineDisplay(plan, is_private=is_private)
    else:
        with _BarDisplay(plan, done, screen, is_private=is_private) as bars:
            yield bars


@contextmanager
def open_bar(title: str, total: int, *, is_quiet: bool) -> Iterator[Callable[[], None]]:
    """Yield a function that moves a bar on by one of `total` parts: on stderr, and only if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    screen = Console(stderr=True)
    if is_quiet or not screen.is_terminal:
        yield lambda: None
        return
    with Progress(console=screen, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


def format_score(name: str, score: Mapping[str, Any]) -> str:
    """Return a score of a round's record as text, with its mark."""
    value = "is not finite" if score["value"] is None else f"{score['value']:.4g}"
    return f"{name} {value}" + (f" ({score['mark']})" if score["mark"] else "")


def format_figure(name: str, figure: Mapping[str, Any]) -> str:
    """Return a released figure of a round's record as text, with its interval.

    >>> format_figure("auc", {"value": 0.91, "low": 0.85, "high": 0.96})
    'auc 0.910 (95 %: 0.850 to 0.960)'
    """
    from dpfed.mechanisms.ratios import Figure

    return f"{name.replace('_', ' ')} {Figure(**figure)}"


def format_seconds(seconds: float) -> str:
    """Return a time as people say it.

    >>> format_seconds(0.4), format_seconds(75), format_seconds(7300)
    ('1 s', '1 min 15 s', '2 h 1 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_figures(result: RoundResult) -> list[str]:
    """Return what was released about the model of a round as texts, each with its interval."""
    figures = {} if result.measured is None else result.measured.figures
    return [f"{name.replace('_', ' ')} {figure}" for name, figure in figures.items()]


def format_cost(spent: Guarantee, promise: Guarantee | None) -> str:
    """Return what was spent for one unit, of what was promised, as text."""
    from dpfed.rounding import decimal_up

    of = "" if promise is None else f" of {promise.epsilon:g}"
    return f"ε {decimal_up(spent.epsilon, 3)}{of} for one {spent.unit}"


def describe_marks(result: RoundResult, before: Mapping[str, float], plan: Plan) -> list[str]:
    """Return a sentence for each unit of which the round passed 50, 80 or 95 percent of the promise."""
    from dpfed.prepaid import find_mark

    promises = {promise.unit: promise.epsilon for promise in plan.guarantees}
    marks = {
        spent.unit: find_mark(spent.epsilon, promises[spent.unit])
        for spent in result.spent
        if spent.unit in promises
        and find_mark(spent.epsilon, promises[spent.unit])
        != find_mark(before.get(spent.unit, 0.0), promises[spent.unit])
    }
    return [f"{mark} % of the ε for one {unit} is spent" for unit, mark in marks.items()]


class _NoDisplay:
    """A display that shows nothing."""

    def show(self, result: RoundResult) -> None:
        pass

    def announce_stop(self) -> None:
        pass


class _LineDisplay:
    """A display of one line for each round."""

    def __init__(self, plan: Plan, *, is_private: bool) -> None:
        from dpfed.runs.directory import NOT_PRIVATE

        self._plan = plan
        self._spent: dict[str, float] = {}
        self._stamp = "" if is_private else f" [{NOT_PRIVATE}]"

    def show(self, result: RoundResult) -> None:
        from dpfed.cli.show import say

        mark = " [SIMULATION]" if result.simulation else ""

        promises = {promise.unit: promise for promise in self._plan.guarantees}
        parts = [
            *map(str, result.shareable_metrics),
            *format_figures(result),
            *(format_cost(spent, promises.get(spent.unit)) for spent in result.spent),
        ]
        marks = describe_marks(result, self._spent, self._plan)
        self._spent = {spent.unit: spent.epsilon for spent in result.spent}
        parts += marks if result.number < self._plan.rounds else []
        say(f"round {result.number} of {self._plan.rounds}: {', '.join(parts) or 'done'}{self._stamp}{mark}")

    def announce_stop(self) -> None:
        from dpfed.cli.show import say

        say(STOPPING)


class _BarDisplay:
    """A display of a bar for the rounds, and one for the budget of every unit."""

    def __init__(self, plan: Plan, done: int, screen: Console, *, is_private: bool) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        from dpfed.runs.directory import NOT_PRIVATE

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[text]}", markup=False),
            console=screen,
        )
        self._plan = plan
        self._spent: dict[str, float] = {}
        self._seconds, self._done = 0.0, done
        name = plan.name if is_private else f"{plan.name} [{NOT_PRIVATE}]"
        self._rounds = self._progress.add_task(
            name, total=plan.rounds, completed=done, text=f"{done} of {plan.rounds} rounds"
        )
        self._units: dict[str, TaskID] = {
            promise.unit: self._progress.add_task(f"ε for one {promise.unit}", total=promise.epsilon, text="")
            for promise in plan.guarantees
        }

    def __enter__(self) -> _BarDisplay:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, result: RoundResult) -> None:
        from dpfed.rounding import decimal_up

        self._seconds += result.seconds
        for sentence in describe_marks(result, self._spent, self._plan):
            if result.number < self._plan.rounds:
                self._progress.console.print(f"{sentence} after round {result.number}", style="yellow")
        self._spent = {spent.unit: spent.epsilon for spent in result.spent}
        scores = "".join(f", {score}" for score in [*result.shareable_metrics, *format_figures(result)])
        mark = "  [SIMULATION]" if result.simulation else ""
        text = f"{result.number} of {self._plan.rounds} rounds{self._describe_rest(result.number)}{scores}{mark}"
        self._progress.update(self._rounds, completed=result.number, text=text)
        for spent, promise in zip(result.spent, self._plan.guarantees, strict=True):
            text = f"{decimal_up(spent.epsilon, 3)} of {promise.epsilon:g} at δ = {promise.delta:g}"
            self._progress.update(self._units[spent.unit], completed=spent.epsilon, text=text)

    def _describe_rest(self, number: int) -> str:
        """Return the time that the other rounds take if they take as long as those before."""
        left = self._seconds / max(number - self._done, 1) * (self._plan.rounds - number)
        return f", {format_seconds(left)} left" if 0 <= left < math.inf and number < self._plan.rounds else ""

    def announce_stop(self) -> None:
        self._progress.console.print(STOPPING, style="yellow")
