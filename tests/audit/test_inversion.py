"""A gradient of one record is the record, unless there is noise in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from done_runs import RUN, table
from dpfed.audit.inversion import compute_gradient, invert, invert_run, measure_inversion
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.federated.launch import prepare
from dpfed.models.mlp import MLP
from dpfed.randomness import SeededSource

RECORDS = SeededSource(3).normal((12, 20))
LABELS = np.arange(12) % 3


@pytest.fixture
def model():
    return MLP(20, (16,), 3)


def test_without_noise_every_record_and_label_is_read_exactly(model):
    (found,) = measure_inversion(model, RECORDS, LABELS, [None])
    assert found.labels == 1.0
    assert np.stack(found.read) == pytest.approx(RECORDS, abs=1e-4)


def test_clipping_alone_hides_nothing(model):
    (found,) = measure_inversion(model, RECORDS, LABELS, [0.0], clip_norm=0.01)
    assert found.likeness == pytest.approx(1.0, abs=1e-4)


def test_noise_hides_records_and_labels(model):
    """Twelve records of twenty numbers that have nothing in common with the noise: 240 numbers, a spread of 0.065."""
    _, little, much = measure_inversion(model, RECORDS, LABELS, [None, 0.001, 10.0], source=SeededSource(4))
    assert little.likeness > 0.9
    assert abs(much.likeness) < 5 * 240**-0.5
    assert much.labels < 0.9


def test_of_several_records_only_a_mixture_is_read(model):
    found = invert(compute_gradient(model, RECORDS[:6], LABELS[:6]))
    assert max(abs(found.record - row).max() for row in RECORDS[:6]) > 0.1


def test_a_gradient_of_zeros_gives_no_record(model):
    nought = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    assert not invert(nought).record.any()


def test_a_model_without_linear_layers_is_refused():
    model = nn.Conv1d(1, 1, 3)
    with pytest.raises(InvalidArgument, match="no linear layer with a bias"):
        invert({name: torch.ones_like(value) for name, value in model.named_parameters()})


def test_a_model_that_begins_with_another_layer_is_refused_as_its_record_is_not_read():
    model = nn.Sequential(nn.Conv1d(1, 1, 3), nn.Flatten(), nn.Linear(18, 3))
    with pytest.raises(InvalidArgument, match="begins with no linear layer"):
        measure_inversion(model, RECORDS[:, None, :], LABELS, [None])


def test_members_of_a_run_are_read_without_noise_and_not_with_the_runs_own(tmp_path):
    (tmp_path / "iris.csv").write_text(table())
    launch = prepare(RunConfig.parse(RUN), tmp_path)
    found = invert_run(launch, launch.weights, 20, source=SeededSource(5))
    assert [each.noise_multiplier for each in found] == [None, 0.01, 0.1, 1.0]  # the last is the file's
    assert all(len(each.read) == 20 for each in found)
    assert found[0].likeness == pytest.approx(1.0, abs=1e-4)
    assert found[0].labels == 1.0
    assert abs(found[-1].likeness) < 0.7  # four numbers each; some correlation by chance
    with pytest.raises(InvalidArgument, match="count must be a whole number"):
        invert_run(launch, launch.weights, 0)


def test_a_quantity_has_no_label_to_read_from_a_gradient(tmp_path):
    (tmp_path / "iris.csv").write_text(table())
    changed = RUN.replace("label: kind", "label: a").replace(
        "classes: [setosa, versicolor, virginica]", "label_bounds: [4, 8]"
    )
    changed = changed.replace("a: [4, 8], ", "").replace(
        "kind: logistic", "kind: logistic, loss: mse, options: {classes: 1}"
    )
    changed = changed.replace("  names:", "  ignore: [kind]\n  names:")
    launch = prepare(RunConfig.parse(changed), tmp_path)
    with pytest.raises(InvalidArgument, match="leave --gradients out"):
        invert_run(launch, launch.weights, 3)
