"""Attribute inference: guess a hidden column of each record from what a finished model makes of the rest.

The attacker knows a record but for one column, and takes the value with which the model fits it best (Yeom et al.
2018). What is guessed for records that the model never saw is in the population; only what is guessed better for
members comes from their being in the data. Figures are of private records as they are: for the owner alone.

>>> from dpfed.models.logistic import Logistic
>>> model = TorchModel(Logistic, "cross_entropy")
>>> people = [(np.ones((4, 30)), np.array([0, 1, 0, 1])) for _ in range(2)]
>>> attack_attribute(model, np.zeros(62), *people, column=3, values=[0.0, 1.0]).failure
"the model's loss does not depend on the attribute"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed.arrays import Floats
from dpfed.audit import attacks
from dpfed.audit.attacks import AttributeResult
from dpfed.audit.membership import Pair, pool_members, require_others
from dpfed.audit.shadows import ask
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument
from dpfed.federated.data import declare_columns, scale_records
from dpfed.federated.launch import Launch
from dpfed.federated.state.layout import Vector
from dpfed.federated.torch.model import TorchModel


@dataclass(frozen=True, eq=False)
class _Guesses:
    """The features that a column became, one row of them for each guess, and which of them must be met exactly."""

    places: list[int]
    rows: Floats
    exact: slice

    def keep_known(self, people: Pair) -> Pair:
        """Return the records whose own value is among the guesses; one whose cell was missing has none."""
        features, labels = people
        own = np.asarray(features)[:, self.places]
        is_known = (own[:, None, self.exact] == self.rows[None, :, self.exact]).all(axis=2).any(axis=1)
        return features[is_known], labels[is_known]


def attack_attribute(
    model: TorchModel, weights: Vector, members: Pair, others: Pair, column: int | Sequence[int], values: ArrayLike
) -> AttributeResult:
    """Guess each record's value in a column, one of `values`, from the loss that the model has with each of them.

    A column that became several features is a list of them, and `values` a table of as many columns. A record's own
    value is the one of `values` that is next to it.
    """
    places, rows = np.atleast_1d(column), np.asarray(values, dtype=np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    found = [_tabulate(model, weights, people, places, rows) for people in (members, others)]
    return attacks.attribute(*found[0], *found[1])


def attack_column(launch: Launch, weights: Vector, column: str, guesses: Sequence[str] = ()) -> AttributeResult:
    """Guess a named column of a run's records: one of its categories, or of the numbers given, in its own unit.

    Privacy: none. The result is of private records as they are: for the owner alone.
    """
    held_out, made = require_others(launch), _make_guesses(launch, column, guesses)
    pairs = pool_members(launch), (held_out.features, held_out.labels)
    members, others = (made.keep_known(each) for each in pairs)
    return attack_attribute(launch.model, weights, members, others, made.places, made.rows)


def _tabulate(
    model: TorchModel, weights: Vector, people: Pair, places: NDArray[Any], rows: Floats
) -> tuple[Floats, NDArray[np.int64]]:
    """Return each record's loss with each value, and which value is its own."""
    features, labels = people
    if not len(labels):
        return np.empty((len(rows), 0)), np.empty(0, dtype=np.int64)
    tables = []
    for row in rows:
        guessed = np.array(features)
        guessed[:, places] = row
        tables.append(ask(model, weights, (guessed, labels))[1])
    distances = np.abs(rows[:, None, :] - np.asarray(features)[:, places]).sum(axis=2)
    return np.stack(tables), np.argmin(distances, axis=0)


def _make_guesses(launch: Launch, column: str, guesses: Sequence[str]) -> _Guesses:
    config, features = launch.config.data, launch.features
    declared = declare_columns(config)
    names, categories = declared.name_features(column), tuple(map(str, declared.categories.get(column, ())))
    if not features or not set(names) <= set(features):
        known = ", ".join(dict.fromkeys(name.split("=")[0] for name in features)) or "without names"
        message = f"{column!r} is no column that the model learns from; these are {known}"
        raise InvalidArgument("attribute", f"{message}: name one of a table's columns")
    places = [features.index(name) for name in names]
    own = _encode(guesses, categories) if categories else _read_numbers(column, guesses)
    raw = np.zeros((len(own), len(features)))
    raw[:, places[: own.shape[1]]] = own
    block = config.model_copy(update={"label_bounds": None, "shape": None})
    rows = scale_records(Records(raw, np.zeros(len(own)), features), block).features[:, places]
    if len(np.unique(rows, axis=0)) < max(2, len(rows)):
        message = f"guesses of {column} must be two or more that differ within its public bounds"
        raise InvalidArgument("guesses", f"{message}: write others")
    return _Guesses(places, np.asarray(rows, dtype=np.float64), slice(0 if categories else 1, None))


def _encode(guesses: Sequence[str], categories: Sequence[str]) -> Floats:
    """Return one row for each category to guess from: all of them, unless some are named."""
    for guess in guesses:
        if guess not in categories:
            message = f"{guess!r} is none of the column's categories {', '.join(categories)}"
            raise InvalidArgument("guesses", f"{message}: write some of these, or none to guess from all")
    return np.eye(len(categories))[[categories.index(each) for each in guesses or categories]]


def _read_numbers(column: str, guesses: Sequence[str]) -> Floats:
    try:
        found = np.array([float(each) for each in guesses])
    except ValueError:
        found = np.array([])
    if not len(found) or not np.isfinite(found).all():
        message = f"{column} holds numbers, and which of them to guess from is not said"
        raise InvalidArgument("guesses", f"{message}: give two or more, such as 20,40,60; the nearest counts as right")
    return found[:, None]
