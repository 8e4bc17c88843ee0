"""``dpfed compare``: what every notion of privacy can prove about one run, for those who learn what ε is."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from rich.table import Table

    from dpfed.accounting.notions import NotionRow
    from dpfed.events import Event
    from dpfed.guarantee import Guarantee

DEFAULT_RUN = {"noise_multiplier": 1.0, "sample_rate": 0.01, "steps": 10_000}

MEANING = {
    "exact": "composes the whole distribution of the loss: nothing is given away",
    "rdp": "composes moments of the loss and converts them to ε once, at the end",
    "zcdp": "one number ρ for all moments at once; made for Gaussian noise",
    "advanced": "keeps only each step's (ε, δ); losses then partly average out",
    "basic": "keeps only each step's (ε, δ), and adds them up as if each were the worst",
    "pure": "bounds the loss of every single output; Gaussian noise never does",
    "local": "trusts nobody: whoever collects the noisy reports sees each one",
    "shuffle": "trusts a shuffler alone, which mixes the noisy reports and strips their names",
    "bayesian": "measures the loss on your own data, for typical records only",
}


@click.command(cls=Command)
@options.run_options
@options.option(
    "--delta",
    type=float,
    default=1e-5,
    show_default=True,
    section=options.QUESTION,
    help="The δ at which to give ε.",
)
@options.option(
    "--users",
    type=click.IntRange(min=1),
    section=options.QUESTION,
    help="For the shuffle model: how many honest users' reports are shuffled together, at least.",
)
@options.option(
    "--distances",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    section=options.QUESTION,
    help="For Bayesian DP, a diagnostic for the owner of the data: a file with the distances between gradients of "
    "random pairs of records, in clip norms, one on each line.",
)
@options.method_options
@options.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    section=options.OUTPUT,
    help="Draw the distribution of the privacy loss to this file: .png, .svg or .pdf.",
)
@options.as_json
def compare(
    delta: float,
    users: int | None,
    distances: Path | None,
    adjacency: str,
    unit: str,
    plot: Path | None,
    as_json: bool,
    **described: Any,
) -> None:
    """Compare what each notion of privacy proves about one run.

    Without options the run is 10,000 steps of DP-SGD with noise multiplier 1, each on a random 1 % of the records.

    \b
      dpfed compare --plot loss.png
      dpfed compare --event survey.json --adjacency replace_one --users 10000
    """
    from dpfed.accounting.notions import compare as compare_notions
    from dpfed.accounting.tradeoff import detection_rate
    from dpfed.cli.show import make_console, print_json
    from dpfed.guarantee import Guarantee

    if all(value is None for value in described.values()):
        described |= DEFAULT_RUN
    event = options.read_run(**described)
    rows = compare_notions(event, delta, adjacency, users=users, distances=_read_distances(distances))
    exact = next(row.epsilon for row in rows if row.notion == "exact")
    if plot is not None:
        _draw(plot, event, exact, delta, adjacency)
    if as_json:
        facts = {"delta": delta, "adjacency": adjacency, "unit": unit, "event": event.to_dict()}
        if plot is not None:
            facts["plot"] = str(plot)
        print_json(facts | {"notions": [asdict(row) | {"meaning": MEANING[row.notion]} for row in rows]})
        return
    question = f"the smallest ε at δ = {delta:g}, {adjacency.replace('_', '-')}, per {unit}"
    screen = make_console()
    screen.print("[bold]One run, and how private each notion of privacy can prove it to be[/bold]\n")
    screen.print(_make_grid([("  The run", describe_event(event, unit)), ("  Asked", question)]))
    screen.print(_make_table(rows))
    screen.print("[bold]What each one does[/bold]")
    screen.print(_make_meanings(rows))
    if plot is not None:
        screen.print(f"\nwrote {plot}")
    if exact is not None:
        _say_guarantee(Guarantee(exact, delta, unit, adjacency), detection_rate(event, adjacency=adjacency))


def _read_distances(path: Path | None) -> list[float] | None:
    if path is None:
        return None
    try:
        return [float(line) for line in path.read_text(encoding="utf-8").split()]
    except (ValueError, UnicodeDecodeError):
        raise click.UsageError("--distances must name a file of numbers, one on each line") from None


def _draw(path: Path, event: Event, epsilon: float | None, delta: float, adjacency: str) -> None:
    """Draw the loss; refused for a kind of file that nothing draws, and where there is no ε."""
    from dpfed.accounting.loss_distribution import read_losses
    from dpfed.report.loss_chart import FORMATS, draw_losses
    from dpfed.runs.directory import write_durably

    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise click.UsageError(f"--plot must end in {', '.join(f'.{each}' for each in FORMATS)}, got {path.name!r}")
    if epsilon is None or not math.isfinite(epsilon):
        raise click.UsageError("--plot needs a run whose ε is finite")
    write_durably(path, draw_losses(read_losses(event, delta, adjacency=adjacency), epsilon, delta, kind))


def describe_event(event: Event, unit: str) -> str:
    """Describe a run of DP-SGD in words; return the repr of any other event."""
    from dpfed.events import Gaussian, PoissonSampled, Repeated

    step, count = (event.event, event.count) if isinstance(event, Repeated) else (event, 1)
    noise, rate = (step.event, step.sample_rate) if isinstance(step, PoissonSampled) else (step, 1.0)
    if not isinstance(noise, Gaussian):
        return repr(event)
    steps = "one step" if count == 1 else f"{count:,} steps"
    sampled = f", each on a random {100 * rate:g}\u00a0% of the {unit}s" if rate < 1 else ""
    return f"{steps}, Gaussian noise of {noise.noise_multiplier:g} × the clip norm{sampled}"


def _make_table(rows: tuple[NotionRow, ...]) -> Table:
    from dpfed.cli.show import new_table
    from dpfed.rounding import decimal_up

    table = new_table()
    table.add_column("Notion", no_wrap=True)
    table.add_column("ε", justify="right", no_wrap=True)
    for heading in ("Composition", "Tightness"):
        table.add_column(heading)
    for row in rows:
        epsilon = "–" if row.epsilon is None else decimal_up(row.epsilon)
        is_dim = row.epsilon is None or row.notion == "bayesian"  # which is never a guarantee
        style = "bold" if row.notion == "exact" else "dim" if is_dim else ""
        table.add_row(row.title, epsilon, row.composition, row.tightness, style=style)
    return table


def _make_meanings(rows: tuple[NotionRow, ...]) -> Table:
    lines = []
    for row in rows:
        remark = f"no number here: {row.remark}" if row.epsilon is None else row.remark
        lines += [
            (f"  {row.notion}", MEANING[row.notion]),
            ("", f"for {row.use} · trust: {row.trust} · {remark}"),
        ]
    return _make_grid(lines)


def _make_grid(lines: list[tuple[str, str]]) -> Table:
    """Return two columns of text; a line without a name belongs to the one above and is dimmed."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, text in lines:
        grid.add_row(Text(name), Text(text, style="" if name else "dim"))
    return grid


def _say_guarantee(promise: Guarantee, caught: float) -> None:
    from dpfed.cli.show import describe_unit, say
    from dpfed.rounding import decimal_up

    say(f"\nThe guarantee: ε ≤ {decimal_up(promise.epsilon)} at δ = {promise.delta:g} {describe_unit(promise)}.")
    say(promise.sentence(caught))
    alone = promise.detection_rate(0.01)
    if alone > caught + 0.001:
        say(f"(ε and δ alone would allow {100 * alone:.1f} %; the run's whole privacy curve says more.)")
