from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.accounting.accountant import (
    PrivacyAccountant,
    RemainingBudget,
    compute_privacy_budget,
    get_privacy_spent,
)
from dpfed.accounting.closed_forms import gaussian_epsilon
from dpfed.accounting.renyi import rdp
from dpfed.errors import AdjacencyMismatch, InvalidArgument, UnknownEvent
from dpfed.events import (
    Composed,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomizedResponse,
    Repeated,
    Unprotected,
    ZeroConcentratedDP,
)

STEP = PoissonSampled(Gaussian(1.0), 0.01)

EVENTS = [
    Gaussian(8.0),
    Laplace(10.0),
    STEP,
    PoissonSampled(Gaussian(2.0), 0.1),
    PureDP(0.05),
    Composed([Gaussian(9.0), Laplace(12.0)]),
]
CURVES = [*EVENTS, ZeroConcentratedDP(0.001)]

events = st.sampled_from(EVENTS)
rows = st.lists(st.tuples(events, st.integers(1, 20)), min_size=1, max_size=4)


def spent_on(items) -> PrivacyAccountant:
    accountant = PrivacyAccountant(delta=1e-5)
    for event, count in items:
        accountant.compose(event, count)
    return accountant


class TestAsInTheSeed:
    def test_the_training_loop_of_the_seed(self):
        accountant = PrivacyAccountant(
            noise_multiplier=1.0,
            sample_rate=0.01,
            delta=1e-5,
            max_epsilon=10.0,
        )
        dataloader = range(100)
        for _epoch in range(100):
            accountant.step(num_steps=len(dataloader))
            if accountant.is_budget_exceeded():
                break
        epsilon = accountant.get_epsilon()
        assert epsilon == pytest.approx(6.18772, abs=1e-4)
        assert accountant.steps == 10_000

    def test_the_loop_stops_once_a_step_has_passed_the_budget(self):
        accountant = PrivacyAccountant(1.0, 0.01, 1e-5, 3.0)
        epochs = 0
        while not accountant.is_budget_exceeded():
            accountant.step(100)
            epochs += 1
        assert get_privacy_spent(100 * (epochs - 1), 1.0, 0.01, 1e-5) <= 3.0 < accountant.get_epsilon()

    def test_the_order_of_arguments_is_the_seeds(self):
        accountant = PrivacyAccountant(2.0, 0.5, 1e-6, 4.0)
        assert accountant.step_event == PoissonSampled(Gaussian(2.0), 0.5)
        assert (accountant.delta, accountant.max_epsilon) == (1e-6, 4.0)

    def test_the_moments_bound_of_the_seed_is_looser_than_what_is_reported(self):
        # Orders 2..64 and log(1/δ)/(α−1): 7.47 for this run, where 6.19 is exact.
        orders = range(2, 65)
        divergences = rdp(Repeated(STEP, 10_000), orders)
        pairs = zip(divergences, orders, strict=True)
        loose = min(value + math.log(1e5) / (order - 1) for value, order in pairs)
        assert loose == pytest.approx(7.47, abs=0.02)
        assert get_privacy_spent(10_000, 1.0, 0.01, 1e-5) < 6.19 < loose


