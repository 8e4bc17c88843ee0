"""First values follow from what is public alone, and δ is below one tenth of one over the number of units."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.config.defaults import choose, choose_delta
from dpfed.errors import InvalidArgument

SIZES = st.lists(st.integers(1, 10**7), min_size=1, max_size=30)


@given(st.integers(1, 10**12))
def test_delta_is_the_largest_power_of_ten_below_one_over_ten_times_the_units(units):
    delta = Fraction(str(choose_delta(units)))
    assert delta < Fraction(1, 10 * units)
    assert delta == Fraction(1, 10**5) or Fraction(1, 10 * units) <= 10 * delta


@given(SIZES, st.floats(1e-3, 100), st.booleans())
def test_values_can_be_run_by_every_site(sizes, epsilon, is_quantity):
    chosen = choose(sizes, epsilon, is_quantity=is_quantity)
    assert 1 <= chosen.batch_size <= min(sizes)
    assert 100 <= chosen.rounds * chosen.steps <= 500
    assert chosen.delta < 1 / (10 * sum(sizes))


def test_a_large_table_takes_more_steps_and_larger_ones_but_no_larger_share():
    small, large = choose([500], 3.0), choose([45_000], 3.0)
    assert (small.rounds, large.rounds) == (10, 50)
    assert (small.learning_rate, large.learning_rate) == (2.0, 4.0)
    assert (small.batch_size, large.batch_size) == (125, 1000)


def test_a_quantity_is_learned_in_small_steps():
    assert choose([442], 4.0, is_quantity=True).learning_rate == 0.25


@pytest.mark.parametrize(("sizes", "epsilon"), [([], 1.0), ([0], 1.0), ([10], 0.0), ([2.5], 1.0)])
def test_what_is_no_size_and_no_epsilon_is_refused(sizes, epsilon):
    with pytest.raises(InvalidArgument):
        choose(sizes, epsilon)
