"""What it costs to start: ``dpfed run`` of the five hospitals until its first round is done, against ``import torch``.

    python benchmarks/startup.py [--json] [--quick]

CPU seconds of a new process each, in turn. A run may take 2.2 times as long as importing torch alone: what it loads
besides must be what it uses.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import bench
from bench import Contestant, Row, Task

OURS, TORCH, TASK = "dpfed run", "import torch", "start"
MOST = 2.2
HOSPITALS = bench.HERE.parent / "examples" / "hospitals.yaml"
# Ends where the first round is recorded. The garbage collector is off while that is hooked in, as it is in the command.
UNTIL_THE_FIRST_ROUND = """
import gc, os, sys
gc.disable()
from dpfed.runs import RunDirectory
gc.enable()
RunDirectory.append = lambda self, record: os._exit(0)
from dpfed.cli.main import main
main(sys.argv[1:])
"""


def load_run() -> dict[str, Task]:
    return {TASK: lambda _: alone(UNTIL_THE_FIRST_ROUND, "run", str(HOSPITALS), "--directory", "run")}


def load_torch() -> dict[str, Task]:
    return {TASK: lambda _: alone("import torch")}


def alone(code: str, *arguments: str) -> float:
    """Run the code in a new process, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, *arguments]
        environment = os.environ | {"PYTHONPATH": str(bench.HERE.parent / "src")}
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return 0.0


CONTESTANTS = [Contestant(OURS, load_run, clock="family"), Contestant(TORCH, load_torch, clock="family")]


def rows(quick: bool) -> list[Row]:
    found = bench.measure(Path(__file__), CONTESTANTS, [TASK], quick=quick, repeats=9, patience=120.0)
    name = "the five hospitals until their first round is done: CPU seconds, `import torch`"
    return [bench.faster(name, found.get((OURS, TASK)), found.get((TORCH, TASK)), 1 / MOST)]


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))
