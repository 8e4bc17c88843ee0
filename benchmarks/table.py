"""What a table of 200,000 rows costs: ``dpfed init`` and ``dpfed plan``, against the same before that was a goal.

    python benchmarks/table.py [--json] [--quick]

CPU seconds of a new process each, in turn. Both plan the same file: thirty columns of numbers, two of texts, three
sites with declared sizes (and once more with true sizes, which are public). `init` may take a third of the time, `plan`
a fifth. The old sources are taken from the repository's history; --quick has a tenth of the rows.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from functools import cache, partial
from pathlib import Path

import numpy as np

import bench
from bench import Contestant, Row, Task

OURS, BEFORE = "dpfed", "dpfed, before"
INIT, PLAN, COUNTED = "init", "plan", "plan of true sizes"
TASKS = [INIT, PLAN, COUNTED]
MOST = {INIT: 3.0, PLAN: 5.0}
ROOT = bench.HERE.parent
OLD = "98488ac"
COLUMNS, SITES = 30, ("north", "south", "east")
COMMAND = "from dpfed.cli.main import main; main()"
RUN = """
name: big
data: {{source: big.csv, label: y, classes: ["no", "yes"], categories: {{sex: [f, m], ward: [a, b, c]}},
  feature_bounds: {{{bounds}}}, partition: {{kind: column, column: hospital}}, sizes: {sizes}}}
model: {{kind: logistic}}
rounds: 10
local: {{steps: 10, batch_size: 256, learning_rate: 0.5}}
privacy: {{style: sample, record: {{epsilon: 4, delta: 1e-5, clip_norm: 1}}}}
"""


@cache
def make_table(rows: int) -> Path:
    """Write the table and the two files that plan it, once for each number of rows."""
    folder, draws = Path(tempfile.mkdtemp()), np.random.default_rng(0)
    numbers = [np.char.mod("%.3f", draws.normal(50, 10, rows)) for _ in range(COLUMNS)]
    texts = [draws.choice(values, rows) for values in (["f", "m"], ["a", "b", "c"], SITES, ["no", "yes"])]
    names = [f"x{number}" for number in range(COLUMNS)]
    lines = [",".join(row) for row in zip(*numbers, *texts, strict=True)]
    (folder / "big.csv").write_text("\n".join([",".join([*names, "sex", "ward", "hospital", "y"]), *lines]) + "\n")
    bounds = ", ".join(f"{name}: [0, 100]" for name in names)
    declared = "{" + ", ".join(f"{site}: {rows // 4}" for site in SITES) + "}"
    (folder / "declared.yaml").write_text(RUN.format(bounds=bounds, sizes=declared))
    (folder / "counted.yaml").write_text(RUN.format(bounds=bounds, sizes="public"))
    return folder


def run(tree: Path, task: str, _: float, *, rows: int) -> float:
    """Run one command in a new process, with these sources."""
    folder = make_table(rows)
    commands = {
        INIT: ["init", "big.csv", "--label", "y", "--site-column", "hospital", "--force"],
        PLAN: ["plan", "declared.yaml"],
        COUNTED: ["plan", "counted.yaml"],
    }
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", COMMAND, *commands[task]]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return 0.0


def make_tasks(tree: Path) -> dict[str, Task]:
    rows = 20_000 if "--quick" in sys.argv else 200_000
    make_table(rows)
    return {task: partial(run, tree, task, rows=rows) for task in TASKS}


def load_ours() -> dict[str, Task]:
    return make_tasks(ROOT)


def load_before() -> dict[str, Task]:
    """Take the old sources out of the history; a copy without it does not take part."""
    found = subprocess.run(["git", "archive", OLD, "src"], cwd=ROOT, capture_output=True)
    if found.returncode:
        raise ImportError(found.stderr.decode())
    folder = Path(tempfile.mkdtemp())
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return make_tasks(folder)


CONTESTANTS = [Contestant(OURS, load_ours, clock="family"), Contestant(BEFORE, load_before, clock="family")]


def rows(quick: bool) -> list[Row]:
    found = bench.measure(Path(__file__), CONTESTANTS, TASKS, quick=quick, repeats=5, patience=240.0)
    ours, before = ({task: found.get((name, task)) for task in TASKS} for name in (OURS, BEFORE))
    made = [
        bench.faster(f"{task} of 200,000 rows: CPU seconds, those of commit {OLD}", ours[task], before[task], most)
        for task, most in MOST.items()
    ]
    return [*made, bench.compared(f"{COUNTED}, CPU seconds at commit {OLD}", ours[COUNTED], before[COUNTED])]


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))
