"""The features of a run's model by name, in the order of its inputs, which is that of the table it was trained on.

>>> ward = Data(source="ward.csv", label="y", partition={"kind": "iid", "clients": 1}, categories={"sex": ["f", "m"]})
>>> name_features(ward, ["age", "sex", "y"])
('age', 'sex=f', 'sex=m')
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from dpfed.config.data import Data
from dpfed.config.run import RunConfig
from dpfed.data.sources import read_column_names
from dpfed.federated.data import declare_columns
from dpfed.runs.directory import FEATURES, RunDirectory


def read_features(run: RunDirectory, config: RunConfig) -> tuple[str, ...]:
    """Return the names of the model's features in order; of a run that did not keep them, from its table."""
    path = run.path / FEATURES
    if path.exists():
        run.require_readable()
        return tuple(json.loads(path.read_text(encoding="utf-8")))
    return name_features(config.data, read_column_names(run.origin / config.data.source))


def name_features(data: Data, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the features that a table with these columns has."""
    declared = declare_columns(data)
    apart = {data.label, data.person_column, getattr(data.partition, "column", None), *data.ignore}
    return tuple(name for column in columns if column not in apart for name in declared.name_features(column))