class TestSpending:
    def test_nothing_costs_nothing(self):
        accountant = PrivacyAccountant(delta=1e-5, max_epsilon=1.0)
        assert accountant.get_epsilon() == 0.0
        assert not accountant.is_budget_exceeded()
        assert accountant.event is None

    def test_without_a_sample_rate_a_step_sees_all_of_the_data(self):
        accountant = PrivacyAccountant(noise_multiplier=10.0, delta=1e-5)
        accountant.step(25)
        assert accountant.get_epsilon() == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=1e-9)

    @pytest.mark.parametrize("event", CURVES, ids=str)
    def test_one_by_one_equals_many_at_once(self, event):
        singly = spent_on([(event, 1)] * 30)
        at_once = spent_on([(event, 30)])
        assert singly.get_epsilon() == pytest.approx(at_once.get_epsilon(), rel=1e-9)

    def test_one_by_one_equals_many_at_once_for_randomized_response(self):
        # A peer forgets the count here: it reports 1.0987 for fifty responses that cost 50.5226.
        keep = RandomizedResponse(epsilon=math.log(3.0))
        singly, at_once = (PrivacyAccountant(delta=1e-5, adjacency="replace_one") for _ in range(2))
        at_once.compose(keep, 50)
        for _ in range(50):
            singly.compose(keep)
        assert singly.get_epsilon() == pytest.approx(at_once.get_epsilon(), rel=1e-9)
        assert at_once.get_epsilon() > 20

    def test_steps_and_composed_events_add_up_in_one_account(self):
        accountant = PrivacyAccountant(noise_multiplier=10.0, delta=1e-5)
        accountant.step(9)
        accountant.compose(Gaussian(5.0), 4)
        assert accountant.get_epsilon() == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=1e-9)
        assert accountant.steps == 9

    @settings(max_examples=15)
    @given(items=rows)
    def test_the_order_of_events_does_not_matter(self, items):
        backwards = spent_on(reversed(items)).get_epsilon()
        assert spent_on(items).get_epsilon() == pytest.approx(backwards, rel=1e-9)

    @settings(max_examples=15)
    @given(items=rows)
    def test_asking_in_between_changes_nothing(self, items):
        asked = PrivacyAccountant(delta=1e-5)
        epsilons = [0.0]
        for event, count in items:
            asked.compose(event, count)
            epsilons.append(asked.get_epsilon())
        assert asked.get_epsilon() == pytest.approx(spent_on(items).get_epsilon(), rel=1e-9)
        assert epsilons == sorted(epsilons)

    def test_a_release_without_noise_costs_everything(self):
        accountant = PrivacyAccountant(delta=1e-5, max_epsilon=100.0)
        accountant.compose(Unprotected())
        assert accountant.get_epsilon() == math.inf
        assert accountant.is_budget_exceeded()

    def test_replace_one_costs_more(self):
        add_remove, replace_one = (
            PrivacyAccountant(2.0, delta=1e-5, adjacency=adjacency) for adjacency in ("add_remove", "replace_one")
        )
        add_remove.step(10)
        replace_one.step(10)
        assert replace_one.get_epsilon() == pytest.approx(17.8565868, rel=1e-6)
        assert add_remove.get_epsilon() < 8


class TestBudget:
    @settings(max_examples=20)
    @given(items=rows, event=events, count=st.integers(1, 50), cap=st.floats(0.5, 10.0))
    def test_would_exceed_agrees_with_composing_and_looking(self, items, event, count, cap):
        accountant = PrivacyAccountant(delta=1e-5, max_epsilon=cap)
        for row in items:
            accountant.compose(*row)
        before = accountant.get_epsilon()
        foretold = accountant.would_exceed(event, count)
        assert accountant.get_epsilon() == before
        accountant.compose(event, count)
        assert accountant.is_budget_exceeded() == foretold

    @pytest.mark.parametrize(
        ("noise_multiplier", "sample_rate", "cap"),
        [(20.0, None, 2.0), (1.0, 0.01, 6.0), (2.0, 0.1, 8.0), (1.0, 0.01, 0.6)],
    )
    @pytest.mark.parametrize("earlier", [0, 7])
    def test_the_remaining_steps_fit_and_one_more_does_not(self, noise_multiplier, sample_rate, cap, earlier):
        accountant = PrivacyAccountant(noise_multiplier, sample_rate, 1e-5, cap)
        if earlier:
            accountant.step(earlier)
            accountant.compose(Gaussian(30.0), 2)
        steps = accountant.remaining_budget().steps
        assert steps is not None
        assert steps > 0
        assert not accountant.would_exceed(accountant.step_event, steps)
        assert accountant.would_exceed(accountant.step_event, steps + 1)
        accountant.step(steps)
        assert not accountant.is_budget_exceeded()
        assert accountant.remaining_budget().steps == 0

    def test_the_remaining_steps_of_a_gaussian_are_those_of_the_closed_form(self):
        accountant = PrivacyAccountant(noise_multiplier=10.0, delta=1e-5, max_epsilon=4.3772)
        # μ = √T/10, and ε = 4.37718 at μ = 1.
        assert accountant.remaining_budget() == RemainingBudget(epsilon=4.3772, steps=100)

    def test_what_remains_is_never_negative(self):
        accountant = PrivacyAccountant(1.0, 0.5, 1e-5, 1.0)
        accountant.step(500)
        assert accountant.is_budget_exceeded()
        assert accountant.remaining_budget() == RemainingBudget(epsilon=0.0, steps=0)

    def test_without_a_configured_step_no_number_of_steps_remains(self):
        accountant = PrivacyAccountant(delta=1e-5, max_epsilon=1.0)
        assert accountant.remaining_budget() == RemainingBudget(epsilon=1.0, steps=None)

    def test_without_a_budget_nothing_is_exceeded_and_nothing_remains_to_be_told(self):
        accountant = PrivacyAccountant(0.5, 0.5, 1e-5)
        accountant.step(100)
        assert not accountant.is_budget_exceeded()
        assert not accountant.would_exceed(Gaussian(0.1))
        with pytest.raises(InvalidArgument, match="max_epsilon"):
            accountant.remaining_budget()


