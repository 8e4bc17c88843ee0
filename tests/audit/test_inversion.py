"""A gradient of one record is the record, unless there is noise in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpfed.audit.inversion import compute_gradient, invert, measure_inversion
from dpfed.errors import InvalidArgument
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
