"""The filter keeps its cap whatever the releases are, and exact composition would not."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpfed.accounting.closed_forms import gaussian_delta, gaussian_mu
from dpfed.accounting.conversions import rdp_to_epsilon
from dpfed.accounting.filter import UNLIMITED, RenyiFilter, default_order
from dpfed.accounting.renyi import rdp
from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InfeasibleTarget, InvalidArgument, UnknownEvent
from dpfed.events import (
    ApproximateDP,
    Composed,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    RenyiDP,
    Repeated,
    Unprotected,
    ZeroConcentratedDP,
)

STEP = PoissonSampled(Gaussian(1.0), 0.01)

gaussians = st.builds(Gaussian, st.floats(5.0, 100.0))
releases = st.one_of(
    gaussians,
    st.builds(Laplace, st.floats(5.0, 50.0)),
    st.builds(ZeroConcentratedDP, st.floats(1e-4, 0.05)),
    st.builds(PureDP, st.floats(0.01, 0.3)),
)
charges = st.lists(st.tuples(releases, st.integers(1, 5)), min_size=1, max_size=12)


def spend_while_it_fits(budget: RenyiFilter, rows: list[tuple[Event, int]]) -> list[tuple[Event, int]]:
    kept = []
    for event, count in rows:
        if budget.admits(event, count):
            budget.charge(event, count)
            kept.append((event, count))
    return kept


@given(
    rows=charges,
    epsilon=st.floats(0.1, 5.0),
    orders=st.sampled_from([None, [8.0], [4.0, 16.0], [3, 9, 27, 81]]),
)
def test_what_was_admitted_converts_to_no_more_than_the_cap(rows, epsilon, orders):
    try:
        budget = RenyiFilter(epsilon, 1e-6, orders)
    except InfeasibleTarget:
        return
    kept = spend_while_it_fits(budget, rows)
    shares = [1e-6 / len(budget.orders)] * len(budget.orders)
    totals = [sum(count * float(rdp(event, [order])[0]) for event, count in kept) for order in budget.orders]
    converted = [rdp_to_epsilon(*row) for row in zip(budget.orders, totals, shares, strict=True)]
    assert min(converted) <= epsilon * (1 + 1e-9) or not kept


def test_the_cap_of_an_order_is_admitted_and_a_hair_more_is_not():
    cap = RenyiFilter(1.0, 1e-6, [20.0]).caps[0]
    within, beyond = (RenyiDP(orders=(20.0,), epsilons=(cap * factor,)) for factor in (1 - 1e-12, 1 + 1e-12))
    budget = RenyiFilter(1.0, 1e-6, [20.0])
    assert not budget.admits(beyond)
    with pytest.raises(BudgetExceeded):
        budget.charge(beyond)
    budget.charge(within)
    assert rdp_to_epsilon(20.0, cap, 1e-6) <= 1.0


@given(rows=charges)
def test_spending_is_the_exact_sum_in_any_order_and_grouping(rows):
    forwards, backwards, singly = (RenyiFilter(1e6, 1e-6, [2.5, 7.0]) for _ in range(3))
    for event, count in rows:
        forwards.charge(event, count)
        for _ in range(count):
            singly.charge(event)
    for event, count in reversed(rows):
        backwards.charge(Repeated(event, count))
    exact = [sum(count * Fraction(float(rdp(event, [order])[0])) for event, count in rows) for order in (2.5, 7.0)]
    assert forwards.spent == backwards.spent == singly.spent == tuple(float(value) for value in exact)


@given(event=releases, epsilon=st.floats(0.2, 20.0), first=releases)
def test_what_is_affordable_fits_and_one_more_does_not(event, epsilon, first):
    budget = RenyiFilter(epsilon, 1e-6)
    spend_while_it_fits(budget, [(first, 1)])
    count = budget.affordable(event)
    assert count == 0 or budget.admits(event, count)
    assert not budget.admits(event, count + 1)


def test_a_refused_charge_spends_nothing_and_says_what_is_short():
    budget = RenyiFilter(1.0, 1e-6)
    budget.charge(Gaussian(20.0), 10)
    before = budget.spent
    with pytest.raises(BudgetExceeded, match=r"too much: at most 9 more fit"):
        budget.charge(Gaussian(20.0), 10)
    assert budget.spent == before
    budget.charge(Gaussian(20.0), 9)
    assert not budget.admits(Gaussian(20.0))


def test_what_remains_is_never_negative_even_when_rows_of_the_past_pass_the_cap():
    budget = RenyiFilter(1.0, 1e-6)
    budget.record(Gaussian(0.5), 100)
    assert budget.is_exhausted
    assert budget.remaining == (0.0,)
    assert budget.affordable(Gaussian(1e6)) == 0


def test_a_filter_rebuilt_from_its_rows_is_the_same_to_the_last_bit():
    rows = [(STEP, 300), (Gaussian(30.0), 2), (Laplace(20.0), 1), (STEP, 7)]
    lived, rebuilt = RenyiFilter(20.0, 1e-6, [3.0, 6.0]), RenyiFilter(20.0, 1e-6, [3.0, 6.0])
    for row in rows:
        lived.charge(*row)
    rebuilt.record(Composed([Repeated(STEP, 307), Laplace(20.0), Gaussian(30.0), Gaussian(30.0)]))
    assert rebuilt.spent == lived.spent
    assert rebuilt.affordable(STEP) == lived.affordable(STEP)


def test_a_copy_is_independent_of_its_original():
    budget = RenyiFilter(1.0, 1e-6)
    budget.charge(Gaussian(20.0))
    twin = budget.copy()
    twin.charge(Gaussian(20.0))
    assert twin.spent > budget.spent


@pytest.mark.parametrize("event", [Unprotected(), ApproximateDP(0.1, 1e-9), Composed([Gaussian(1e6), Unprotected()])])
def test_an_event_of_infinite_divergence_never_fits(event):
    budget = RenyiFilter(100.0, 1e-3, [2.0, 8.0])
    assert not budget.admits(event)
    assert budget.affordable(event) == 0
    with pytest.raises(BudgetExceeded):
        budget.charge(event)


def test_an_event_that_costs_nothing_fits_without_end():
    assert RenyiFilter(1.0, 1e-6).affordable(ZeroConcentratedDP(0.0)) == UNLIMITED


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_the_default_order_holds_more_gaussian_noise_than_its_neighbours(epsilon, delta):
    order = default_order(epsilon, delta)
    event = ZeroConcentratedDP(1e-9 * epsilon)
    best = RenyiFilter(epsilon, delta).affordable(event)
    for factor in (0.8, 1.25):
        assert best >= RenyiFilter(epsilon, delta, [1 + (order - 1) * factor]).affordable(event)


def test_the_default_order_is_near_the_rule_of_thumb():
    # ρ = 0.5 converts to ε = 5.2215 at δ = 1e-6; the rule is 1 + sqrt(log(1/δ)/ρ), a little high at large ρ.
    assert default_order(5.221534, 1e-6) == pytest.approx(1 + math.sqrt(math.log(1e6) / 0.5), rel=0.1)


def test_each_further_order_is_paid_for_by_the_union_bound():
    one, two = RenyiFilter(1.0, 1e-6, [20.0]), RenyiFilter(1.0, 1e-6, [20.0, 21.0])
    assert one.caps[0] - two.caps[0] == pytest.approx(math.log(2) / 19.0, rel=1e-9)


def test_some_order_is_enough_and_the_others_may_be_spent_out():
    budget = RenyiFilter(4.0, 1e-6, [3.0, 40.0])
    budget.charge(PureDP(0.2), budget.affordable(PureDP(0.2)))
    assert min(budget.remaining) == 0.0
    assert max(budget.caps[i] - budget.spent[i] for i in range(2)) >= 0


def test_a_free_choice_of_orders_afterwards_is_more_than_the_filter_admits():
    """The best of many orders without δ/k for each would admit more: that is the unsound version."""
    orders = [2.0 + i for i in range(60)]
    event = Gaussian(20.0)
    honest = RenyiFilter(1.0, 1e-6, orders).affordable(event)
    unpaid = max(RenyiFilter(1.0, 1e-6, [order]).affordable(event) for order in orders if order > 15)
    assert honest < unpaid


class TestTwoStages:
    """Stage 1 is a Gaussian; whoever saw its output chooses stage 2: more Gaussian, or a randomized response.

    Each of the two plans alone would be (1, 10⁻³)-DP if fixed in advance. Chosen by the output, they are not:
    at each value of the first loss the worse of the two branches is taken, and the expected δ is the mean of
    the maxima, above the larger of the means. The Rényi filter admits smaller second stages, and keeps
    the cap.
    """

    epsilon, delta, first = 1.0, 1e-3, 0.15

    def delta_of(self, *branches) -> float:
        """δ of stage 1 followed, at each of its outputs, by the branch that is worst there."""
        x = np.linspace(-12, 12, 20001)
        losses = self.first * (x + self.first) - self.first**2 / 2
        rest = [max(branch(self.epsilon - loss) for branch in branches) for loss in losses]
        return float(np.trapezoid(norm.pdf(x) * np.array(rest), x))

    @staticmethod
    def response_delta(pure: float, epsilon: float) -> float:
        keep = 1 / (1 + math.exp(-pure))
        return keep * max(0.0, -math.expm1(epsilon - pure)) + (1 - keep) * max(0.0, -math.expm1(epsilon + pure))

    def test_exact_composition_of_every_branch_is_not_a_filter(self):
        second = math.sqrt(gaussian_mu(self.epsilon, self.delta) ** 2 - self.first**2)
        low, high = 0.1, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            fits = self.delta_of(lambda e, pure=middle: self.response_delta(pure, e)) <= self.delta
            low, high = (middle, high) if fits else (low, middle)
        more_noise, response = (lambda e: gaussian_delta(second, e)), (lambda e: self.response_delta(low, e))
        assert self.delta_of(more_noise) == pytest.approx(self.delta, rel=1e-3)
        assert self.delta_of(response) == pytest.approx(self.delta, rel=1e-3)
        assert self.delta_of(more_noise, response) > 1.1 * self.delta

    def test_the_filter_keeps_its_cap_for_the_same_adversary(self):
        budget = RenyiFilter(self.epsilon, self.delta)
        budget.charge(Gaussian(1 / self.first))
        shifts = [shift for shift in np.linspace(0.01, 1.0, 400) if budget.admits(Gaussian(1 / shift))]
        pures = [pure for pure in np.linspace(0.01, 1.0, 400) if budget.admits(PureDP(float(pure)))]
        assert max(shifts) > 0.1
        assert max(pures) > 0.1
        worst = self.delta_of(lambda e: gaussian_delta(max(shifts), e), lambda e: self.response_delta(max(pures), e))
        assert worst <= self.delta


@pytest.mark.parametrize("orders", [[], [1.0], [0.5, 3.0], [2.0, 2.0], [math.inf], [math.nan]])
def test_bad_orders_are_refused(orders):
    with pytest.raises(InvalidArgument) as refusal:
        RenyiFilter(1.0, 1e-6, orders)
    assert refusal.value.argument == "orders"


def test_orders_without_any_room_are_refused_with_one_that_has_room():
    with pytest.raises(InfeasibleTarget, match="leave no room") as refusal:
        RenyiFilter(0.1, 1e-9, [1.5])
    assert "declare order" in refusal.value.remedies[0]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0.0, 1e-6), "epsilon"), ((math.inf, 1e-6), "epsilon"), ((1.0, 0.0), "delta"), ((1.0, 1.0), "delta")],
)
def test_a_cap_that_is_none_is_refused(arguments, name):
    with pytest.raises(InvalidArgument) as refusal:
        RenyiFilter(*arguments)
    assert refusal.value.argument == name


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_bad_count_is_refused(count):
    with pytest.raises(InvalidArgument, match="count"):
        RenyiFilter(1.0, 1e-6).charge(Gaussian(20.0), count)


def test_what_is_no_event_is_refused():
    with pytest.raises(UnknownEvent):
        RenyiFilter(1.0, 1e-6).charge("gaussian")


def test_an_event_of_the_other_adjacency_is_refused():
    with pytest.raises(AdjacencyMismatch):
        RenyiFilter(1.0, 1e-6, adjacency="replace_one").charge(PureDP(0.1))


def test_replace_one_pays_the_doubled_shift():
    event = Gaussian(40.0)
    add_remove = RenyiFilter(1.0, 1e-6).affordable(event)
    replace_one = RenyiFilter(1.0, 1e-6, adjacency="replace_one").affordable(event)
    assert replace_one == pytest.approx(add_remove / 4, abs=1)


def test_it_shows_how_much_is_spent():
    budget = RenyiFilter(1.0, 1e-6)
    budget.charge(Gaussian(20.0), 10)
    assert "51.3% spent" in repr(budget)
