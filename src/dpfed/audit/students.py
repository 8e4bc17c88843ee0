"""PATE beside other defences: teachers on the records that a run would train on, a student to attack in its place.

A part of the records held out stands in for public examples. The student has seen these, so they are neither attacked
nor measured on.

>>> from dpfed.config.run import RunConfig
>>> from dpfed.federated.launch import prepare
>>> launch = prepare(RunConfig.parse('''
... name: flowers
... data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: iid, clients: 1}, test_fraction: 0.5}
... model: {kind: logistic}
... rounds: 1
... local: {steps: 5, batch_size: 20, learning_rate: 0.5}
... privacy: {style: none}
... '''))
>>> defence = PateDefence.model_validate({"teachers": {"count": 10}, "privacy": {"epsilon": 8, "delta": 1e-5}})
>>> student = train_student(launch, defence)
>>> student.guarantee.epsilon <= 8, len(student.launch.test) < len(launch.test)
(True, True)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.arrays import Floats
from dpfed.audit.membership import pool_members
from dpfed.config.pate import PateDefence
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument
from dpfed.federated.launch import Launch
from dpfed.federated.state.layout import Vector
from dpfed.federated.torch.model import TorchModel
from dpfed.guarantee import Guarantee
from dpfed.models.mlp import MLP
from dpfed.pate.study import make_classifier
from dpfed.randomness import RandomSource, or_system


@dataclass(frozen=True, eq=False)
class Student:
    """A student in place of a run's model: a launch with it and with the records that it never saw, and its weights."""

    launch: Launch = field(repr=False)
    weights: Vector = field(repr=False)
    guarantee: Guarantee
    answered: int


def train_student(launch: Launch, pate: PateDefence, seed: int = 0, source: RandomSource | None = None) -> Student:
    """Train teachers on the records of all clients, and a student on their answers; `seed` deals the records.

    Privacy: `PATEClassifier` with what the block declares, charged to nobody: for public or generated records.
    """
    public, rest = _split(_require_held_out(launch), pate.public_fraction, or_system(source))
    features, labels = pool_members(launch)
    form = launch.clients[0].examples.form
    classes = 0 if form is None else launch.model.count_classes(form)
    is_bounded = launch.config.data.feature_bounds is not None
    model = make_classifier(pate, classes, is_bounded, partition_key=pate.teachers.key + seed)
    model.fit(_flatten(features), labels, public=_flatten(public.features))
    factory = partial(MLP, _flatten(features).shape[1], pate.teachers.hidden, classes)
    twin, state = TorchModel(factory, "cross_entropy"), model.model_.float().state_dict()
    weights = np.concatenate([state[name].numpy().ravel() for name in twin.layout.names])
    clients = tuple(replace(each, model=twin) for each in launch.clients)
    seen = replace(launch, model=twin, weights=twin.first_weights, test=rest, clients=clients)
    return Student(seen, weights, model.guarantee_, model.n_answers_)


def _require_held_out(launch: Launch) -> Records:
    if launch.test is None or launch.config.data.person_column is not None:
        message = "a row of PATE takes its public examples from records held out, and promises for records alone"
        raise InvalidArgument("pate", f"{message}: give data.test_fraction, and leave person_column out")
    return launch.test


def _split(held: Records, share: float, source: RandomSource) -> tuple[Records, Records]:
    """Return random records that are public from now on, and the others; at least one of either kind."""
    order = np.argsort(source.stream("public examples").words(len(held)), kind="stable")
    count = min(max(1, int(share * len(held))), len(held) - 1)
    return held.take(order[:count]), held.take(order[count:])


def _flatten(features: NDArray[Any]) -> Floats:
    return np.asarray(features, dtype=np.float64).reshape(len(features), -1)
