"""``dpfed runs``: list the runs in a folder, one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

WIDE = 160  # off a terminal, where nothing is cut off


@click.command(cls=Command)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"))
@options.as_json
def runs(folder: Path, as_json: bool) -> None:
    """List the runs in runs/ or in FOLDER, with status, ε and scores.

    \b
      dpfed runs
    """
    from dpfed.cli.run_directories import collect_facts, is_run
    from dpfed.cli.show import print_json, say

    paths = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime) if folder.is_dir() else []
    found = [collect_facts(path) for path in paths if is_run(path)]
    if as_json:
        return print_json({"runs": found})
    if not found:
        return say(f"There is no run in {folder}/: `dpfed init hospitals` and `dpfed run hospitals.yaml` make one.")
    return _print(found)


def _print(found: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from dpfed.cli.show import make_console

    table = Table(box=None, pad_edge=False)
    for title in ("run", "style", "status", "rounds", "ε spent of promised", "scores"):
        table.add_column(title)
    for facts in found:
        table.add_row(*map(Text, _make_row(facts)))
    make_console(WIDE).print(table)


def _make_row(facts: dict[str, Any]) -> list[str]:
    from dpfed.cli.live import format_cost, format_figure, format_score
    from dpfed.guarantee import Guarantee
    from dpfed.runs.directory import NOT_PRIVATE

    promises = {each["unit"]: Guarantee(**each) for each in facts["promises"]}
    spent = [Guarantee(**each) for each in facts["spent"]]
    costs = ", ".join(format_cost(each, promises.get(each.unit)) for each in spent)
    scores = [format_score(name, score) for name, score in facts["metrics"].items() if name != "loss"]
    scores += [format_figure(name, figure) for name, figure in facts["released"].items()]
    return [
        Path(facts["directory"]).name,
        facts["style"],
        facts["status"].replace("_", " ") + (", SIMULATION" if facts["simulation"] else ""),
        f"{facts['round']} of {facts['rounds']}",
        costs if facts["is_private"] else NOT_PRIVATE,
        ", ".join(scores),
    ]
