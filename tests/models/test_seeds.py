from __future__ import annotations

import pytest
import torch

from dpfed.models.seeds import seeded


def test_a_seeded_block_gives_the_generator_back_when_it_fails():
    before = torch.random.get_rng_state()
    with pytest.raises(ZeroDivisionError), seeded(1):
        raise ZeroDivisionError
    assert torch.equal(torch.random.get_rng_state(), before)
