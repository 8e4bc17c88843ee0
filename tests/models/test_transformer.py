from __future__ import annotations

import pytest
import torch

from dpfed.errors import InvalidArgument
from dpfed.models.transformer import Transformer


def test_a_sequence_that_is_too_long_is_refused():
    with pytest.raises(InvalidArgument, match="at most 6 long, got 7"):
        Transformer(vocabulary=11, length=6, classes=3, width=8, heads=2, layers=2)(torch.zeros(2, 7, dtype=torch.long))


def test_a_shorter_sequence_is_scored():
    assert Transformer(vocabulary=11, length=6, classes=3, width=8, heads=2, layers=2)(
        torch.zeros(2, 4, dtype=torch.long)
    ).shape == (2, 3)


def test_where_a_token_stands_decides_the_scores():
    model = Transformer(vocabulary=11, length=6, classes=3, width=8, heads=2, layers=1)
    forwards, backwards = model(torch.tensor([[1, 2, 3], [3, 2, 1]]))
    assert not torch.allclose(forwards, backwards, atol=1e-5)