class TestState:
    @settings(max_examples=15)
    @given(items=rows, steps=st.integers(1, 300))
    def test_a_state_goes_through_json_to_the_last_bit(self, items, steps):
        accountant = PrivacyAccountant(1.3, 0.07, 1e-6, 5.0)
        accountant.step(steps)
        for row in items:
            accountant.compose(*row)
        accountant.step(3)
        state = json.loads(json.dumps(accountant.state_dict(), allow_nan=False))
        restored = PrivacyAccountant.from_state_dict(state)
        assert restored.get_epsilon() == accountant.get_epsilon()
        assert restored.state_dict() == accountant.state_dict()

    def test_a_restored_accountant_goes_on_as_if_nothing_had_happened(self):
        through, resumed = (PrivacyAccountant(1.0, 0.1, 1e-5, 20.0) for _ in range(2))
        for _ in range(6):
            through.step(100)
            resumed.step(100)
            resumed = PrivacyAccountant.from_state_dict(json.loads(json.dumps(resumed.state_dict())))
        assert resumed.get_epsilon() == through.get_epsilon()
        assert resumed.steps == through.steps == 600

    def test_an_empty_accountant_has_a_state_too(self):
        restored = PrivacyAccountant.from_state_dict(PrivacyAccountant(delta=1e-5).state_dict())
        assert restored.get_epsilon() == 0.0
        assert restored.max_epsilon is None

    def test_a_run_of_many_kinds_of_events_comes_back_to_the_last_bit(self):
        accountant = PrivacyAccountant(delta=1e-5)
        for index in range(40):
            accountant.compose(PoissonSampled(Gaussian(1.0 + index / 100), 0.05), 10)
            accountant.get_epsilon()
        before = accountant.get_epsilon()
        restored = PrivacyAccountant.from_state_dict(json.loads(json.dumps(accountant.state_dict())))
        assert restored.get_epsilon() == accountant.get_epsilon() == pytest.approx(before, rel=1e-9)
        for one in (accountant, restored):
            one.compose(Gaussian(7.0))
        assert restored.get_epsilon() == accountant.get_epsilon()

    def test_the_adjacency_is_part_of_the_state(self):
        accountant = PrivacyAccountant(2.0, delta=1e-5, adjacency="replace_one")
        accountant.step(10)
        restored = PrivacyAccountant.from_state_dict(accountant.state_dict())
        assert restored.get_epsilon() == accountant.get_epsilon()

    @pytest.mark.parametrize("state", [{}, None, {"version": 99}, {"version": 1, "delta": 1e-5}])
    def test_what_is_no_state_is_refused(self, state):
        with pytest.raises(InvalidArgument, match="state_dict"):
            PrivacyAccountant.from_state_dict(state)


