"""What can be said of a run from its directory: how far it is, what it spent, how good its model is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dpfed.runs import RunDirectory

RUNS = Path("runs")


def found(name: str) -> Path:
    """The directory of a run: a path, or its name in runs/. One with damaged records is refused here, at the door."""
    from dpfed.runs import RunDirectory

    for path in (Path(name), RUNS / name):
        if is_run(path):
            RunDirectory(path).require_readable()
            return path
        if (path / "config.yaml").exists():
            return path
    raise click.UsageError(f"{name} holds no run: `dpfed runs` lists those in {RUNS}/")


def new_directory(name: str) -> Path:
    """A new directory in runs/: the name and the first number that is free."""
    RUNS.mkdir(exist_ok=True)
    number = 1
    while True:
        path = RUNS / f"{name}-{number}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return path


def is_run(path: Path) -> bool:
    """Whether a run was planned there."""
    return (path / "plan.json").exists()


def run_facts(path: Path) -> dict[str, Any]:
    """What the run's public files say; one whose files were changed is refused."""
    from dpfed.runs import RunDirectory

    run = RunDirectory(path)
    run.require_readable()
    plan, rounds = run.plan, run.rounds()
    last = rounds[-1] if rounds else {}
    return {
        "directory": str(run.path),
        "name": plan.name,
        "style": plan.style,
        "status": _status(run, len(rounds)),
        "round": last.get("round", 0),
        "rounds": plan.rounds,
        "promises": [asdict(promise) for promise in plan.guarantees],
        "spent": last.get("spent", []),
        "metrics": last.get("metrics", {}),
        "is_private": all("noise" not in each for each in rounds),  # one seeded round is in every later model
    }


def _status(run: RunDirectory, done: int) -> str:
    """How the run ended; one that did not is unfinished, whether or not somebody is at work on it."""
    if run.status != "running":
        return run.status
    return "unfinished" if done else "not started"
