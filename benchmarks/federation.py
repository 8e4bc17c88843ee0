"""What a federated run costs beyond training: start-up, a round's overhead, and whether either grows.

    python benchmarks/federation.py [--json] [--quick]

Clients that do nothing take part in runs with ledger and checkpoints, so all that is measured is overhead: 1,000
clients in a round (models of 62 numbers), or 10,000 of which a hundred are drawn. A round may take 100 ms, and after
200 rounds no more time and memory than after a few. Start-up is that of `dpfed run`, from the start of its process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bench
from bench import Contestant, Result, Row, Task

OURS = "dpfed"
EXAMPLE = bench.HERE.parent / "examples" / "hospitals.yaml"
NUMBERS = 62  # of a logistic model with 30 features and two classes
ROUNDS = 200
EARLY, LATE = range(10, 30), range(180, 200)
CASES = {"sample": 1_000, "user": 1_000, "hybrid": 1_000, "drawn": 10_000}
FIGURES = ("open", "enrol", "early", "late", "memory early", "memory late")


class Idle:
    """A client that does nothing."""

    def __init__(self, number: int) -> None:
        import numpy as np

        self.name, self.account = f"c{number}", f"a{number}"
        self._nothing = np.zeros(NUMBERS)

    def rehearse(self, local: Any, weights: Any) -> None: ...

    def train(self, local: Any, weights: Any, source: Any, proximal: float = 0.0) -> Any:
        return self._nothing


class Study:
    """A run with idle clients, done as far as a figure needs it."""

    def __init__(self, case: str) -> None:
        self._case = case
        self._seconds: list[float] = []
        self._memory: list[float] = []
        self._federation: Any = None

    def figure(self, name: str) -> float:
        """One of FIGURES: seconds, or the process's memory in MB."""
        if self._federation is None:
            self._enrol()
        if name in ("open", "enrol"):
            return {"open": self._opened, "enrol": self._enrolled}[name]
        window = EARLY if name.endswith("early") else LATE
        while len(self._seconds) < window.stop:
            self._seconds.append(timed(lambda: next(self._federation)))
            self._memory.append(resident())
        if name.startswith("memory"):
            return self._memory[window.stop - 1]
        return min(self._seconds[window.start : window.stop])

    def _enrol(self) -> None:
        import numpy as np

        from dpfed.federated.engine import Federation
        from dpfed.federated.runners.local import LocalRunner
        from dpfed.ledger.ledger import Ledger

        folder = Path(tempfile.mkdtemp(prefix="dpfed-bench-"))
        plan, clients = planned(self._case), [Idle(number) for number in range(CASES[self._case])]
        ledger = Ledger(folder / "ledger.db")
        promises = {client.account: plan.guarantee for client in clients} if plan.guarantee else {}
        if plan.client_guarantee:
            promises["study"] = plan.client_guarantee
        self._opened = timed(lambda: ledger.open_all(promises))
        study = "study" if plan.client_guarantee else None

        def enrol() -> None:
            runner = LocalRunner(clients, ledger, study=study)
            self._federation = Federation(plan, np.zeros(NUMBERS), runner, folder / "run")

        self._enrolled = timed(enrol)


def planned(case: str) -> Any:
    """The plan of a case, calibrated."""
    from dpfed.guarantee import Guarantee
    from dpfed.plan import ClientPlan, LocalPlan, Plan, PoissonCohort

    names = [f"c{number}" for number in range(CASES[case])]
    style = "user" if case == "drawn" else case
    clip = {} if style == "user" else {"clip_norm": 1.0}
    options: dict[str, Any] = {} if style == "sample" else {"client": ClientPlan(clip_norm=1.0)}
    if case == "drawn":
        options["cohort"] = PoissonCohort(rate=0.01, secret=True)
    promises = [] if style == "user" else [Guarantee(4.0, 1e-5)]
    promises += [] if style == "sample" else [Guarantee(8.0, 1e-5, "client")]
    local = LocalPlan(size=20, batch_size=10, steps=2, **clip)
    return Plan("bench", ROUNDS, dict.fromkeys(names, local), style=style, **options).calibrated(*promises)


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def resident() -> float:
    """The process's memory in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def starting(sign: str) -> Task:
    """A task of `dpfed run` up to the moment when that file of the run appears."""

    def start(_: float) -> float:
        with tempfile.TemporaryDirectory(prefix="dpfed-bench-") as folder:
            run = Path(folder) / "run"
            command = [sys.executable, "-m", "dpfed", "run", str(EXAMPLE), "--directory", str(run), "--json"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while process.poll() is None and not (run / sign).exists():
                time.sleep(0.005)
            if process.poll():
                raise RuntimeError(f"dpfed run ended with code {process.returncode}")
            process.kill()
            process.wait()
        return 0.0

    return start


def load_starts() -> dict[str, Task]:
    return {what: starting(sign) for what, sign in SIGNS.items()}


def load_study(case: str) -> dict[str, Task]:
    study = Study(case)
    return {name: lambda _, name=name: study.figure(name) for name in FIGURES}


SIGNS = {"enrolled": "checkpoints/round-000000.safetensors", "first round": "rounds.jsonl"}
SLOW = frozenset({"late", "memory late"})
CONTESTANTS = [
    Contestant(OURS, load_starts),
    *(Contestant(case, partial(load_study, case), slow=SLOW) for case in CASES),  # one process each, for its memory
]


def rows(quick: bool) -> list[Row]:
    found = bench.measure(Path(__file__), CONTESTANTS, [*SIGNS, *FIGURES], quick=quick)
    starts = [
        bench.within(f"`dpfed run` of five hospitals until {until}: seconds", found.get((OURS, what)), 5.0)
        for what, until in (("enrolled", "its first round begins"), ("first round", "its first round is done"))
    ]
    return [*starts, *(row for case in CASES for row in rows_of(case, found))]


def rows_of(case: str, found: dict[tuple[str, str], Result]) -> list[Row]:
    """Enrolment, the overhead of a round, and how a round and the process have grown."""
    who = "10,000 clients, 100 drawn, style user" if case == "drawn" else f"1,000 clients, style {case}"
    figures = {name: of_value(found.get((case, name))) for name in FIGURES}
    later, first = f"after {LATE.start} rounds", f"after {EARLY.start}"
    return [
        bench.within(f"{who}: opening accounts: seconds", figures["open"], 5.0),
        bench.within(f"{who}: enrolling: seconds", figures["enrol"], 5.0),
        bench.within(f"{who}: a round beyond training: seconds", figures["early"], 0.1),
        bench.faster(f"{who}: a round {later}: seconds, {first}", figures["late"], figures["early"], 0.8),
        bench.smaller(
            f"{who}: MB after {LATE.stop} rounds, after {EARLY.stop}",
            figures["memory late"],
            figures["memory early"],
            1 / 1.1,
        ),
    ]


def of_value(result: Result | None) -> Result | None:
    """The figure that a task gave, in place of the time it took to ask for it."""
    return None if result is None else Result(result.value, result.value)


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))
