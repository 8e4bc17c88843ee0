from __future__ import annotations

import pytest
import torch

from dpfed.errors import InvalidArgument
from dpfed.models.resnet import ResidualBlock, check_widths, make_stage


def test_a_block_that_keeps_the_shape_adds_its_input():
    block = ResidualBlock(4, 4, 1, groups=2)
    torch.nn.init.zeros_(block.second_norm.weight)
    maps = torch.rand(2, 4, 6, 6)
    torch.testing.assert_close(block(maps), maps)


def test_only_the_first_block_of_a_wider_stage_halves_the_resolution():
    stage = make_stage(4, 8, blocks=3, groups=2)
    sizes, maps = [], torch.rand(1, 4, 8, 8)
    for block in stage:
        maps = block(maps)
        sizes.append(tuple(maps.shape[1:]))
    assert sizes == [(8, 4, 4)] * 3


def test_widths_that_the_groups_do_not_divide_are_refused():
    check_widths((8, 16), 8)
    with pytest.raises(InvalidArgument, match="8 groups for a width of 12"):
        check_widths((8, 12), 8)
