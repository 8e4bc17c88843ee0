"""Robust rules against Flower's and ByzFL's code, and against one pass over the data.

    python benchmarks/aggregation.py [--json] [--quick]

n updates of d float32 numbers, of which a tenth may be faulty; CPU seconds on one thread. Flower's functions are
those of ``flwr.server.strategy.aggregate``; ByzFL's are its classes on torch tensors, its geometric median with ten
iterations, ours converged. A pass is one read of all numbers for their mean, `weights @ updates`. Medians and trimmed
means must agree to one part in 10⁴; Multi-Krum of ByzFL counts one neighbour more than the paper, so that it may choose
others. Memory is what numpy holds at most beyond the updates.
"""

from __future__ import annotations

import sys
import tracemalloc
import types
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import bench
from bench import Contestant, Result, Row, Task

OURS, FLOWER, BYZFL = "dpfed", "Flower", "ByzFL"
SIZES = {"n=100, d=10⁶": (100, 1_000_000), "n=1000, d=10⁵": (1000, 100_000)}
PASSES = {"multi_krum": 33, "geometric_median": 33, "coordinate_median": 28, "trimmed_mean": 28}
SAME = ("coordinate_median", "trimmed_mean")
TIMES = {"n=100, d=10⁶": 5.0, "n=1000, d=10⁵": 2.0}
MOST_MEMORY = 64e6  # bytes beyond the 400 MB of the updates


@cache
def updates(size: str) -> Any:
    """The same numbers for everybody."""
    import numpy

    shape = SIZES[size]
    return numpy.random.default_rng(7).standard_normal(shape, dtype=numpy.float32) + numpy.float32(0.5)


def faulty(size: str) -> int:
    """How many updates may be faulty: a tenth."""
    return SIZES[size][0] // 10


def tasks(rules: Mapping[str, Callable[[str], Any]]) -> dict[str, Task]:
    """A task for each rule and size; its value is the mean size of the numbers that come out."""
    return {f"{rule}/{size}": Measured(run, size) for rule, run in rules.items() for size in SIZES}


class Measured:
    """A rule on updates that are there before the clock starts."""

    def __init__(self, run: Callable[[str], Any], size: str) -> None:
        self._run, self._size = run, size

    def ready(self) -> None:
        updates(self._size)

    def __call__(self, _nudge: float) -> float:
        return float(abs(self._run(self._size)).mean())


class Memory:
    """The most that a rule holds beyond its updates, in bytes."""

    def __init__(self, run: Callable[[str], Any], size: str) -> None:
        self._run, self._size = run, size

    def measure(self) -> Result:
        updates(self._size)
        tracemalloc.start()
        self._run(self._size)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return Result(float(most), 0.0)


def load_ours() -> dict[str, Task]:
    import numpy

    from dpfed.aggregation import robust

    def rule(name: str, size: str) -> Any:
        options = {"chosen": SIZES[size][0] - faulty(size)} if name == "multi_krum" else {}
        return getattr(robust, name)(updates(size), max_faulty=faulty(size), **options)

    def read(size: str) -> Any:
        count = SIZES[size][0]
        return numpy.full(count, 1 / count, dtype=numpy.float32) @ updates(size)

    rules = {name: partial(rule, name) for name in PASSES}
    memory = {f"memory {name}/{size}": Memory(run, size) for name, run in rules.items() for size in SIZES}
    return tasks({**rules, "pass": read}) | memory


def load_flower() -> dict[str, Task]:
    from flwr.server.strategy import aggregate

    def results(size: str) -> Any:
        return [([row], 1) for row in updates(size)]

    def krum(size: str) -> Any:
        return aggregate.aggregate_krum(results(size), faulty(size), SIZES[size][0] - faulty(size))[0]

    return tasks(
        {
            "multi_krum": krum,
            "coordinate_median": lambda size: aggregate.aggregate_median(results(size))[0],
            "trimmed_mean": lambda size: aggregate.aggregate_trimmed_avg(results(size), 0.1)[0],
        }
    )


def load_byzfl() -> dict[str, Task]:
    import torch

    # The package itself imports torchvision, which its rules do not need.
    where = next(path for path in map(Path, sys.path) if (path / "byzfl").is_dir())
    package = types.ModuleType("byzfl")
    package.__path__ = [str(where / "byzfl")]
    sys.modules["byzfl"] = package
    from byzfl.aggregators import aggregators

    def rule(make: Callable[[int], Any], size: str) -> Any:
        return make(faulty(size))(torch.from_numpy(updates(size)))

    makers = {
        "multi_krum": aggregators.MultiKrum,
        "coordinate_median": lambda _faulty: aggregators.Median(),
        "trimmed_mean": aggregators.TrMean,
        "geometric_median": lambda _faulty: aggregators.GeometricMedian(T=10),
    }
    return tasks({name: partial(rule, make) for name, make in makers.items()})


SLOW = frozenset(f"{rule}/{size}" for rule in (*PASSES, "pass") for size in SIZES)
CONTESTANTS = [
    Contestant(OURS, load_ours, clock="cpu", slow=SLOW),
    Contestant(FLOWER, load_flower, venv="byzfl", clock="cpu", slow=SLOW),
    Contestant(BYZFL, load_byzfl, venv="byzfl", clock="cpu", slow=SLOW),
]


def rows(quick: bool) -> list[Row]:
    """What is compared, by size and rule."""
    names = [f"{rule}/{size}" for size in SIZES for rule in ("pass", *PASSES)]
    memory = [f"memory {rule}/{size}" for size in SIZES for rule in PASSES]
    found = bench.measure(Path(__file__), CONTESTANTS, [*names, *memory], quick=quick, repeats=3, patience=20.0)
    return [row for size in SIZES for rule in PASSES for row in rule_rows(found, rule, size)]


def rule_rows(found: Mapping[tuple[str, str], Result], rule: str, size: str) -> list[Row]:
    """The rows of one rule at one size."""
    task, title = f"{rule}/{size}", f"{rule}, {size}"
    ours, one = found.get((OURS, task)), found.get((OURS, f"pass/{size}"))
    made = [
        bench.faster(f"{title}: CPU seconds, {peer}", agreed(found, peer, rule, task), other, TIMES[size])
        for peer in (FLOWER, BYZFL)
        if (other := found.get((peer, task))) is not None or rule != "geometric_median" or peer == BYZFL
    ]
    if one is not None and size == next(iter(SIZES)):
        made.append(bench.within(f"{title}: CPU seconds of {PASSES[rule]} passes", ours, PASSES[rule] * one.seconds))
    limit = Result(MOST_MEMORY, 0.0)
    return [*made, bench.smaller(f"{title}: bytes beyond the updates", found.get((OURS, f"memory {task}")), limit, 1.0)]


def agreed(found: Mapping[tuple[str, str], Result], peer: str, rule: str, task: str) -> Result | None:
    """Our result, if the peer's is the same where it must be."""
    own, other = found.get((OURS, task)), found.get((peer, task))
    if rule in SAME and own is not None and other is not None and abs(own.value - other.value) > 1e-4 * other.value:
        print(f"{task}: {own.value} is not {other.value}", file=sys.stderr)
        return None
    return own


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))
