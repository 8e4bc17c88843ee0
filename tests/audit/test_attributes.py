"""A hidden column is guessed from what the model makes of the rest, in its own unit; a missing cell is not guessed."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.audit.attributes import attack_attribute, attack_column
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.federated.launch import prepare
from dpfed.federated.torch.model import TorchModel
from dpfed.models.logistic import Logistic

CONFIG = """
name: ward
data:
  source: ward.csv
  label: ill
  classes: ["no", "yes"]
  categories: {ward: [a, b, c]}
  indicator: [ward]
  feature_bounds: {age: [0, 100]}
  partition: {kind: iid, clients: 1}
  sizes: 150
  test_fraction: 0.5
model: {kind: logistic}
rounds: 1
local: {steps: 5, batch_size: 20, learning_rate: 0.5}
privacy: {style: none}
"""
AGES = (10, 50, 90)
FEATURES = ("age", "ward=a", "ward=b", "ward=c", "ward is missing")


def make_weights(model, **scores):
    """Return the weights of a logistic model that gives class 1 a score for each feature named, and class 0 none."""
    weights = np.zeros((2, len(FEATURES)))
    for name, score in scores.items():
        weights[1, [each.replace("=", "_") for each in FEATURES].index(name)] = score
    assert model.layout.names == ("linear.weight", "linear.bias")
    return np.concatenate([weights.ravel(), np.zeros(2)])


@pytest.fixture
def launch(tmp_path):
    """Three hundred persons: who is ill is the youngest, or in ward b; in one of ten the ward is missing."""
    draws, rows = np.random.default_rng(1), ["age,ward,ill"]
    for number in range(300):
        age = draws.choice(AGES) + draws.integers(-9, 10)
        ward = "" if number % 10 == 0 else draws.choice(["b", "c"])
        rows.append(f"{age},{ward},{'yes' if ward == 'b' else 'no'}")
    (tmp_path / "ward.csv").write_text("\n".join(rows) + "\n")
    return prepare(RunConfig.parse(CONFIG), tmp_path)


def test_a_column_that_the_model_learned_for_members_alone_is_guessed_for_members_alone():
    model, draws = TorchModel(lambda: Logistic(4, 2), "cross_entropy"), np.random.default_rng(2)
    members, others = draws.choice([-1.0, 1.0], (2, 200, 4))
    weights = np.array([0, 0, 0, 0, 0, 3, 0, 0, 0, 0])  # class 1 goes with the second feature
    labels = (members[:, 1] > 0).astype(int), draws.integers(2, size=200)
    found = attack_attribute(model, weights, (members, labels[0]), (others, labels[1]), 1, [-1.0, 1.0])
    assert found.members == 1.0
    assert found.others == np.mean((others[:, 1] > 0) == labels[1])
    assert found.advantage == 1.0 - found.others


def test_a_category_is_guessed_from_all_its_features_and_one_that_was_missing_is_left_out(launch):
    weights = make_weights(launch.model, ward_a=-1.0, ward_b=5.0, ward_c=-5.0)
    found = attack_column(launch, weights, "ward")
    assert (found.members, found.others) == (1.0, 1.0)  # one that was missing would be a wrong guess
    assert attack_column(launch, weights, "ward", ["b", "c"]).members == 1.0
    assert attack_column(launch, weights, "ward", ["a", "c"]).members == 1.0  # of those who are in one of them


def test_numbers_are_guessed_in_their_own_unit_and_the_nearest_is_right(launch):
    weights = make_weights(launch.model, age=-5.0)  # class 0 goes with age
    found = attack_column(launch, weights, "age", ["10", "50", "90"])
    is_ill, age = (launch.test.labels == 1), (launch.test.features[:, 0] + 1) * 50
    assert found.others == np.mean(np.where(is_ill, abs(age - 10) < 20, abs(age - 90) < 20))


def test_a_model_that_does_not_look_at_the_column_fails_and_does_not_guess_the_first_value(launch):
    found = attack_column(launch, make_weights(launch.model, age=-5.0), "ward")
    assert found.failure == "the model's loss does not depend on the attribute"
    assert (found.members, found.others, found.advantage) == (None, None, None)


@pytest.mark.parametrize(
    ("column", "guesses", "message"),
    [
        ("sex", (), "is no column that the model learns from; these are age, ward, ward is missing"),
        ("ill", (), "is no column that the model learns from"),
        ("age", (), "such as 20,40,60"),
        ("age", ("20", "old"), "such as 20,40,60"),
        ("age", ("20", "nan"), "such as 20,40,60"),
        ("age", ("20",), "two or more that differ"),
        ("age", ("120", "100"), "two or more that differ within its public bounds"),
        ("ward", ("a", "d"), "'d' is none of the column's categories a, b, c"),
        ("ward", ("a", "a"), "two or more that differ"),
    ],
)
def test_what_cannot_be_guessed_is_refused(launch, column, guesses, message):
    with pytest.raises(InvalidArgument, match=message):
        attack_column(launch, launch.weights, column, guesses)
