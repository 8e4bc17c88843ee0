from __future__ import annotations

import copy
import math
import multiprocessing
import pickle
import threading
import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed import accounting
from dpfed import events as ev
from dpfed.errors import BudgetExceeded, InvalidArgument, PrivacyError
from dpfed.manager.manager import (
    PrivacyBudget,
    PrivacyBudgetWarning,
    PrivacyManager,
    PrivacyParams,
    compute_delta_from_epsilon,
    compute_epsilon_from_delta,
    estimate_noise_scale,
)
from gaussian_rounds import exact_delta, exact_epsilon, spend

pytestmark = pytest.mark.filterwarnings("ignore::dpfed.manager.budget.PrivacyBudgetWarning")


class TestPrivacyParams:
    def test_params_keep_what_they_are_given(self):
        params = PrivacyParams(epsilon=0.5, delta=1e-6, clip_norm=2)
        assert (params.epsilon, params.delta, params.clip_norm) == (0.5, 1e-6, 2.0)
        with pytest.raises(AttributeError):
            params.epsilon = 5.0

    @pytest.mark.parametrize(
        "wrong",
        [
            {"epsilon": 0.0},
            {"epsilon": math.nan},
            {"epsilon": "1"},
            {"delta": 0.0},
            {"delta": 1.0},
            {"clip_norm": -1.0},
            {"clip_norm": math.inf},
        ],
    )
    def test_params_refuse_values_out_of_range_by_name(self, wrong):
        with pytest.raises(InvalidArgument) as refused:
            PrivacyParams(**wrong)
        assert refused.value.argument == next(iter(wrong))


class TestPrivacyBudget:
    def test_the_accountant_agrees_with_the_budget(self):
        budget = PrivacyBudget(epsilon=1.0, delta=1e-5, num_rounds=10)
        spend(budget, 3)
        assert accounting.epsilon(budget.plan, 1e-5) == pytest.approx(1.0, rel=1e-9)
        used = ev.Repeated(budget.event, 3)
        assert accounting.epsilon(used, 1e-5) == pytest.approx(budget.epsilon_spent(), rel=1e-9)

    def test_a_new_budget_has_everything_left(self):
        budget = PrivacyBudget(epsilon=2.0, delta=1e-5, num_rounds=7)
        assert (budget.epsilon_remaining(), budget.epsilon_spent()) == (2.0, 0.0)
        assert (budget.rounds_used, budget.rounds_remaining, budget.is_exhausted) == (0, 7, False)

    def test_each_round_costs_the_exact_curve(self):
        budget = PrivacyBudget(epsilon=1.0, delta=1e-5, num_rounds=10)
        for used in range(1, 10):
            budget.use_round()
            truth = exact_epsilon(budget.event.noise_multiplier, used, 1e-5)
            assert truth <= budget.epsilon_spent() <= truth * (1 + mpmath.mpf(1e-9))
            assert budget.epsilon_remaining() == 1.0 - budget.epsilon_spent()

    @given(epsilon=st.floats(0.01, 100), delta=st.floats(1e-12, 0.1), rounds=st.integers(1, 100), data=st.data())
    def test_remaining_falls_to_exactly_zero_and_never_below(self, epsilon, delta, rounds, data):
        budget = PrivacyBudget(epsilon, delta, rounds)
        used = data.draw(st.integers(0, rounds))
        spend(budget, used)
        before = budget.epsilon_remaining()
        assert 0 <= before <= epsilon
        spend(budget, rounds - used)
        assert budget.epsilon_remaining() == 0.0 <= before
        assert budget.epsilon_spent() == epsilon

    def test_one_round_too_many_is_refused_and_charges_nothing(self):
        budget = PrivacyBudget(num_rounds=3)
        spend(budget, 3)
        for _ in range(2):
            with pytest.raises(BudgetExceeded, match="3 rounds and all are spent"):
                budget.use_round()
        assert (budget.rounds_used, budget.rounds_remaining, budget.epsilon_remaining()) == (3, 0, 0.0)

    def test_the_status_says_where_the_budget_stands(self):
        budget = PrivacyBudget(epsilon=1.0, delta=1e-5, num_rounds=4)
        spend(budget, 3)
        status = budget.get_status()
        assert status["epsilon_total"] == pytest.approx(status["epsilon_spent"] + status["epsilon_remaining"])
        assert (status["num_rounds"], status["rounds_used"], status["rounds_remaining"]) == (4, 3, 1)
        assert status["noise_multiplier"] == budget.event.noise_multiplier
        assert status["is_exhausted"] is False
        assert "<td>3</td>" in budget._repr_html_()
        assert "3 of 4" in repr(budget)

    @given(epsilon=st.floats(1e-3, 1e3), delta=st.floats(1e-14, 0.5), rounds=st.integers(1, 100_000))
    def test_the_plan_spends_the_budget_exactly_and_never_more(self, epsilon, delta, rounds):
        budget = PrivacyBudget(epsilon, delta, rounds)
        noise_multiplier = budget.event.noise_multiplier
        with mpmath.workdps(40):
            assert exact_delta(noise_multiplier, rounds, epsilon) <= delta
            assert exact_delta(noise_multiplier * (1 - 1e-9), rounds, epsilon) > delta
        assert budget.plan == ev.Repeated(budget.event, rounds)

    @pytest.mark.parametrize(
        ("num_rounds", "warned_at"),
        [(1, [1]), (4, [2, 4]), (5, [3, 4, 5]), (10, [5, 8, 10]), (11, [6, 9, 11]), (100, [50, 80, 95])],
    )
    def test_a_warning_comes_once_at_each_mark(self, num_rounds, warned_at):
        budget, rounds = PrivacyBudget(num_rounds=num_rounds), []
        for used in range(1, num_rounds + 1):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                budget.use_round()
            rounds += [used for warning in caught if warning.category is PrivacyBudgetWarning]
        assert rounds == warned_at

    def test_the_status_says_how_much_is_spent(self):
        budget = PrivacyBudget(num_rounds=20)
        assert budget.get_status()["warning"] == ""
        for _ in range(16):
            budget.use_round()
        warning = budget.get_status()["warning"]
        assert warning == "80 % of the budget is passed: 16 of 20 rounds of ε = 1 are spent, 4 are left"

    def test_the_warning_points_at_the_caller(self):
        manager = PrivacyManager(num_rounds=1)
        with pytest.warns(PrivacyBudgetWarning, match="1 of 1 rounds") as caught:
            manager.apply_privacy(np.ones(2))
        assert caught[0].filename == __file__

    def test_a_budget_cannot_be_copied_to_be_spent_twice(self):
        manager = PrivacyManager()
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(PrivacyError, match="a second time"):
                copied(manager.privacy_budget)
        with pytest.raises(PrivacyError, match="a second time"):
            copy.deepcopy(manager)

    def test_a_budget_cannot_be_spent_again_in_a_forked_process(self):
        budget = PrivacyBudget()
        fork = multiprocessing.get_context("fork")
        answers = fork.Queue()

        def child():
            try:
                budget.use_round()
                answers.put("spent")
            except BudgetExceeded as refused:
                answers.put(str(refused))

        process = fork.Process(target=child)
        process.start()
        assert "forked process" in answers.get(timeout=60)
        process.join()

    def test_threads_together_spend_no_more_than_there_is(self):
        budget, charged = PrivacyBudget(num_rounds=200), []
        start = threading.Barrier(8)

        def work():
            start.wait()
            for _ in range(100):
                try:
                    budget.use_round()
                except BudgetExceeded:
                    continue
                charged.append(1)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(charged) == budget.rounds_used == 200


