"""What a federated run costs beyond training: start-up, a round's overhead, and whether either grows.

    python benchmarks/federation.py [--json] [--quick] [--only PART …]

Clients that do nothing take part in runs with ledger and checkpoints, so all that is measured is overhead: 1,000
clients in a round (models of 62 numbers), or 10,000 of which a hundred are drawn. A round may take 100 ms, and one of
the last of 200 no more than one of the first, taking turns with it; memory may not grow in the second half of a run
(in the first, the accountant's tables do). In one case more the hundred that are drawn of 10,000 do train, a logistic
model on 20 examples each and all at once, for their memory. Start-up is that of `dpfed run`, from the start of its
process.

A million clients that are alike are a population, of which a hundred are drawn and made in a round. Ready means that
the noise is calibrated, the account opened and the run enrolled; peak memory is that of a process that does this and
thirty rounds. Rounds of a million and of ten thousand take turns in another process.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
POPULATION, FEWER, MADE = 1_000_000, 10_000, 100  # clients, those of the comparison, and how many are drawn
ALONE, TURNS = "a million", "in turns"
ALONE_FIGURES, TURNS_FIGURES = ("ready", "peak"), ("million", "fewer")


class Idle:
    """A client that does nothing."""

    def __init__(self, number: int, name: str | None = None) -> None:
        import numpy as np

        self.name, self.account = name or f"c{number}", f"a{number}"
        self._nothing = np.zeros(NUMBERS)

    def rehearse(self, local: Any, weights: Any) -> None: ...

    def train(self, local: Any, objective: Any, source: Any) -> Any:
        return self._nothing


def idle(case: str, ledger: Any, study: str | None) -> Any:
    """The runner of clients that do nothing."""
    from dpfed.federated.runners.in_process import LocalRunner

    return LocalRunner([Idle(number) for number in range(CASES[case])], ledger, study=study)


def busy(case: str, ledger: Any, study: str | None) -> Any:
    """The runner of clients that train."""
    import numpy as np

    from dpfed.federated.runners.together import EnsembleRunner
    from dpfed.federated.torch.client import TorchClient, TorchModel
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


class PopulationRun:
    """A run over a population of clients that do nothing, ready to go on; `ready` are the seconds that this took."""

    def __init__(self, count: int) -> None:
        import numpy as np

        from dpfed.federated.engine import Federation
        from dpfed.federated.runners.factory import ClientFactory
        from dpfed.federated.runners.in_process import LocalRunner
        from dpfed.ledger.ledger import Ledger

        self.folder = Path(tempfile.mkdtemp())
        started = time.perf_counter()
        plan, ledger = population_plan(count), Ledger(self.folder / "ledger.db")
        ledger.open_all({"study": plan.client_guarantee})
        runner = LocalRunner(ClientFactory(lambda number, name: Idle(number, name)), ledger, study="study")
        self._federation = Federation(plan, np.zeros(NUMBERS), runner, self.folder / "run")
        self.ready = time.perf_counter() - started

    def round(self) -> float:
        """The seconds of one more round."""
        started = time.perf_counter()
        next(self._federation)
        return time.perf_counter() - started


def population_plan(count: int) -> Any:
    """The plan over so many clients, of which as many are drawn whatever their number, calibrated."""
    from dpfed.guarantee import Guarantee
    from dpfed.plan.plan import ClientPlan, LocalPlan, Plan, PoissonCohort, Population

    local = Population(count, LocalPlan(size=20, batch_size=10, steps=2), prefix="c")
    cohort = PoissonCohort(rate=min(MADE / count, 1.0), secret=True)
    plan = Plan("bench", ROUNDS, local, style="user", client=ClientPlan(clip_norm=1.0), cohort=cohort)
    return plan.calibrated(Guarantee(8.0, 1e-5, "client"))


def load_alone() -> dict[str, Task]:
    """A million in a process of their own, for its memory: peak MB are asked for after the seconds until ready."""
    known: dict[str, PopulationRun] = {}

    def ready(_: float) -> float:
        if not known:
            known["run"] = PopulationRun(POPULATION)
        return known["run"].ready

    def peak(_: float) -> float:
        run = known["run"]
        if run.folder.exists():
            for _ in range(EARLY.stop):
                run.round()
            shutil.rmtree(run.folder, ignore_errors=True)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6

    return {"ready": ready, "peak": peak}


def load_turns() -> dict[str, Task]:
    """Rounds of a million and of fewer, in turns."""
    known: dict[str, float] = {}

    def figure(name: str) -> float:
        if not known:
            runs = [PopulationRun(count) for count in (POPULATION, FEWER)]
            turns = [[run.round() for run in runs] for _ in range(EARLY.stop)][EARLY.start :]
            known.update(zip(TURNS_FIGURES, map(min, zip(*turns, strict=True)), strict=True))
            for run in runs:
                shutil.rmtree(run.folder, ignore_errors=True)
        return known[name]

    return {name: lambda _, name=name: figure(name) for name in TURNS_FIGURES}


def planned(case: str) -> Any:
    """The plan of a case, calibrated."""
    from dpfed.guarantee import Guarantee
    from dpfed.plan.plan import ClientPlan, LocalPlan, Plan, PoissonCohort

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
    Contestant(ALONE, load_alone),
    Contestant(TURNS, load_turns),
]
POPULATIONS = "populations"
PARTS = {OURS: (OURS,), **{case: (case,) for case in CASES}, POPULATIONS: (ALONE, TURNS)}


def rows(quick: bool, only: Sequence[str] = tuple(PARTS)) -> list[Row]:
    asked = {name for part in only for name in PARTS[part]}
    contestants = [contestant for contestant in CONTESTANTS if contestant.name in asked]
    tasks = [*SIGNS, *FIGURES, *ALONE_FIGURES, *TURNS_FIGURES]
    found = bench.measure(Path(__file__), contestants, tasks, quick=quick)
    rows_by_part = {
        OURS: rows_of_starts,
        **{case: partial(rows_of, case) for case in CASES},
        POPULATIONS: rows_of_populations,
    }
    return [row for part, rows_found in rows_by_part.items() if part in only for row in rows_found(found)]


def rows_of_starts(found: dict[tuple[str, str], Result]) -> list[Row]:
    """How long `dpfed run` takes to its first round."""
    return [
        bench.within(f"`dpfed run` of five hospitals until {until}: seconds", found.get((OURS, what)), 5.0)
        for what, until in (("enrolled", "its first round begins"), ("first round", "its first round is done"))
    ]


def rows_of_populations(found: dict[tuple[str, str], Result]) -> list[Row]:
    """What a million clients cost that are alike."""
    ready, peak = (of_value(found.get((ALONE, name))) for name in ALONE_FIGURES)
    million, fewer = (of_value(found.get((TURNS, name))) for name in TURNS_FIGURES)
    bar = None if fewer is None else Result(0.0, 1.2 * fewer.seconds + 0.03)
    who = f"a population of {POPULATION:,}, {MADE} drawn, style user"
    return [
        bench.within(f"{who}: calibrated, account opened and enrolled: seconds", ready, 5.0),
        bench.faster(f"{who}: a round: seconds, 1.2 times that of {FEWER:,} and 0.03", million, bar, 1.0),
        bench.within(f"{who}: peak MB of the process", peak, 600.0),
    ]


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
    sys.exit(bench.run(__file__, CONTESTANTS, rows, names=tuple(PARTS)))