class TestShortcuts:
    def test_the_spent_budget_is_the_accountants(self):
        accountant = PrivacyAccountant(1.0, 0.1, 1e-5)
        accountant.step(100)
        spent = get_privacy_spent(steps=100, noise_multiplier=1.0, sample_rate=0.1, delta=1e-5)
        assert spent == pytest.approx(7.0466, abs=1e-4)
        assert spent == pytest.approx(accountant.get_epsilon(), rel=1e-9)

    def test_the_budget_helper_takes_delta_third_and_samples_nothing_by_default(self):
        assert compute_privacy_budget(100, 10.0, 1e-5) == pytest.approx(4.37718, abs=1e-5)
        assert compute_privacy_budget(100, 1.0, 1e-5, 0.1) == get_privacy_spent(100, 1.0, 0.1, 1e-5)

    def test_the_formula_without_a_sampling_rate_is_not_used(self):
        # Seed 001: σ = √(2 log(1.25/δ))·√T/ε, read backwards, knows no rate and is far off.
        naive = math.sqrt(2 * math.log(1.25e5)) * math.sqrt(10_000) / 1.0
        assert compute_privacy_budget(10_000, 1.0, 1e-5, sample_rate=0.01) < naive / 50


class TestWhatIsShown:
    def test_the_repr_says_what_was_spent(self):
        accountant = PrivacyAccountant(10.0, delta=1e-5, max_epsilon=8.0)
        accountant.step(100)
        assert repr(accountant) == ("<PrivacyAccountant: ε = 4.37718 of 8 at δ = 1e-05 (add_remove) after 100 steps>")

    def test_a_notebook_shows_the_event_escaped(self):
        accountant = PrivacyAccountant(10.0, delta=1e-5)
        assert "nothing recorded" in accountant._repr_html_()
        accountant.step()
        assert "Gaussian(noise_multiplier=10.0)" in accountant._repr_html_()


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "name"),
        [
            ({"noise_multiplier": -1.0, "delta": 1e-5}, "noise_multiplier"),
            ({"noise_multiplier": math.nan, "delta": 1e-5}, "noise_multiplier"),
            ({"noise_multiplier": 1.0, "sample_rate": 1.1, "delta": 1e-5}, "sample_rate"),
            ({"noise_multiplier": 1.0, "sample_rate": 0.0, "delta": 1e-5}, "sample_rate"),
            ({"sample_rate": 0.1, "delta": 1e-5}, "noise_multiplier"),
            ({"noise_multiplier": 1.0}, "delta"),
            ({"delta": 1.0}, "delta"),
            ({"delta": 1e-5, "max_epsilon": -1.0}, "max_epsilon"),
            ({"delta": 1e-5, "adjacency": "swap"}, "adjacency"),
        ],
    )
    def test_a_bad_argument_is_named(self, arguments, name):
        with pytest.raises(InvalidArgument) as refusal:
            PrivacyAccountant(**arguments)
        assert refusal.value.argument == name

    @pytest.mark.parametrize("num_steps", [0, -1, 1.5, True, None])
    def test_steps_are_whole_and_at_least_one(self, num_steps):
        accountant = PrivacyAccountant(1.0, delta=1e-5)
        with pytest.raises(InvalidArgument, match="num_steps"):
            accountant.step(num_steps)
        assert accountant.steps == 0

    def test_a_step_needs_a_noise_multiplier(self):
        with pytest.raises(InvalidArgument, match="compose"):
            PrivacyAccountant(delta=1e-5).step()

    def test_what_is_no_event_is_refused_and_not_recorded(self):
        accountant = PrivacyAccountant(delta=1e-5, max_epsilon=1.0)
        for ask in (accountant.compose, accountant.would_exceed):
            with pytest.raises(UnknownEvent):
                ask("gaussian")
        assert accountant.event is None

    def test_an_event_of_the_other_adjacency_is_refused_and_not_recorded(self):
        accountant = PrivacyAccountant(delta=1e-5)
        with pytest.raises(AdjacencyMismatch):
            accountant.compose(RandomizedResponse(1.0))
        assert accountant.event is None
