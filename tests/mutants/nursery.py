"""A process that has loaded all third parties, and forks for every run of pytest: loading takes longer than a test.

>>> nursery = Nursery()
>>> nursery.run(package="src", tests=["tests/test_rounding.py"], report="report.xml")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
THIRD_PARTIES = ("alembic.command", "hypothesis", "pytest", "scipy.stats", "sqlalchemy", "torch", "torch._dynamo")
# Without plugins, which no killer needs: loading them for each mutant would take as long as its tests.
SETTINGS = {"DPFED_CAMPAIGN": "0", "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


class Nursery:
    """Starts the process; it ends with this one, or when it is closed."""

    def __init__(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(
            [sys.executable, __file__], cwd=ROOT, env={**os.environ, **SETTINGS}, text=True, **pipes
        )

    def run(self, package: Path, tests: Iterable[str], report: Path) -> None:
        """Run the tests with the package in that folder and write a report in JUnit's form, and a log beside it."""
        print(json.dumps([str(package), str(report), *tests]), file=self._process.stdin, flush=True)
        self._process.stdout.readline()

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve() -> None:
    """Run what is asked for on each line of the input in a fork of its own, one after the other."""
    for name in THIRD_PARTIES:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            run(*json.loads(line))
        print(os.waitpid(child, 0)[1], flush=True)


def run(package: str, report: str, *tests: str) -> None:
    with Path(report).with_suffix(".txt").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ["PYTHONPATH"] = package  # also for what the tests start themselves
    sys.path.insert(0, package)
    pytest = importlib.import_module("pytest")
    code = pytest.main(["-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests])
    sys.stdout.flush()
    os._exit(int(code))


if __name__ == "__main__":
    serve()
