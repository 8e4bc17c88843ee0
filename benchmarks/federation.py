"""What a federated run costs beyond training: start-up, a round's overhead, and whether either grows.

    python benchmarks/federation.py [--json] [--quick]

Clients that do nothing take part in runs with ledger and checkpoints, so all that is measured is overhead: 1,000
clients in a round (models of 62 numbers), or 10,000 of which a hundred are drawn. A round may take 100 ms, and one of
the last of 200 no more than one of the first, taking turns with it; memory may not grow in the second half of a run
(in the first, the accountant's tables do). In one case more the hundred that are drawn of 10,000 do train, a logistic
model on 20 examples each and all at once, for their memory. Start-up is that of `dpfed run`, from the start of its
process.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
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
CASES = {"sample": 1_000, "user": 1_000, "hybrid": 1_000, "drawn": 10_000, "trained": 10_000}
DRAWN = {"drawn": "100 drawn", "trained": "100 drawn that train"}
HALF = 90
FIGURES = ("enrol", "round", "late", "early", "half", "whole")


class Idle:
    """A client that does nothing."""

    def __init__(self, number: int) -> None:
        import numpy as np

        self.name, self.account = f"c{number}", f"a{number}"
        self._nothing = np.zeros(NUMBERS)

    def rehearse(self, local: Any, weights: Any) -> None: ...

    def train(self, local: Any, objective: Any, source: Any) -> Any:
        return self._nothing


def idle(case: str, ledger: Any, study: str | None) -> Any:
    """The runner of clients that do nothing."""
    from dpfed.federated.runners.local import LocalRunner

    return LocalRunner([Idle(number) for number in range(CASES[case])], ledger, study=study)


def busy(case: str, ledger: Any, study: str | None) -> Any:
    """The runner of clients that train."""
    import numpy as np

    from dpfed.federated.runners.ensemble import EnsembleRunner
    from dpfed.federated.torch_client import TorchClient, TorchModel
    from dpfed.models.logistic import Logistic

    model, draws = TorchModel(Logistic, "cross_entropy"), np.random.default_rng(0)
    inputs = draws.normal(size=(CASES[case], 20, 30)).astype(np.float32)
    labels = (inputs[:, :, 0] > 0).astype(np.int64)
    clients = [TorchClient(f"c{n}", data, f"a{n}", model) for n, data in enumerate(zip(inputs, labels, strict=True))]
    return EnsembleRunner(clients, ledger, study=study)


class Run:
    """A run of a case; `memory` is that of the process after each of its rounds, in MB."""

    def __init__(self, case: str) -> None:
        import numpy as np

        from dpfed.federated.engine import Federation
        from dpfed.ledger.ledger import Ledger

        self.folder = folder = Path(tempfile.mkdtemp())
        plan, ledger = planned(case), Ledger(folder / "ledger.db")
        promises = {f"a{number}": plan.guarantee for number in range(CASES[case])} if plan.guarantee else {}
        if plan.client_guarantee:
            promises["study"] = plan.client_guarantee
        study = "study" if plan.client_guarantee else None
        runner = (busy if case == "trained" else idle)(case, ledger, study)
        started = time.perf_counter()
        ledger.open_all(promises)
        self._federation = Federation(plan, np.zeros(NUMBERS), runner, folder / "run")
        self.enrolled = time.perf_counter() - started
        self.memory: list[float] = []

    def until(self, rounds: int) -> None:
        while len(self.memory) < rounds:
            self.round()

    def round(self) -> float:
        """The seconds of one more round."""
        started = time.perf_counter()
        next(self._federation)
        seconds = time.perf_counter() - started
        self.memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6)
        return seconds


class Study:
    """A run that gets old, and then one like it that is young: their rounds take turns."""

    def __init__(self, case: str) -> None:
        self._case = case
        self._known: dict[str, float] = {}
        self._old: Run | None = None

    def figure(self, name: str) -> float:
        """One of FIGURES: seconds, or MB."""
        if not self._known:
            self._begin()
        if name not in self._known:
            self._compare()
        return self._known[name]

    def _begin(self) -> None:
        self._old = Run(self._case)
        self._old.until(EARLY.start)
        self._known = {"enrol": self._old.enrolled, "round": min(self._old.round() for _ in EARLY)}

    def _compare(self) -> None:
        self._old.until(HALF)
        half = self._old.memory[-1]
        self._old.until(LATE.start)
        memory = self._old.memory
        young = Run(self._case)
        young.until(EARLY.start)
        turns = [(self._old.round(), young.round()) for _ in LATE]
        late, early = (min(seconds) for seconds in zip(*turns, strict=True))
        self._known |= {"late": late, "early": early, "half": half, "whole": memory[LATE.start - 1]}
        for run in (self._old, young):
            shutil.rmtree(run.folder, ignore_errors=True)


def planned(case: str) -> Any:
    """The plan of a case, calibrated."""
    from dpfed.guarantee import Guarantee
    from dpfed.plan import ClientPlan, LocalPlan, Plan, PoissonCohort

    names = [f"c{number}" for number in range(CASES[case])]
    style = "user" if case in DRAWN else case
    clip = {} if style == "user" else {"clip_norm": 1.0}
    options: dict[str, Any] = {} if style == "sample" else {"client": ClientPlan(clip_norm=1.0)}
    if case in DRAWN:
        options["cohort"] = PoissonCohort(rate=0.01, secret=True)
    promises = [] if style == "user" else [Guarantee(4.0, 1e-5)]
    promises += [] if style == "sample" else [Guarantee(8.0, 1e-5, "client")]
    local = LocalPlan(size=20, batch_size=10, steps=2, **clip)
    return Plan("bench", ROUNDS, dict.fromkeys(names, local), style=style, **options).calibrated(*promises)


def starting(sign: str) -> Task:
    """A task of `dpfed run` up to the moment when that file of the run appears."""

    def start(_: float) -> float:
        with tempfile.TemporaryDirectory() as folder:
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
SLOW = frozenset({"late", "early", "half", "whole"})
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
    who = f"10,000 clients, {DRAWN[case]}, style user" if case in DRAWN else f"1,000 clients, style {case}"
    figures = {name: of_value(found.get((case, name))) for name in FIGURES}
    overhead = [
        bench.within(f"{who}: accounts opened and enrolled: seconds", figures["enrol"], 5.0),
        bench.within(f"{who}: a round beyond training: seconds", figures["round"], 0.1),
    ]
    return [
        *(overhead if case != "trained" else []),
        bench.faster(
            f"{who}: a round after {LATE.start} others: seconds, after {EARLY.start}",
            figures["late"],
            figures["early"],
            0.8,
        ),
        bench.smaller(f"{who}: MB after {LATE.start} rounds, after {HALF}", figures["whole"], figures["half"], 1 / 1.1),
    ]


def of_value(result: Result | None) -> Result | None:
    """The figure that a task gave, in place of the time it took to ask for it."""
    return None if result is None else Result(result.value, result.value)


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))
