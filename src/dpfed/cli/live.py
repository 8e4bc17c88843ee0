"""The display of a run in progress: bars on a terminal, plain lines elsewhere, nothing with --json.

Others look at a terminal, and its lines are kept in logs: it shows what everyone may see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def format_score(name: str, score: Mapping[str, Any]) -> str:
    """Return a score of a round's record as text, with its mark."""
    value = "is not finite" if score["value"] is None else f"{score['value']:.4g}"
    return f"{name} {value}" + (f" ({score['mark']})" if score["mark"] else "")


def format_cost(spent: Guarantee, promise: Guarantee | None) -> str:
    """Return what was spent for one unit, of what was promised, as text."""
    from dpfed.rounding import decimal_up

    of = "" if promise is None else f" of {promise.epsilon:g}"
    return f"ε {decimal_up(spent.epsilon, 3)}{of} for one {spent.unit}"


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
        self._stamp = "" if is_private else f" [{NOT_PRIVATE}]"

    def show(self, result: RoundResult) -> None:
        from dpfed.cli.show import say

        mark = " [SIMULATION]" if result.simulation else ""

        promises = {promise.unit: promise for promise in self._plan.guarantees}
        parts = [
            *map(str, result.shareable_metrics),
            *(format_cost(spent, promises.get(spent.unit)) for spent in result.spent),
        ]
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
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=screen,
        )
        self._plan = plan
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

        scores = ", ".join(map(str, result.shareable_metrics))
        mark = "  [SIMULATION]" if result.simulation else ""
        text = f"{result.number} of {self._plan.rounds} rounds, {result.seconds:.2g} s each  {scores}{mark}"
        self._progress.update(self._rounds, completed=result.number, text=text)
        for spent, promise in zip(result.spent, self._plan.guarantees, strict=True):
            text = f"{decimal_up(spent.epsilon, 3)} of {promise.epsilon:g} at δ = {promise.delta:g}"
            self._progress.update(self._units[spent.unit], completed=spent.epsilon, text=text)

    def announce_stop(self) -> None:
        self._progress.console.print(STOPPING, style="yellow")
