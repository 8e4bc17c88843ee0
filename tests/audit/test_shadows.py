"""Shadow models are dealt halves, and say what their own weights say."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.audit.shadows import ask, train_shadows
from dpfed.errors import InvalidArgument
from dpfed.federated.torch.model import TorchModel
from dpfed.models.logistic import Logistic
from dpfed.plan.local import LocalPlan
from dpfed.randomness import SeededSource

PLAN = LocalPlan(size=10, batch_size=5, steps=3, learning_rate=0.5)


@pytest.fixture
def records():
    source = SeededSource(1)
    return source.normal((20, 30)), source.integers(2, 20)


def test_every_record_is_in_half_of_the_models(records):
    found = train_shadows(TorchModel(Logistic, "cross_entropy"), records, PLAN, 6, source=SeededSource(2))
    assert found.is_in.sum(axis=0).tolist() == [3] * 20
    assert found.is_in.sum(axis=1).tolist() == [10] * 6


def test_confidences_are_logits_of_the_probability_of_the_true_class(records):
    model = TorchModel(Logistic, "cross_entropy")
    confidences, losses = ask(model, model.first_weights, records)
    probability = np.exp(-losses)
    assert confidences == pytest.approx(np.log(probability / (1 - probability)), abs=1e-5)


def test_what_has_no_classes_has_no_confidence(records):
    model = TorchModel(lambda: Logistic(features=30, classes=1), "mse")
    confidences, _ = ask(model, model.first_weights, (records[0], records[1].astype(float)[:, None]))
    assert np.isnan(confidences).all()


def test_one_record_cannot_be_dealt(records):
    with pytest.raises(InvalidArgument, match="at least two records"):
        train_shadows(TorchModel(Logistic, "cross_entropy"), (records[0][:1], records[1][:1]), PLAN, 2)
