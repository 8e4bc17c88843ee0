"""The directories of runs: where one is found or made, and what its public files say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dpfed.runs.directory import RunDirectory

RUNS = Path("runs")


def find_run(name: str) -> Path:
    """Return the directory of a run, given as a path or as a name in runs/; refuse one with damaged records."""
    from dpfed.runs.directory import RunDirectory

    for path in (Path(name), RUNS / name):
        if is_run(path):
            RunDirectory(path).require_readable()
            return path
        if (path / "config.yaml").exists():
            return path
    raise click.UsageError(f"{name} holds no run, or was moved: `dpfed runs` lists those in {RUNS}/")


def make_directory(name: str) -> Path:
    """Make a new directory in runs/, named by the run and the first number that is free."""
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
    """Return whether the directory holds the plan of a run."""
    return (path / "plan.json").exists()


def collect_facts(path: Path) -> dict[str, Any]:
    """Return what the run's public files say; refuse a run whose files were changed."""
    from dpfed.runs.directory import RunDirectory

    run = RunDirectory(path)
    run.require_readable()
    plan, rounds = run.plan, run.rounds()
    last = rounds[-1] if rounds else {}
    return {
        "directory": str(run.path),
        "name": plan.name,
        "style": plan.style,
        "status": _describe_status(run, len(rounds)),
        "round": last.get("round", 0),
        "rounds": plan.rounds,
        "promises": [asdict(promise) for promise in plan.guarantees],
        "spent": last.get("spent", []),
        "metrics": last.get("metrics", {}),
        "released": next((each["released"]["figures"] for each in reversed(rounds) if "released" in each), {}),
        "simulation": next((each["simulation"] for each in rounds if each.get("simulation")), ""),
        "is_private": all("noise" not in each for each in rounds),  # one seeded round is in every later model
    }


def _describe_status(run: RunDirectory, done: int) -> str:
    """Return how the run ended; one that did not is unfinished, whether or not a process is working on it."""
    if run.status != "running":
        return run.status
    return "unfinished" if done else "not started"
