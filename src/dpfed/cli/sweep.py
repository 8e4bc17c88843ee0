"""``dpfed sweep``: one task at several ε, side by side: accuracy, leakage, time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from dpfed.audit.sweep import Outcome

VARIED = "What varies"
DATA = "The records to train on"
INVENTED = (
    "Scores and leakage are of generated records and say nothing of yours: --public uses those of the file if anybody "
    "may know them, --on-private-data if the file's ledger is to pay."
)
OWNER = "For the owner alone: accuracy and leakage are of private records as they are."


def _parse_list(kind: Callable[[str], Any]) -> Callable[..., Any]:
    def parse(_context: click.Context, option: click.Parameter, text: str | None) -> tuple[Any, ...]:
        try:
            return tuple(kind(part) for part in text.split(",")) if text else ()
        except ValueError:
            raise click.BadParameter(f"write numbers with commas, such as 8,3,1, not {text!r}", param=option) from None

    return parse


@click.command(cls=Command)
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@options.option("--epsilon", "epsilons", callback=_parse_list(float), section=VARIED, help="Each ε to try: inf,8,3,1.")
@options.option("--clip", "clip_norms", callback=_parse_list(float), section=VARIED, help="Clip norms: 0.5,1,2.")
@options.option(
    "--batch-size", "batch_sizes", callback=_parse_list(int), section=VARIED, help="Batch sizes: 16,64,256."
)
@options.option("--delta", "deltas", callback=_parse_list(float), section=VARIED, help="Each δ to try: 1e-5,1e-6.")
@options.option("--seeds", type=click.IntRange(1), default=1, show_default=True, section=VARIED, help="Runs of each.")
@options.option("--public", is_flag=True, section=DATA, help="The records of the file are public.")
@options.option(
    "--on-private-data",
    is_flag=True,
    section=DATA,
    help="Train on private records; every run is reserved in the file's ledger first, and inf is refused.",
)
@options.option(
    "--shadows",
    type=click.IntRange(0),
    default=16,
    show_default=True,
    section="The attacks",
    help="Shadow models; 0 leaves out the attacks that need them.",
)
@options.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=options.require_svg,
    section=options.OUTPUT,
    help="Draw score and leakage of each setting to this .svg file.",
)
@options.as_json
def sweep(
    config: Path,
    public: bool,
    on_private_data: bool,
    shadows: int,
    plot: Path | None,
    as_json: bool,
    **varied: Any,
) -> None:
    """Compare ε, accuracy, leakage and time of one task.

    Each setting is trained and attacked. Records are those of the file if they come with scikit-learn or are declared
    --public; else they are generated. A file with base: and variants: compares whole defences.

    \b
      dpfed sweep hospitals.yaml --epsilon inf,8,3,1 --seeds 3 --plot sweep.svg
      dpfed sweep defences.yaml
    """
    from dpfed.audit.settings import read_settings
    from dpfed.audit.sweep import GENERATED, PRIVATE, find_kind, run_sweep
    from dpfed.cli.show import format_count, print_json, say
    from dpfed.config.reading import read_content
    from dpfed.config.strangers import decode_text

    text = decode_text(read_content(config), str(config))
    settings = read_settings(text, file=str(config), **varied)
    kind = find_kind(settings, is_public=public, is_private=on_private_data)
    if not as_json:
        say(f"{format_count(len(settings), 'run')} on {kind} records")
        if kind == PRIVATE:
            say(OWNER)
    made = run_sweep(settings, kind, config.resolve().parent, shadows=shadows)
    outcomes = list(made if as_json else _follow(made, len(settings)))
    if plot is not None:
        _draw(outcomes, plot)
    note = {PRIVATE: OWNER, GENERATED: INVENTED}.get(kind, "")
    if as_json:
        return print_json({"records": kind, "runs": [vars(each) for each in outcomes], "note": note})
    _show(outcomes)
    if plot is not None:
        say(f"wrote {plot}")
    return say(note) if note else None


def _follow(outcomes: Iterable[Outcome], total: int) -> Iterator[Outcome]:
    """Yield all outcomes; say each on stderr at once, so that an interrupt does not lose it."""
    for number, each in enumerate(outcomes, start=1):
        label, _, epsilon, score, attack, auc, *_ = _make_row(each)
        result = f"ε {epsilon}, score {score}, {attack}: AUC {auc}" if not each.failure else "failed"
        click.echo(f"run {number} of {total}: {label}, seed {each.seed}: {result}", err=True)
        yield each


def _show(outcomes: list[Outcome]) -> None:
    from dpfed.cli.show import make_console, new_table, say

    table = new_table()
    for heading in ("Setting", "Seed", "ε", "Score", "Strongest attack", "AUC", "Found at 1 %", "Seconds"):
        table.add_column(heading, justify="left" if heading in ("Setting", "Strongest attack") else "right")
    for each in outcomes:
        table.add_row(*_make_row(each))
    make_console(120).print(table)
    for each in outcomes:
        if each.failure:
            say(f"{each.label}, seed {each.seed}: {each.failure}.")


def _make_row(outcome: Outcome) -> tuple[str, ...]:
    score = "–" if outcome.score is None else f"{outcome.score:.3f}"
    epsilon = "∞" if outcome.epsilon == float("inf") else f"{outcome.epsilon:.4g}"
    attack = ("failed", "failed", "failed")
    if outcome.auc is not None and outcome.found is not None:
        attack = outcome.attack, f"{outcome.auc:.3f}", f"{outcome.found:.1%}"
    return (outcome.label, str(outcome.seed), epsilon, score, *attack, f"{outcome.seconds:.1f}")


def _draw(outcomes: list[Outcome], plot: Path) -> None:
    from dpfed.report.leakage import draw_sweep
    from dpfed.runs.directory import OWNER_ONLY, write_durably

    points = [(each.label, each.score, each.auc, each.found) for each in outcomes]
    metric = next((each.metric for each in outcomes if each.metric), "score")
    write_durably(plot, draw_sweep(points, metric).encode(), mode=OWNER_ONLY)
