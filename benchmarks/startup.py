"""What it costs to start: ``dpfed run`` of the five hospitals until its first round is done, against ``import torch``.

    python benchmarks/startup.py [--json] [--quick]

CPU seconds of a new process each, in turn. A run may take 2.2 times as long as importing torch alone: what it loads
besides must be what it uses. The second row compares with the commit before that became a goal, taken from the
repository's history.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from functools import partial
from pathlib import Path

import bench
from bench import Contestant, Row, Task

OURS, BEFORE, TORCH, TASK = "dpfed run", "dpfed run, before", "import torch", "start"
MOST = 2.2
ROOT = bench.HERE.parent
OLD = "2a860a3"
# The command as everybody runs it, until the checkpoint of the first round gets its name; the hook loads nothing.
UNTIL_THE_FIRST_ROUND = """
import os, sys
def end(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith("round-000001.safetensors"):
        os._exit(0)
sys.addaudithook(end)
from dpfed.cli.main import main
try:
    main(sys.argv[1:])
finally:
    os._exit(1)
"""


def load_run() -> dict[str, Task]:
    return {TASK: partial(start, ROOT)}


def load_before() -> dict[str, Task]:
    """Take the old sources out of the history; a copy without it does not take part."""
    found = subprocess.run(["git", "archive", OLD, "src", "examples"], cwd=ROOT, capture_output=True)
    if found.returncode:
        raise ImportError(found.stderr.decode())
    folder = Path(tempfile.mkdtemp())
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return {TASK: partial(start, folder)}


def load_torch() -> dict[str, Task]:
    return {TASK: lambda _: alone(ROOT, "import torch")}


def start(tree: Path, _: float) -> float:
    """Start a run with these sources and their own example."""
    example = tree / "examples" / "hospitals.yaml"
    return alone(tree, UNTIL_THE_FIRST_ROUND, "run", str(example), "--directory", "run")


def alone(tree: Path, code: str, *arguments: str) -> float:
    """Run the code in a new process, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, *arguments]
        environment = os.environ | {"PYTHONPATH": str(tree / "src")}
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return 0.0


CONTESTANTS = [
    Contestant(OURS, load_run, clock="family"),
    Contestant(BEFORE, load_before, clock="family"),
    Contestant(TORCH, load_torch, clock="family"),
]


def rows(quick: bool) -> list[Row]:
    found = bench.measure(Path(__file__), CONTESTANTS, [TASK], quick=quick, repeats=9, patience=120.0)
    ours, before, torch = (found.get((name, TASK)) for name in (OURS, BEFORE, TORCH))
    name = "the five hospitals until their first round is done: CPU seconds, `import torch`"
    return [
        bench.faster(name, ours, torch, 1 / MOST),
        bench.compared(f"the same, CPU seconds of dpfed at commit {OLD}", ours, before),
    ]


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))
