"""Clients per second: a whole federation of small clients against a plain torch loop and other frameworks.

    python benchmarks/throughput.py [--json] [--quick]

1,000 clients with 20 examples each, one local epoch on batches of 10, five rounds of federated averaging without
privacy, in CPU seconds on one thread. Ours is `Federation` with `EnsembleRunner` in a new directory, checkpoints and
records included; building clients and the first plan is not counted, for anybody. The final models must agree to one
part in 100 of what was learned (the order of examples differs). pfl-research and Flower are "not measured" where
they are not installed: nobody has written their workers yet.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench
from bench import Contestant, Result, Row, Task

PLAIN, OURS = "plain torch", "dpfed"
CLIENTS, EXAMPLES, BATCH, ROUNDS = 1000, 20, 10, 5
LEARNING_RATE = 0.1
KEEP_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}


@dataclass(frozen=True)
class Case:
    """A model, what it is fed, and the goals by peer."""

    title: str
    name: str
    shape: tuple[int, ...]
    goals: Mapping[str, float]

    def model(self) -> Any:
        from dpfed.models.logistic import Logistic
        from dpfed.models.mlp import MLP

        return Logistic() if self.name == "logistic" else MLP(features=784, hidden=(64,), classes=10)

    def data(self) -> list[tuple[Any, Any]]:
        import numpy as np

        draws = np.random.default_rng(0)
        inputs = draws.normal(size=(CLIENTS, EXAMPLES, *self.shape)).astype(np.float32)
        return [(x, (x[:, 0] > 0).astype(np.int64)) for x in inputs]


CASES = [
    Case("logistic 30", "logistic", (30,), {PLAIN: 15, "pfl-research": 30, "Flower's simulation": 250}),
    Case("MLP 784-64-10", "mlp", (784,), {PLAIN: 1.7, "pfl-research": 2.5}),
]


def plainly(case: Case) -> Callable[[], float]:
    """Federated averaging in a loop over the clients."""
    import torch
    from torch import nn

    from dpfed.models.seeds import seeded

    with seeded(0):
        model = case.model()
    data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in case.data()]
    loss, first = nn.CrossEntropyLoss(), {name: value.clone() for name, value in model.state_dict().items()}

    def run() -> float:
        weights = first
        for _ in range(ROUNDS):
            total = {name: torch.zeros_like(value) for name, value in weights.items()}
            for inputs, targets in data:
                model.load_state_dict(weights)
                optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
                for rows in torch.split(torch.randperm(EXAMPLES), BATCH):
                    optimizer.zero_grad()
                    loss(model(inputs[rows]), targets[rows]).backward()
                    optimizer.step()
                for name, value in model.state_dict().items():
                    total[name] += value
            weights = {name: value / CLIENTS for name, value in total.items()}
        return sum(float((weights[name] - value).abs().sum()) for name, value in first.items())

    return run


def by_dpfed(case: Case) -> Callable[[], float]:
    import numpy as np

    from dpfed import Federation, LocalPlan, Plan
    from dpfed.federated.runners.ensemble import EnsembleRunner
    from dpfed.federated.torch_client import TorchClient, TorchModel

    model = TorchModel(case.model, "cross_entropy")
    clients = [TorchClient(f"client {n}", data, "", model) for n, data in enumerate(case.data())]
    local = LocalPlan(size=EXAMPLES, batch_size=BATCH, epochs=1, learning_rate=LEARNING_RATE)
    plan = Plan("study", ROUNDS, {client.name: local for client in clients}, style="none")
    runner = EnsembleRunner(clients)

    def run() -> float:
        with tempfile.TemporaryDirectory() as directory:
            *_, last = Federation(plan, model.first_weights, runner, directory, layout=model.layout)
        return float(np.abs(last.weights - model.first_weights).sum())

    return run


class Prepared:
    """A task whose clients are made before the clock runs."""

    def __init__(self, case: Case, prepare: Callable[[Case], Callable[[], float]]) -> None:
        self.case, self.prepare = case, prepare
        self.run: Callable[[], float] | None = None

    def ready(self) -> None:
        if self.run is None:
            self.run = self.prepare(self.case)
            self.run()

    def __call__(self, nudge: float) -> float:
        return self.run() if self.run is not None else 0.0


def tasks(prepare: Callable[[Case], Callable[[], float]]) -> dict[str, Task]:
    import torch

    torch.set_num_threads(1)
    return {case.name: Prepared(case, prepare) for case in CASES}


CONTESTANTS = [
    Contestant(PLAIN, lambda: tasks(plainly), clock="cpu", environment=KEEP_HEAP),
    Contestant(OURS, lambda: tasks(by_dpfed), clock="cpu", environment=KEEP_HEAP),
]


def rows(quick: bool) -> list[Row]:
    cases = CASES[:1] if quick else CASES
    found = bench.measure(Path(__file__), CONTESTANTS, [case.name for case in cases], quick=quick, repeats=3)
    return [
        bench.faster(
            f"{case.title}, {CLIENTS} clients, {ROUNDS} rounds: CPU seconds, {peer}",
            agreed(found, case),
            found.get((peer, case.name)),
            goal,
        )
        for case in cases
        for peer, goal in case.goals.items()
    ]


def agreed(found: Mapping[tuple[str, str], Result], case: Case) -> Result | None:
    """Our result, if the plain loop has learned the same."""
    own, other = found.get((OURS, case.name)), found.get((PLAIN, case.name))
    if own is not None and other is not None and abs(own.value - other.value) > 1e-2 * other.value:
        print(f"{case.name}: {own.value} is not {other.value}", file=sys.stderr)
        return None
    return own


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))
