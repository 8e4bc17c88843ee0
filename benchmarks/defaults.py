"""What the first values of `dpfed init` reach on five real tables, beside a grid around them and no privacy at all.

    python benchmarks/defaults.py [TABLE ...]   # half an hour for all; writes results/defaults.json and a page of docs

Every figure is a whole run as the command makes it, of one owner or of five, scored on public held-out records:
accuracy in per cent, or 100·R² of a quantity. A seed chooses who holds which record and which are held out; noise is
unpredictable. The grid varies learning rate, batch and steps by factors of two to five. Adult and the connections of
KDD-Cup 99 are fetched by `examples/get_data.py`; bounds of features are round numbers that were written down.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression

import bench
import page
from dpfed.config.defaults import Defaults, choose
from dpfed.config.run import RunConfig
from dpfed.config.templates import hospitals
from dpfed.federated import launch

RESULT = page.RESULTS / "defaults.json"
PAGE = bench.HERE.parent / "docs" / "results-defaults.md"
EXAMPLES = bench.HERE.parent / "examples"
SEEDS, GRID_SEEDS = range(20), range(4)
RATES, BATCHES, LENGTHS = (0.5, 1.0, 2.0), (0.4, 1.0, 2.0), (0.4, 1.0, 2.0)  # factors of the grid
ADULT = {"age": [17, 90], "fnlwgt": [0, 1500000], "education-num": [1, 16], "hours-per-week": [1, 99]}
ADULT |= {"capital-gain": [0, 100000], "capital-loss": [0, 5000]}


@dataclass(frozen=True)
class Table:
    """A table, what is public of it, and the ε of its runs."""

    name: str
    data: dict[str, Any]
    size: int
    epsilon: float
    clients: int = 1

    @property
    def is_quantity(self) -> bool:
        return "label_bounds" in self.data

    @property
    def defaults(self) -> Defaults:
        return choose([self.size // self.clients] * self.clients, self.epsilon, is_quantity=self.is_quantity)


def tables() -> dict[str, Table]:
    """The tables by name."""
    cells = hospitals().config.data.feature_bounds
    cancer = {"source": "sklearn:breast_cancer", "feature_bounds": cells}
    digits = {"source": "sklearn:digits", "feature_bounds": [0, 16]}
    income = {"source": "data/adult.csv", "label": "salary_>50K", "classes": ["0", "1"], "feature_bounds": ADULT}
    income["ignore"] = ["salary_<=50K"]
    connections = {"source": "soc:connections", "feature_bounds": [0, 1]}
    connections |= {"classes": ["back", "satan", "portsweep", "break_in"]}
    sugar = {"source": "sklearn:diabetes", "feature_bounds": [-0.2, 0.2], "label_bounds": [0, 350]}
    found = [
        Table("breast cancer", cancer, 455, 4.0),
        Table("breast cancer at five sites", cancer, 455, 4.0, 5),
        Table("digits", digits, 1437, 4.0),
        Table("adult", income, 36000, 3.0),
        Table("connections", connections, 3000, 4.0),
        Table("diabetes", sugar, 350, 4.0),
    ]
    return {table.name: table for table in found}


def settings(table: Table, chosen: Defaults) -> dict[str, Any]:
    """The run file of a table with these values."""
    who = {"partition": {"kind": "iid", "clients": table.clients}, "sizes": table.size // table.clients}
    model: dict[str, Any] = {"kind": "logistic"}
    if table.is_quantity:
        model |= {"options": {"classes": 1}, "loss": "mse", "metric": "mse"}
    record = {"epsilon": table.epsilon, "delta": chosen.delta, "clip_norm": 1.0}
    return {
        "name": "defaults",
        "data": {**table.data, **who, "test_is_public": True},
        "model": model,
        "rounds": chosen.rounds,
        "local": {"steps": chosen.steps, "batch_size": chosen.batch_size, "learning_rate": chosen.learning_rate},
        "privacy": {"style": "sample", "record": record},
    }


@functools.lru_cache(maxsize=1)
def _data(name: str, seed: int) -> launch.FederatedData:
    table = tables()[name]
    config = RunConfig.of(settings(table, table.defaults)).data.model_copy(update={"seed": seed})
    return launch.prepare_data(config, EXAMPLES)


def score(table: Table, chosen: Defaults, seed: int) -> float:
    """What a run reaches on its held-out records."""
    data = _data(table.name, seed)
    config = RunConfig.of(settings(table, chosen))
    made = launch.add_data(launch.outline_run(config, data.facts, EXAMPLES), data)
    with tempfile.TemporaryDirectory() as folder, made.ledger(folder) as ledger:
        *_, last = made.federation(folder, ledger)
    value = {score.name: score.value for score in last.metrics}[config.model.metric]
    return 100 * (1 - value / _spread(table, data) if table.is_quantity else value)


def _spread(table: Table, data: launch.FederatedData) -> float:
    """The variance of the held-out quantity in its own unit."""
    low, high = table.data["label_bounds"]
    assert data.test is not None
    return float(np.var(data.test.labels)) * ((high - low) / 2) ** 2


def plain_score(table: Table, seed: int) -> float:
    """What scikit-learn reaches on all records in one place, without privacy."""
    data = _data(table.name, seed)
    held = [records.rows for records in data.clients.values()]
    inputs = np.concatenate([rows.features for rows in held])
    targets = np.concatenate([rows.labels for rows in held])
    learner = LinearRegression() if table.is_quantity else LogisticRegression(max_iter=5000)
    assert data.test is not None
    return 100 * float(learner.fit(inputs, targets).score(data.test.features, data.test.labels))


def grid(table: Table) -> list[Defaults]:
    """The defaults and their neighbours."""
    first = table.defaults
    largest = table.size // table.clients
    found = [
        replace(
            first,
            learning_rate=first.learning_rate * rate,
            batch_size=max(1, min(largest, round(first.batch_size * batch))),
            rounds=max(1, round(first.rounds * length)),
        )
        for rate, batch, length in itertools.product(RATES, BATCHES, LENGTHS)
    ]
    return list(dict.fromkeys(found))


def measured(table: Table) -> dict[str, Any]:
    """A table's figures: by seed for the defaults and without privacy, and the best of the grid."""
    scores: dict[Defaults, list[float]] = {each: [] for each in grid(table)}
    first, plain, whole = table.defaults, [], []
    for seed in SEEDS:
        plain.append(plain_score(table, seed))
        whole.append(score(table, first, seed))
        for each in scores if seed in GRID_SEEDS else ():
            scores[each].append(whole[-1] if each == first else score(table, each, seed))
    best = max(scores, key=lambda each: mean(scores[each]))
    return {
        "name": table.name,
        "epsilon": table.epsilon,
        "defaults": asdict(first),
        "plain": plain,
        "scores": whole,
        "same_seeds": mean(scores[first]),
        "best": mean(scores[best]),
        "best_values": asdict(best),
        "tried": len(scores),
    }


