"""Disjoint parts: the largest one, or two that change together when a record moves from one to another."""

from __future__ import annotations

import pytest

from dpfed.accounting import epsilon
from dpfed.accounting.parallel import parallel
from dpfed.errors import AdjacencyMismatch, InvalidArgument
from dpfed.events import (
    Composed,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomizedResponse,
    Repeated,
    ZeroConcentratedDP,
)

DELTA = 1e-5


def under(event: Event, adjacency: str, delta: float = DELTA) -> float:
    return epsilon(event, delta, adjacency=adjacency)


def test_under_add_remove_the_largest_counts() -> None:
    parts = [Gaussian(4.0), Repeated(PoissonSampled(Gaussian(1.0), 0.01), 100), Laplace(8.0)]
    assert parallel(parts, DELTA) == max(under(part, "add_remove") for part in parts)
    assert parallel([Gaussian(4.0)] * 100, DELTA) == under(Gaussian(4.0), "add_remove")


def test_under_replace_one_a_record_may_stay_in_its_part() -> None:
    # Two standard deviations of one part are further than one of either.
    assert parallel([Gaussian(2.0), Gaussian(4.0)], DELTA, adjacency="replace_one") == under(
        Gaussian(2.0), "replace_one"
    )


def test_under_replace_one_a_record_may_change_its_part_which_can_be_worse() -> None:
    """With little noise a sample gives away who is in it: at 1 % each, one part 1 % of the time and two parts 2 %."""
    revealing = PoissonSampled(Gaussian(0.1), 0.01)
    assert parallel([revealing], 0.015, adjacency="replace_one") == under(revealing, "replace_one", 0.015) < 0.1
    moved = parallel([revealing, revealing], 0.015, adjacency="replace_one")
    assert moved >= under(Composed([revealing, revealing]), "add_remove", 0.015) > 1.0


@pytest.mark.parametrize("part", [Laplace(2.0), Gaussian(2.0)], ids=repr)
def test_two_equal_parts_without_sampling_cost_no_more_than_one_that_is_replaced(part: Event) -> None:
    # e^{2ε} against e^ε·e^ε, and √2 standard deviations against 2.
    assert parallel([part, part], DELTA, adjacency="replace_one") == pytest.approx(under(part, "replace_one"))
    assert parallel([part, part], DELTA, adjacency="replace_one") > parallel([part, part], DELTA)


def test_the_two_directions_of_a_move_are_opposite() -> None:
    """With two sampled parts the removal of one and the addition to the other are composed, both ways."""
    first = Repeated(PoissonSampled(Gaussian(0.7), 0.02), 100)
    second = PoissonSampled(Gaussian(0.5), 0.3)
    found = parallel([first, second], DELTA, adjacency="replace_one")
    assert found == parallel([second, first], DELTA, adjacency="replace_one")
    assert found >= max(under(part, "add_remove") for part in (first, second))


def test_at_no_delta_pure_parts_are_added_up() -> None:
    assert parallel([Laplace(2.0), Laplace(4.0)], 0.0) == pytest.approx(0.5)
    assert parallel([Laplace(2.0), Laplace(4.0)], 0.0, adjacency="replace_one") == pytest.approx(1.0)


def test_a_part_that_is_known_by_its_divergence_is_composed_by_it() -> None:
    parts = [ZeroConcentratedDP(0.1), Gaussian(2.0)]
    assert parallel(parts, DELTA) == max(under(part, "add_remove") for part in parts)
    with pytest.raises(AdjacencyMismatch):
        parallel(parts, DELTA, adjacency="replace_one")


def test_parts_of_which_a_move_is_not_known_are_refused() -> None:
    with pytest.raises(AdjacencyMismatch, match="may change its part"):
        parallel([RandomizedResponse(1.0), RandomizedResponse(2.0)], DELTA, adjacency="replace_one")
    assert parallel([RandomizedResponse(1.0)], DELTA, adjacency="replace_one") <= 1.0


def test_a_part_stated_for_the_other_relation_is_refused() -> None:
    with pytest.raises(AdjacencyMismatch):
        parallel([PureDP(1.0), Gaussian(1.0)], DELTA, adjacency="replace_one")


@pytest.mark.parametrize(("parts", "delta"), [([], DELTA), ([Gaussian(1.0)], 1.0)])
def test_nonsense_is_refused(parts: list[Event], delta: float) -> None:
    with pytest.raises(InvalidArgument):
        parallel(parts, delta)
