from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dpfed.training.checking.made_up import MadeUp
from dpfed.training.checking.modes import Mode
from dpfed.training.checking.search import Change, Movement, Search
from dpfed.training.engine.forward import make_forward

KINDS = ("removed", "added", "replaced")


def searched(sums, norm="l2", clip_norm=1.0):
    model = nn.Linear(2, 1)
    made_up = MadeUp((torch.zeros(3, 2), torch.zeros(3)))
    loss = nn.MSELoss(reduction="none")
    search = Search(model, loss, made_up, clip_norm, torch.Generator().manual_seed(0))
    return search.run(Mode("mine", sums, norm), KINDS)


def test_a_sum_that_counts_records_moves_by_one():
    found = searched(lambda pool, rows: torch.tensor([float(len(rows))]))
    assert [each.distance for each in found] == [1.0, 1.0, 0.0]


def test_distances_are_in_clip_norms_and_in_the_norm_that_is_clipped():
    found = searched(lambda pool, rows: torch.full((4,), float(len(rows))), norm="l1", clip_norm=2.0)
    assert found[0].distance == 2.0


def test_it_climbs_towards_records_that_move_the_sum_further():
    def sums(pool, rows):
        return pool.values[0][list(rows)].double().sum(0) / 100

    model, made_up = nn.Linear(2, 1), MadeUp((torch.zeros(3, 2), torch.zeros(3)))
    search = Search(model, nn.MSELoss(reduction="none"), made_up, 1.0, torch.Generator().manual_seed(0))
    mode = Mode("mine", sums)
    point = search._draw_point()
    first = Movement("mine", Change("removed", 0), point.size, 0.0)
    assert search._climb(mode, point, first).distance > 0


def test_a_sum_that_is_not_finite_has_moved_infinitely_far():
    found = searched(lambda pool, rows: torch.tensor([math.nan]))
    assert all(each.distance == math.inf and not each.is_allowed for each in found)


@pytest.mark.parametrize(
    ("change", "distance", "is_allowed"),
    [
        (Change("removed", 0), 1.0005, True),
        (Change("added", 0), 1.01, False),
        (Change("replaced", 0), 2.001, True),
        (Change("replaced", 0), 2.01, False),
    ],
)
def test_one_clip_norm_is_allowed_and_two_where_a_record_is_replaced(change, distance, is_allowed):
    assert Movement("mine", change, 3, distance).is_allowed == is_allowed


def test_neighbours_differ_in_one_record():
    model = nn.Linear(2, 1)
    pool = make_forward(model, nn.MSELoss(reduction="none"), torch.randn(4, 2), torch.zeros(4))
    sizes = {kind: pool.rows(Change(kind, 2).rows(3)).size for kind in KINDS}
    assert sizes == {"removed": 2, "added": 4, "replaced": 3}
