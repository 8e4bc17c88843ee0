"""Accuracy of federated runs over five seeds: the hospitals of the demo, and digits at a thousand clients.

    python benchmarks/federated_accuracy.py   # some minutes; writes results/federated_accuracy.json and a page of docs

The digits run protects a whole client (style user, ε = 8). Beside it stand the same settings with next to no noise,
and what a logistic regression reaches on all records in one place, without privacy. A seed chooses which records are
held out and who holds the others; noise comes from the system.
"""

from __future__ import annotations

import json
import sys
import tempfile
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

import bench
import page
from dpfed.config import RunConfig
from dpfed.federated import launch

RESULT = page.RESULTS / "federated_accuracy.json"
PAGE = bench.HERE.parent / "docs" / "results-federation.md"
HOSPITALS = bench.HERE.parent / "examples" / "hospitals.yaml"
SEEDS = range(5)
QUIET = 0.01  # a noise multiplier that drowns nothing and protects nobody
DIGITS = {
    "name": "digits",
    "data": {
        "source": "sklearn:digits",
        "feature_bounds": [0, 16],
        "partition": {"kind": "iid", "clients": 1000, "minimum": 1},
        "sizes": 2,
        "test_is_public": True,
    },
    "model": {"kind": "logistic"},
    "rounds": 20,
    "local": {"steps": 5, "batch_size": 2, "learning_rate": 0.5},
    "algorithm": {"kind": "fedavg", "server_learning_rate": 3},
    "privacy": {"style": "user", "client": {"epsilon": 8, "delta": 1e-5, "clip_norm": 1}},
}


def digits(*, is_noised: bool) -> dict[str, Any]:
    """The settings of the digits run."""
    if is_noised:
        return DIGITS
    client = {"noise_multiplier": QUIET, "delta": 1e-5, "clip_norm": 1}
    return {**DIGITS, "privacy": {"style": "user", "client": client}}


def hospitals() -> dict[str, Any]:
    """The settings of the demo."""
    return RunConfig.read(HOSPITALS).model_dump(mode="json")


def prepared(settings: dict[str, Any], seed: int) -> launch.Launch:
    """The run whose records are dealt by the seed."""
    data = {**settings["data"], "seed": seed}
    return launch.prepare(RunConfig.of({**settings, "data": data}), HOSPITALS.parent)


def accuracy(settings: dict[str, Any], seed: int) -> float:
    """The share of held-out records that the last round's model gets right."""
    made = prepared(settings, seed)
    with tempfile.TemporaryDirectory() as folder, made.ledger(folder) as ledger:
        *_, last = made.federation(folder, ledger)
    return next(score.value for score in last.metrics if score.name == "accuracy")


def in_one_place(settings: dict[str, Any], seed: int) -> float:
    """What a logistic regression reaches on all records together, without privacy."""
    made = prepared(settings, seed)
    tensors = [client.examples.fetch(torch.arange(len(client.examples))) for client in made.clients]
    inputs, targets = (np.concatenate([pair[part].numpy() for pair in tensors]) for part in (0, 1))
    model = LogisticRegression(max_iter=5000, C=1.0).fit(inputs.reshape(len(inputs), -1), targets)
    test = made.test
    return float(model.score(test.features.reshape(len(test), -1), test.labels))


def measured() -> list[dict[str, Any]]:
    """Every row with its accuracies by seed."""
    rows = [
        ("five hospitals, ε = 4 for one record", [accuracy(hospitals(), seed) for seed in SEEDS]),
        ("five hospitals, all records in one place, no privacy", [in_one_place(hospitals(), seed) for seed in SEEDS]),
        ("digits, 1,000 clients, ε = 8 for one client", [accuracy(digits(is_noised=True), seed) for seed in SEEDS]),
        ("digits, the same without noise", [accuracy(digits(is_noised=False), seed) for seed in SEEDS]),
        ("digits, all records in one place, no privacy", [in_one_place(DIGITS, seed) for seed in SEEDS]),
    ]
    return [{"name": name, "scores": scores} for name, scores in rows]


INTRODUCTION = """\
<!-- Made by benchmarks/federated_accuracy.py from benchmarks/results/federated_accuracy.json; do not edit. -->
# Results of federated runs

Accuracy on held-out records in per cent, as mean ± standard deviation over five seeds. A seed chooses which records are
held out and who holds the others; noise is unpredictable. δ = 1e-5. Settings were tried on the same public data sets
before these were chosen, which ε does not cover; sizes and ranges are declared constants.

| | accuracy |
|---|---:|
"""
REMARKS = """
The hospitals are `examples/hospitals.yaml`. The digits run is FedAvg with a logistic model: 20 rounds, all clients in
each, 5 local steps, updates clipped to 1, server learning rate 3. A client holds one or two records. The lines "in one
place" are scikit-learn's logistic regression.
"""


def render(found: dict[str, Any]) -> str:
    """The whole page as Markdown."""
    rows = [
        f"| {row['name']} | {100 * mean(row['scores']):.1f} ± {100 * stdev(row['scores']):.1f} |"
        for row in found["results"]
    ]
    return INTRODUCTION + "\n".join(rows) + "\n" + REMARKS


def main() -> int:
    torch.set_num_threads(1)
    found = {"benchmark": "federated accuracy", "machine": bench.machine(), "results": measured()}
    RESULT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(render(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
