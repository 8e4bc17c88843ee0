"""Clients per second: a whole federation of small clients against a plain torch loop and other frameworks.

    python benchmarks/throughput.py [--json] [--quick]

1,000 clients with 20 examples each, one local epoch on batches of 10, five rounds of federated averaging without
privacy, in CPU seconds on one core with one thread. Ours is `Federation` with `EnsembleRunner` in a new directory,
checkpoints and records included. pfl-research and Flower run in venvs of their own, without evaluation of any kind.
Flower's simulation works in several processes, whose CPU time is added up, on the same core. It looks for each client's
messages among those of all, so that its time grows faster than the number of clients: it is measured with 250 and taken
four times, which is in its favour. Building clients, starting a framework and the first plan are not counted for
anybody. What was learned must agree with the plain loop to one part in 100, in 50 for 250 clients (examples come in
another order), or the row is not measured.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import bench
from bench import Contestant, Result, Row, Task
from throughput_cases import (
    BATCH,
    CASES,
    EXAMPLES,
    FLOWER,
    LEARNING_RATE,
    OURS,
    PFL,
    PLAIN,
    ROUNDS,
    Case,
    learned,
    tasks,
)

KEEP_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}


def plainly(case: Case) -> Callable[[], float]:
    """Federated averaging in a loop over the clients."""
    import torch
    from torch import nn

    model, data, loss = case.model(), case.data(), nn.CrossEntropyLoss()
    first = {name: value.clone() for name, value in model.state_dict().items()}

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
            weights = {name: value / case.clients for name, value in total.items()}
        return learned(first, weights)

    return run


def by_dpfed(case: Case) -> Callable[[], float]:
    import numpy as np

    from dpfed import Federation, LocalPlan, Plan
    from dpfed.federated.runners.together import EnsembleRunner
    from dpfed.federated.torch.client import TorchClient, TorchModel

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


def load_pfl() -> dict[str, Task]:
    import throughput_pfl

    return throughput_pfl.load()


def load_flower() -> dict[str, Task]:
    import throughput_flower

    return throughput_flower.load()


CONTESTANTS = [
    Contestant(PLAIN, lambda: tasks(plainly, PLAIN), clock="cpu", environment=KEEP_HEAP),
    Contestant(PFL, load_pfl, venv="pfl", clock="cpu", environment=KEEP_HEAP),
    Contestant(FLOWER, load_flower, venv="flower", slow=frozenset(CASES), clock="family", environment=KEEP_HEAP),
    Contestant(OURS, lambda: tasks(by_dpfed, OURS), clock="cpu", environment=KEEP_HEAP),
]


def rows(quick: bool) -> list[Row]:
    cases = [CASES["logistic"]] if quick else list(CASES.values())
    found = bench.measure(Path(__file__), CONTESTANTS, [case.name for case in cases], quick=quick, repeats=3)
    return [row for case in CASES.values() if case in cases for row in case_rows(found, case)]


def case_rows(found: Mapping[tuple[str, str], Result], case: Case) -> list[Row]:
    """Ours with a thousand clients against each peer; fewer of a peer's clients are scaled, and the row says so."""
    full = next(other for other in CASES.values() if other.title == case.title)
    times = full.clients // case.clients
    scaled = "" if times == 1 else f" ({times} times that of {case.clients} clients)"
    return [
        bench.faster(
            f"{case.title}, {full.clients} clients, {ROUNDS} rounds: CPU seconds, {peer}{scaled}",
            agreed(found, OURS, full),
            times_over(agreed(found, peer, case), times),
            goal,
        )
        for peer, goal in case.goals.items()
    ]


def times_over(result: Result | None, times: int) -> Result | None:
    """The result of so many times the clients."""
    return result and Result(result.value, times * result.seconds)


def agreed(found: Mapping[tuple[str, str], Result], who: str, case: Case) -> Result | None:
    """The contestant's result, if it has learned what the plain loop has."""
    own, plain = found.get((who, case.name)), found.get((PLAIN, case.name))
    if own is None or plain is None:
        return None
    if abs(own.value - plain.value) > 1e-2 * (1000 / case.clients) ** 0.5 * plain.value:
        print(f"{case.name}, {who}: {own.value} is not {plain.value}", file=sys.stderr)
        return None
    return own


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))