class TestEpsilonDeltaConversion:
    @pytest.mark.parametrize(("noise_multiplier", "rounds"), [(0.8, 1), (3.7306, 1), (12.0, 10), (50.0, 10_000)])
    def test_epsilon_from_delta_is_the_truth_rounded_up(self, noise_multiplier, rounds):
        truth = exact_epsilon(noise_multiplier, rounds, 1e-5)
        assert truth <= compute_epsilon_from_delta(1e-5, noise_multiplier, rounds) <= truth * (1 + mpmath.mpf(1e-9))

    @given(noise_multiplier=st.floats(0.3, 50), rounds=st.integers(1, 100), delta=st.floats(1e-10, 1e-2))
    def test_delta_from_epsilon_is_the_inverse(self, noise_multiplier, rounds, delta):
        epsilon = compute_epsilon_from_delta(delta, noise_multiplier, rounds)
        back = compute_delta_from_epsilon(epsilon, noise_multiplier, rounds)
        assert back <= delta
        assert epsilon == 0 or back == pytest.approx(delta, rel=1e-6)

    def test_delta_known_answer(self):
        assert compute_delta_from_epsilon(1.0, 1.0) == pytest.approx(0.12693673750664392, rel=1e-12)

    def test_the_noise_scale_is_the_analytic_one(self):
        assert estimate_noise_scale(1.0, 1e-5) == pytest.approx(3.7306, abs=5e-5)
        assert estimate_noise_scale(8.0, 1e-5) == pytest.approx(0.60023, abs=5e-6)
        assert estimate_noise_scale(1.0, 1e-5, clip_norm=2.0, num_rounds=9) == pytest.approx(6 * 3.73063, rel=1e-5)

    def test_the_classical_formula_would_break_the_promise_at_a_large_epsilon(self):
        classical = math.sqrt(2 * math.log(1.25 / 1e-5)) / 10.0
        assert compute_delta_from_epsilon(10.0, classical) > 1e-5
        assert estimate_noise_scale(10.0, 1e-5) > classical
        assert compute_delta_from_epsilon(10.0, estimate_noise_scale(10.0, 1e-5)) <= 1e-5

    @pytest.mark.parametrize(
        ("call", "name"),
        [
            (lambda: compute_epsilon_from_delta(0.0, 1.0), "delta"),
            (lambda: compute_epsilon_from_delta(1e-5, -1.0), "noise_multiplier"),
            (lambda: compute_delta_from_epsilon(-1.0, 1.0), "epsilon"),
            (lambda: compute_delta_from_epsilon(1.0, 1.0, 0), "num_rounds"),
            (lambda: estimate_noise_scale(1.0, 1e-5, 0.0), "clip_norm"),
        ],
    )
    def test_bad_arguments_are_refused_by_name(self, call, name):
        with pytest.raises(InvalidArgument) as refused:
            call()
        assert refused.value.argument == name
