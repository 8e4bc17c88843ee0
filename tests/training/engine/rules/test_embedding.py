from __future__ import annotations

import pytest
import torch
from torch import nn

from clipped import require_parity
from dpfed.errors import InvalidArgument
from dpfed.training.engine.gradients import ClippedGradients


@pytest.mark.parametrize("padding", [None, 0])
def test_words_that_occur_twice_are_added_before_the_norm(padding):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4, padding_idx=padding), nn.Tanh(), nn.Linear(4, 2))
    require_parity(model, torch.randint(0, 5, (6, 9)))


def test_one_word_per_example():
    torch.manual_seed(0)
    require_parity(nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 2)), torch.randint(0, 50, (6,)))


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=str)
def test_a_table_that_mixes_examples_is_refused(options):
    model = nn.Sequential(nn.Linear(2, 2), nn.Embedding(5, 4, **options))
    with pytest.raises(InvalidArgument, match=r"^1 is an Embedding with max_norm"):
        ClippedGradients(model, clip_norm=1.0)


def test_a_table_tied_to_the_last_layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Tanh(), nn.Linear(4, 5))
    model[2].weight = model[0].weight
    require_parity(model, torch.randint(0, 5, (6, 3)))
