"""A student takes the place of a run's model, and what it learned from is not attacked."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.audit.students import train_student
from dpfed.config.pate import PateDefence
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.federated.launch import prepare
from dpfed.randomness import SeededSource

FLOWERS = """
name: flowers
data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: iid, clients: 2}, test_fraction: 0.5}
model: {kind: logistic}
rounds: 1
local: {steps: 5, batch_size: 20, learning_rate: 0.5}
privacy: {style: none}
"""
DEFENCE = PateDefence.model_validate(
    {"teachers": {"count": 8, "steps": 40, "hidden": [6]}, "privacy": {"epsilon": 50, "delta": 1e-5}}
)


def test_a_student_keeps_the_promise_and_is_scored_on_records_that_nobody_saw():
    launch = prepare(RunConfig.parse(FLOWERS))
    student = train_student(launch, DEFENCE, source=SeededSource(1))
    assert student.guarantee.epsilon <= 50
    assert student.answered == len(launch.test) - len(student.launch.test)
    held = {row.tobytes() for row in launch.test.features}
    left = {row.tobytes() for row in student.launch.test.features}
    assert left < held
    assert student.weights.shape == (student.launch.model.layout.size,)
    (_, accuracy) = student.launch.evaluate(student.weights)
    assert accuracy.value > 0.4  # a third is chance


def test_a_student_can_be_asked_like_the_model_of_a_run():
    student = train_student(prepare(RunConfig.parse(FLOWERS)), DEFENCE, source=SeededSource(1))
    left = student.launch.test
    outputs, _ = student.launch.model.predict(student.weights, (left.features, left.labels))
    assert outputs.shape == (len(left), 3)
    assert np.isfinite(outputs).all()


def test_without_records_held_out_there_is_nothing_to_ask_teachers():
    launch = prepare(RunConfig.parse(FLOWERS.replace("test_fraction: 0.5", "test_fraction: 0")))
    with pytest.raises(InvalidArgument, match="takes its public examples from records held out"):
        train_student(launch, DEFENCE)
