"""A small run on a table of flowers: its configuration, its table, and its last checkpoint written anew."""

from __future__ import annotations

from dataclasses import replace

from sklearn.datasets import load_iris

from dpfed.config import RunConfig
from dpfed.federated.state.checkpoint import Checkpoints
from dpfed.federated.state.export import newest
from dpfed.runs.directory import RunDirectory

RUN = """
name: flowers
data:
  source: iris.csv
  label: kind
  classes: [setosa, versicolor, virginica]
  feature_bounds: {a: [4, 8], b: [2, 5], c: [1, 7], d: [0, 3]}
  partition: {kind: column, column: garden}
  names: [north, south]
  sizes: 50
model: {kind: logistic}
rounds: 2
local: {steps: 5, batch_size: 25, learning_rate: 1.0}
privacy: {style: sample, record: {noise_multiplier: 1.0, delta: 1e-5, clip_norm: 1}}
"""


def table() -> str:
    names = ["setosa", "versicolor", "virginica"]
    data = load_iris()
    rows = [
        [*map(str, features), names[label], "north" if number % 2 else "south"]
        for number, (features, label) in enumerate(zip(data.data, data.target, strict=True))
    ]
    return "\n".join(",".join(row) for row in [["a", "b", "c", "d", "kind", "garden"], *rows]) + "\n"


def confirm(run: RunDirectory) -> None:
    """Write the last checkpoint anew, with the digests of the other files as they are now."""
    checkpoints = Checkpoints(run, newest(run).layout)
    terms = RunConfig.read(run.path / "config.yaml").terms
    checkpoints.write(replace(checkpoints.newest(), files=run.digests({}, terms)))
