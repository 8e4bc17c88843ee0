"""A small harness: one pinned process per contestant, asked in turn, the minimum of repeats.

A benchmark script declares ``Contestant``s (what each can do, by task) and builds ``Row``s from
``measure``. The script is also its own worker: ``script.py --worker NAME`` loads that contestant alone
and answers one JSON line per question, so a peer whose pins collide with ours runs in a venv of its own,
``.bench/<peer>``, made from ``peers/<peer>.txt``. Only the standard library is imported here, because the
file is read in those venvs too.

Rules: no measurement is bent. Every call gets parameters nudged by a few parts in 10⁹, so nobody's cache
answers. Imports are not counted, and the minimum forgives a cold start, for everybody. A contestant that
is not installed is "not measured", never a pass.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from processes import family_seconds

HERE = Path(__file__).resolve().parent
VENVS = HERE.parent / ".bench"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
NOT_MEASURED = "not measured"
Task = Callable[[float], float]
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time, "family": family_seconds}


@dataclass(frozen=True)
class Contestant:
    """Who takes part: ``load`` imports the library and returns its tasks; ``venv`` names its peer file."""

    name: str
    load: Callable[[], dict[str, Task]]
    venv: str | None = None
    slow: frozenset[str] = frozenset()  # tasks that --quick leaves out
    environment: Mapping[str, str] = field(default_factory=dict)
    clock: str = "wall"  # or "cpu", of all its threads, which others do not disturb; "family" adds its processes

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.venv is None else VENVS / self.venv / "bin" / "python"


@dataclass(frozen=True)
class Result:
    """The value a contestant gave and its fastest time in seconds."""

    value: float
    seconds: float


@dataclass(frozen=True)
class Row:
    """One comparison; ``holds`` is None, not a pass, if the peer was not measured or there is no goal, False if we were
    not measured."""

    name: str
    peer: float | str
    ours: float | str
    ratio: float | None
    goal: float | None
    holds: bool | None


def faster(name: str, ours: Result | None, peer: Result | None, goal: float) -> Row:
    """A row that holds if we are at least ``goal`` times as fast."""
    return _row(name, ours and ours.seconds, peer and peer.seconds, goal)


def tighter(name: str, ours: Result | None, peer: Result | None) -> Row:
    """A row that holds if our upper bound is at most the peer's."""
    return smaller(name, ours, peer, 1.0)


def smaller(name: str, ours: Result | None, peer: Result | None, goal: float) -> Row:
    """A row that holds if the peer's value is at least ``goal`` times ours."""
    return _row(name, ours and ours.value, peer and peer.value, goal)


def compared(name: str, ours: Result | None, peer: Result | None) -> Row:
    """A row of seconds without a goal."""
    return _row(name, ours and ours.seconds, peer and peer.seconds, None)


def within(name: str, ours: Result | None, seconds: float) -> Row:
    """A row that holds if we need at most so many seconds; no peer takes part."""
    return _row(name, ours and ours.seconds, seconds, 1.0)


def _row(name: str, ours: float | None, peer: float | None, goal: float | None) -> Row:
    if ours is None:
        return Row(name, NOT_MEASURED if peer is None else peer, NOT_MEASURED, None, goal, False)
    if peer is None:
        return Row(name, NOT_MEASURED, ours, None, goal, None)
    return Row(name, peer, ours, peer / ours, goal, None if goal is None else peer / ours >= goal)


# --- the driver ---


@dataclass
class Worker:
    """One contestant in its own process, on one core with one thread; what it cannot do is None.

    Its temporary files are in `scratch`, which is left to whoever made it.
    """

    contestant: Contestant
    script: Path
    core: int
    scratch: str
    process: subprocess.Popen[str] | None = field(default=None, init=False)
    said: str = field(default=NOT_MEASURED, init=False)  # why the last question has no answer

    def __enter__(self) -> Worker:
        if self.contestant.python.exists():
            command = [str(self.contestant.python), str(self.script), "--worker", self.contestant.name]
            environment = {
                **os.environ,
                **ONE_THREAD,
                **self.contestant.environment,
                "DPFED_BENCH_CORE": str(self.core),
                "TMPDIR": self.scratch,
            }
            self.process = subprocess.Popen(
                command,
                env=environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.communicate()

    def ask(self, task: str, nudge: float) -> Result | None:
        self.said = NOT_MEASURED
        if self.process is None or self.process.poll() is not None:
            return None
        try:
            print(json.dumps({"task": task, "nudge": nudge}), file=self.process.stdin, flush=True)
            answer = json.loads(self.process.stdout.readline())
        except (BrokenPipeError, ValueError):
            return None
        if answer and "error" in answer:
            self.said = answer["error"]
            print(f"{self.contestant.name}, {task}: {answer['error']}", file=sys.stderr)
            return None
        return Result(**answer) if answer else None


def measure(
    script: Path,
    contestants: Sequence[Contestant],
    tasks: Iterable[str],
    *,
    quick: bool = False,
    repeats: int = 5,
    least: int = 1,
    patience: float = 40.0,
) -> dict[tuple[str, str], Result]:
    """{(contestant, task): Result}: the contestants take turns, and each keeps its fastest time.

    One that has taken more than its patience in seconds is not asked again, but everyone at least so many times.
    """
    if quick:
        repeats, least, patience = 2, 1, 1.0
    results: dict[tuple[str, str], Result] = {}
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="dpfed-", ignore_cleanup_errors=True))
        workers = [stack.enter_context(Worker(contestant, script, last_core(), scratch)) for contestant in contestants]
        for task in tasks:
            running = [w for w in workers if not (quick and task in w.contestant.slow)]
            for worker, result in _take_turns(running, task, repeats, least, patience):
                results[worker.contestant.name, task] = result
    return results


