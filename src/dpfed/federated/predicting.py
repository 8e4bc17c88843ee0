"""Predictions of a run's model for new records of a table: the run's columns, categories and scale, applied again.

What a released model says of a record costs no budget: it is post-processing. The records themselves are whoever's they
are, and so is what the model says of them.

>>> open_predictor("here")
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: here was not trained on a table: use `dpfed export here` and load the model in Python
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfed.config.kept import read_kept
from dpfed.config.run import RunConfig
from dpfed.data.declared import refuse_missing_later
from dpfed.data.records import Records
from dpfed.data.scaling import map_back
from dpfed.data.sources import find_columns, is_table
from dpfed.data.tables import TextTable
from dpfed.errors import InvalidArgument
from dpfed.federated.data import DataFacts, declare_columns, scale_records
from dpfed.federated.features import read_features
from dpfed.federated.probabilities import to_probabilities
from dpfed.federated.state.export import newest
from dpfed.federated.state.layout import Vector
from dpfed.federated.torch import factory
from dpfed.federated.torch.model import TorchModel
from dpfed.runs.directory import RunDirectory

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Predictor:
    """A run's model after its last round, with all that is needed to read new records as it was trained."""

    config: RunConfig
    model: TorchModel
    weights: Vector = field(repr=False)
    features: tuple[str, ...]
    round: int

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes in the order of the probabilities; none for a quantity."""
        return self.config.data.classes

    def read(self, table: TextTable) -> Floats:
        """Return a table's features as the model takes them; the label and other columns may be missing from it."""
        declared = declare_columns(self.config.data)
        columns = find_columns(table, self.features, declared)
        bare = [column for column in columns if not declared.bears_missing(column)]
        if missing := table.list_missing(bare, declared.categories):
            raise refuse_missing_later(table.name, table.place, missing)
        encoded = table.features(columns, declared)
        blank = Records(encoded, np.zeros(len(encoded), dtype=int), self.features)
        return np.asarray(scale_records(blank, self.config.data).features)

    def predict(self, table: TextTable) -> Floats:
        """Return the probability of each class for each record, or the quantity."""
        return self.predict_features(self.read(table))

    def predict_features(self, features: NDArray[np.float64]) -> Floats:
        """Return the probability of each class for records that are scaled already, or the quantity."""
        blanks = np.zeros(len(features), dtype=int if self.config.model.loss == "cross_entropy" else float)
        outputs, _ = self.model.predict(self.weights, (features, blanks))
        return map_back(to_probabilities(outputs, len(self.classes)), self.config.data.label_bounds)


def open_predictor(run_directory: str | Path) -> Predictor:
    """Return the predictor of a run that was trained on a table; the table itself is not needed."""
    run = RunDirectory(run_directory)
    config = read_kept(run)
    if config is None or not is_table(config.data.source):
        message = f"{run.path} was not trained on a table: use `dpfed export {run.path}` and load the model in Python"
        raise InvalidArgument("run", message)
    released, features = newest(run), read_features(run, config)
    shape = (len(features),) if config.data.shape is None else tuple(config.data.shape)
    folder = run.origin if config.code else Path()
    model = factory.build_model(config, DataFacts({}, shape), folder)
    return Predictor(config, model, released.weights, features, released.round)
