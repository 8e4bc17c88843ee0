"""Nothing is loaded that a run does not use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dpfed

SOURCES = str(Path(dpfed.__file__).parents[1])
OLD_LEDGER = Path(__file__).parents[1] / "ledger" / "old" / "part6.db"
EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals.yaml"
UNTIL_THE_FIRST_ROUND = """
import json, os, sys
from dpfed import runs
def end(self, record):
    os.write(1, json.dumps(sorted(sys.modules)).encode())
    os._exit(0)
runs.RunDirectory.append = end
from dpfed.cli.main import main
main(["run", sys.argv[1], "--json", "--directory", "run"])
"""
NEVER_BEFORE_A_REPORT = ["matplotlib", "sklearn", "scipy.stats", "sympy", "pandas", "pyarrow", "PIL", "jinja2",
                         "opacus", "mlflow", "tensorboard", "psycopg", "torch._dynamo", "alembic", "mako",
                         "sqlalchemy.dialects.postgresql"]  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The modules of a run of the five hospitals when its first round is done."""
    command = [sys.executable, "-c", UNTIL_THE_FIRST_ROUND, str(EXAMPLE)]
    folder = tmp_path_factory.mktemp("start")
    found = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": SOURCES}, capture_output=True, check=True
    )
    return set(json.loads(found.stdout))


@pytest.mark.parametrize("name", NEVER_BEFORE_A_REPORT)
def test_a_run_loads_nothing_before_its_report_that_it_does_not_use(loaded, name):
    assert name not in loaded


def test_a_run_loads_what_it_uses(loaded):
    assert {"torch", "sqlalchemy", "dpfed.federated.engine"} <= loaded


@pytest.fixture
def opening():
    """Open a ledger in a new process, and name the modules that were loaded for it."""
    code = "import json, sys, dpfed\nwith dpfed.Ledger(sys.argv[1]): pass\nprint(json.dumps(sorted(sys.modules)))"

    def opening(path: Path) -> set[str]:
        command = [sys.executable, "-c", code, f"sqlite:///{path}"]
        found = subprocess.run(command, env=os.environ | {"PYTHONPATH": SOURCES}, capture_output=True, check=True)
        return set(json.loads(found.stdout))

    return opening


def test_a_ledger_is_made_and_opened_without_the_program_that_migrates(tmp_path, opening):
    for _ in range(2):
        assert not {"alembic", "sqlalchemy.dialects.postgresql"} & opening(tmp_path / "ledger.db")


def test_an_older_ledger_is_migrated_by_the_program_that_migrates(tmp_path, opening):
    path = Path(shutil.copy(OLD_LEDGER, tmp_path))
    assert ["alembic" in opening(path) for _ in range(2)] == [True, False]