INTRODUCTION = """\
<!-- Made by benchmarks/defaults.py from benchmarks/results/defaults.json; do not edit. -->
# What first values reach

Accuracy on held-out records in per cent (100·R² for diabetes, a quantity), as mean ± standard error over twenty seeds,
with the δ, batch, rounds and learning rate that `dpfed init` writes for a table of that size. "Grid" is how far the
best of a grid around these values is above them on four seeds; a best of many is above its own mean by chance. The
last column is scikit-learn's linear model on all records in one place without privacy.

| table | ε | defaults | grid | without privacy |
|---|---:|---:|---:|---:|
"""
REMARKS = """
The rule was found on the same public tables, with a simulation of its own; `dpfed.config.defaults` states it. It is for
linear models with features in [−1, 1] and a clip norm of 1.
"""


def render(found: dict[str, Any]) -> str:
    """The whole page as Markdown."""
    return INTRODUCTION + "\n".join(_line(row) for row in found["results"]) + "\n" + REMARKS


def _line(row: dict[str, Any]) -> str:
    error = stdev(row["scores"]) / len(row["scores"]) ** 0.5
    figures = f"{mean(row['scores']):.1f} ± {error:.1f} | +{row['best'] - row['same_seeds']:.1f}"
    return f"| {row['name']} | {row['epsilon']:g} | {figures} | {mean(row['plain']):.1f} |"


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLES))
    from get_data import fetch

    for name in ("adult", "intrusions"):
        fetch(name, EXAMPLES / "data")
    earlier = {row["name"]: row for row in json.loads(RESULT.read_text())["results"]} if RESULT.exists() else {}
    for name in names or tables():
        earlier[name] = measured(tables()[name])
        print(_line(earlier[name]), flush=True)
        rows = [earlier[name] for name in tables() if name in earlier]
        found = {"benchmark": "defaults", "machine": bench.machine(), "results": rows}
        RESULT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(render(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