def last_core() -> int:
    """Return the core on which everybody is measured."""
    return max(os.sched_getaffinity(0))


def _take_turns(
    workers: Sequence[Worker], task: str, repeats: int, least: int, patience: float
) -> Iterable[tuple[Worker, Result]]:
    """Each worker's best of the times that it was asked."""
    best: dict[int, Result] = {}
    spent = dict.fromkeys(range(len(workers)), 0.0)
    for repeat in range(repeats):
        for number, worker in enumerate(workers):
            is_done = repeat >= least and spent[number] > patience
            if is_done or (repeat and number not in best):
                continue
            started = time.perf_counter()
            answer = worker.ask(task, nudge=repeat * 1e-8)
            spent[number] += time.perf_counter() - started
            if answer is not None:
                first = best.get(number, answer)
                best[number] = Result(first.value, min(first.seconds, answer.seconds))
    return [(workers[number], result) for number, result in best.items()]


# --- the worker ---


def serve(contestant: Contestant) -> None:
    """Answer questions until the driver hangs up."""
    os.sched_setaffinity(0, {int(os.environ["DPFED_BENCH_CORE"])})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    try:
        tasks = contestant.load()
    except ImportError:
        tasks = {}
    for line in sys.stdin:
        question = json.loads(line)
        task = tasks.get(question["task"])
        print(json.dumps(task and _answer(task, question["nudge"], CLOCKS[contestant.clock])), file=answers, flush=True)


def _answer(task: Task, nudge: float, clock: Clock) -> dict[str, Any]:
    try:
        if hasattr(task, "measure"):  # a task may have a measure of its own
            return asdict(task.measure())
        getattr(task, "ready", int)()  # a task may have preparations, which are not timed
        return asdict(_time(task, nudge, clock))
    except Exception as error:  # a peer may fail in any way; the row is then "not measured"
        return {"error": f"{type(error).__name__}: {error}"}


def _time(task: Task, nudge: float, clock: Clock = time.perf_counter) -> Result:
    """The value at the first nudge, and the fastest of as many calls as fit into a tenth of a second."""
    value, fastest, calls, spent = 0.0, float("inf"), 0, 0.0
    while calls < 2 or (spent < 0.1 and calls < 50):
        started = clock()
        answer = task(nudge + calls * 1e-10)
        elapsed = clock() - started
        value = answer if calls == 0 else value
        fastest, calls, spent = min(fastest, elapsed), calls + 1, spent + elapsed
        if spent > 0.5:  # a warm-up would not show
            break
    return Result(float(value), fastest)


# --- command line and output ---


def run(
    script: str,
    contestants: Sequence[Contestant],
    rows: Callable[..., list[Row]],
    arguments: Sequence[str] | None = None,
    names: Sequence[str] = (),
) -> int:
    """The whole command line of a benchmark script; with names it has ``--only``, for some of them."""
    parser = argparse.ArgumentParser(prog=Path(script).name)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    if names:
        parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help=f"of {', '.join(names)}")
    options = parser.parse_args(arguments)
    if options.worker:
        serve(next(c for c in contestants if c.name == options.worker))
        return 0
    some = {"only": options.only} if names and options.only else {}
    measured = [asdict(row) for row in rows(options.quick, **some)]
    print(json.dumps(measured, indent=1) if options.json else table(measured))
    return 0


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as aligned text."""
    lines = [("", "ours", "peer", "peer/ours", "goal", "holds"), *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(6)]
    return "\n".join(
        "  ".join(
            [
                line[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
            ]
        )
        for line in lines
    )


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row as six short texts."""
    figures = [text if isinstance(text := row[key], str) else f"{text:.7g}" for key in ("ours", "peer")]
    ratio = "–" if row["ratio"] is None else f"{row['ratio']:.7g}" if row["ratio"] < 10 else f"{row['ratio']:.0f}"
    holds = {True: "yes", False: "NO", None: "–"}[row["holds"]]
    goal = "–" if row["goal"] is None else f"{row['goal']:g}"
    return (row["name"], *figures, ratio, goal, holds)


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [
            line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = models[0] if models else model
    return {"cpu": model, "system": platform.system(), "python": platform.python_version()}
