"""Run each test file in a process of its own: `make test-alone`, or a tenth of the files with `TENTH=0` to `TENTH=9`.

A file may pass in the whole suite because another one imported, patched or left something that it needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PARTS = 10


@dataclass(frozen=True)
class Outcome:
    file: str
    seconds: float
    is_passed: bool
    output: str

    def __str__(self) -> str:
        line = f"{'passed' if self.is_passed else 'FAILED'} {self.seconds:6.1f} s  {self.file}"
        return line if self.is_passed else f"{self.output}\n{line}"


def files(tests: Path, tenth: str | None) -> list[str]:
    """Return the test files, or every tenth of them, by their paths from the project's folder."""
    found = sorted(str(path.relative_to(tests.parent)) for path in tests.rglob("test_*.py"))
    return found[int(tenth) % PARTS :: PARTS] if tenth else found


def outcome(root: Path, file: str) -> Outcome:
    """Run the file; its campaigns are left to `make test`."""
    environment = {name: value for name, value in os.environ.items() if name != "DPFED_CAMPAIGN"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", file]
    start = time.monotonic()
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    return Outcome(file, time.monotonic() - start, done.returncode == 0, done.stdout + done.stderr)


def main(root: Path, tenth: str | None, workers: int) -> int:
    """Run the files and return how many failed, which are listed at the end."""
    chosen = files(root / "tests", tenth)
    print(f"{len(chosen)} test files alone" + (f", those of TENTH={tenth}" if tenth else ""), flush=True)
    failed = []
    with ThreadPoolExecutor(workers) as pool:
        for each in pool.map(lambda file: outcome(root, file), chosen):
            print(each, flush=True)
            failed += [] if each.is_passed else [each.file]
    print(f"{len(failed)} of {len(chosen)} failed alone" + "".join(f"\n  {file}" for file in failed))
    return len(failed)


if __name__ == "__main__":
    project = Path(__file__).parents[1]
    sys.exit(min(1, main(project, os.environ.get("TENTH"), int(os.environ.get("WORKERS", "2")))))
