"""Every number about a model says whether it was measured on public data."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss
from torch import nn

from dpfed.errors import InvalidArgument
from dpfed.federated import metrics
from dpfed.federated.metrics import Score
from dpfed.federated.torch import losses
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.models.logistic import Logistic

DATA = np.random.default_rng(6).normal(size=(1100, 4)), np.random.default_rng(7).integers(0, 3, 1100)


def model(factory=None):
    return TorchModel(factory or partial(Logistic, features=4, classes=3), "cross_entropy")


def test_loss_and_accuracy_are_those_of_scikit_learn_in_whatever_batches():
    shared = model()
    loss, accuracy = shared.evaluate(shared.first_weights, DATA, is_public=True)
    with torch.no_grad():
        outputs = torch.softmax(shared.module(torch.tensor(DATA[0], dtype=torch.float32)), 1).double().numpy()
    assert (loss.name, accuracy.name) == ("loss", "accuracy")
    assert accuracy.value == accuracy_score(DATA[1], outputs.argmax(1))
    assert loss.value == pytest.approx(log_loss(DATA[1], outputs / outputs.sum(1, keepdims=True)), rel=1e-5)


def test_dice_of_one_class_is_the_f1_score():
    draws = np.random.default_rng(8)
    found, wanted = draws.normal(size=(5, 2, 6, 6)), draws.integers(0, 2, (5, 6, 6))
    expected = [f1_score(w.ravel(), f.argmax(0).ravel()) for f, w in zip(found, wanted, strict=True)]
    np.testing.assert_allclose(metrics.dice(found, wanted), expected, rtol=1e-12)
    np.testing.assert_allclose(metrics.dice((found[:, 1] - found[:, 0])[:, None], wanted), expected, rtol=1e-12)


def test_dice_of_several_classes_is_their_mean_without_the_background():
    found = np.zeros((1, 3, 4))
    found[0, [0, 1, 1, 2], range(4)] = 1.0  # says 0 1 1 2
    assert metrics.dice(found, np.array([[0, 1, 0, 0]])).tolist() == [(2 / 3 + 0) / 2]
    assert metrics.dice(found[:, :, :3], np.array([[0, 1, 1]])).tolist() == [1.0]  # class 2 is in neither


def test_accuracy_of_one_score_is_its_sign():
    assert metrics.accuracy(np.array([[0.5], [-0.5], [0.1]]), np.array([1, 0, 0])).tolist() == [1.0, 1.0, 0.0]
    assert metrics.accuracy(np.array([0.5, -0.5]), np.array([1, 1])).tolist() == [1.0, 0.0]


def test_square_errors_are_averaged_over_a_record():
    assert metrics.mse(np.array([[1.0, 2.0], [0.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])).tolist() == [2.0, 0.5]
    assert metrics.mse(np.array([[2.0]]), np.array([1.0])).tolist() == [1.0]


def test_a_score_on_data_that_nobody_declared_public_is_marked():
    shared = model()
    client = TorchClient("ward", DATA, "account", shared)
    assert {score.mark for score in client.evaluate(shared.first_weights)} == {"not covered"}
    assert {score.mark for score in shared.evaluate(shared.first_weights, DATA, is_public=True)} == {""}
    assert str(Score("dice", 0.5)) == "dice 0.5 (not covered)"
    with pytest.raises(TypeError):
        shared.evaluate(shared.first_weights, DATA)  # nobody forgets to say


def test_own_metrics_come_as_functions_or_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_metrics.py").write_text("def first(outputs, targets):\n    return (targets == 0) * 1.0\n")
    shared = model()
    *_, named, given = shared.evaluate(
        shared.first_weights, DATA, ["my_metrics:first", lambda outputs, targets: targets == 0], is_public=True
    )
    assert named.name == "first"
    assert named.value == given.value == pytest.approx((DATA[1] == 0).mean())


@pytest.mark.parametrize("metric", [lambda o, t: 1.0, lambda o, t: o, "recall"])
def test_a_metric_without_one_number_per_record_is_refused(metric):
    shared = model()
    with pytest.raises(InvalidArgument, match="metric"):
        shared.evaluate(shared.first_weights, DATA, [metric], is_public=True)


def test_no_data_are_not_measured_on():
    with pytest.raises(InvalidArgument, match="no record"):
        model().evaluate(model().first_weights, (np.zeros((0, 4)), np.zeros(0, dtype=int)), is_public=True)


def test_evaluation_is_in_evaluation_mode():
    def factory():
        return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.9))

    shared = model(factory)
    assert len({shared.evaluate(shared.first_weights, DATA, is_public=True) for _ in range(3)}) == 1


def test_losses_give_one_number_per_record_also_of_images():
    images, masks = torch.randn(4, 3, 5, 5), torch.randint(0, 3, (4, 5, 5))
    expected = [nn.functional.cross_entropy(images[i : i + 1], masks[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(losses.cross_entropy(images, masks), torch.stack(expected))
    scores, labels = torch.randn(6, 1), torch.tensor([0, 1, 1, 0, 1, 0])
    expected = nn.functional.binary_cross_entropy_with_logits(scores[:, 0], labels.float(), reduction="none")
    torch.testing.assert_close(losses.binary_cross_entropy(scores, labels), expected)
    torch.testing.assert_close(losses.mse(scores, labels.float()), (scores[:, 0] - labels).square())


def test_own_losses_come_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_losses.py").write_text("def hinge(outputs, targets):\n    return (1 - outputs[:, 0]).relu()\n")
    assert losses.find_loss("my_losses:hinge")(torch.zeros(2, 1), None).tolist() == [1.0, 1.0]
    with pytest.raises(InvalidArgument, match="loss must be one of"):
        losses.find_loss("hinge")


def test_a_metric_that_one_held_out_record_makes_infinite_does_not_end_a_run():
    """Whether a run goes on would tell of that record; the score is not finite, and shown so."""
    shared = model()
    features, targets = np.ones((3, 4)), np.zeros(3, dtype=int)

    def surprise(outputs, targets):
        return np.array([1.0, np.inf, 1.0])

    _, score = shared.evaluate(shared.first_weights, (features, targets), [surprise], is_public=False)
    assert score.value == np.inf
