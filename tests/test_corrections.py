"""Formulas and numbers that this library was asked for and that are wrong: ours must differ where it matters.

Each test writes the wrong formula down, shows by how much it fails, and that it is not what is used. Where the truth
is a known number, it is checked too.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpfed import FederatedAccountant, accounting, compute_noise_multiplier
from dpfed.accounting.calibrate import calibrate_noise, dp_sgd_event, steps_for
from dpfed.accounting.closed_forms import gaussian_delta
from dpfed.accounting.composition import (
    advanced_composition_epsilon,
    basic_composition_epsilon,
    optimal_composition_epsilon,
)
from dpfed.accounting.conversions import zcdp_to_epsilon
from dpfed.accounting.federated import epsilon_by_round
from dpfed.accounting.filter import RenyiFilter
from dpfed.accounting.notions import compare
from dpfed.clipping import clip_gradients, clip_per_example
from dpfed.errors import AdjacencyMismatch, InvalidArgument
from dpfed.events import (
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomizedResponse,
    Repeated,
    SampledWithoutReplacement,
)
from dpfed.manager.manager import PrivacyManager
from dpfed.mechanisms.gaussian import GaussianMechanism
from dpfed.mechanisms.selection import ReportNoisyMax
from dpfed.mechanisms.sensitivity import fedavg_step, iadmm_step
from dpfed.pate.vote import LNMax

W1 = dp_sgd_event(noise_multiplier=1.0, sample_rate=0.01, steps=10_000)


def classical(epsilon: float, delta: float) -> float:
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


class TestSampledGaussian:
    def test_the_quadratic_moment_is_no_bound(self):
        wrong = 32 * 0.01**2 / (2 * 1.0**2)
        (ours,) = accounting.rdp(PoissonSampled(Gaussian(1.0), 0.01), [32])
        assert wrong == pytest.approx(0.0016)
        assert ours == pytest.approx(11.246, abs=5e-4)

    def test_the_plain_conversion_at_whole_orders_is_loose(self):
        orders = np.arange(2, 65)
        loose = float(np.min(accounting.rdp(W1, orders) + math.log(1e5) / (orders - 1)))
        assert loose == pytest.approx(7.47, abs=0.005)
        exact = accounting.epsilon(W1, 1e-5)
        assert exact == pytest.approx(6.1877, abs=5e-5)
        assert exact < accounting.epsilon(W1, 1e-5, notion="rdp") <= 6.72

    def test_ten_rounds_cost_ten_times_what_is_said(self):
        said = (0.85, 2.68)
        ours = epsilon_by_round(1.0, 0.1, steps_per_round=100, num_rounds=10, delta=1e-5)
        truth = [7.05, 9.97, 12.40, 14.56, 16.56, 18.44, 20.23, 21.94, 23.60, 25.20]
        assert ours == pytest.approx(truth, abs=0.006)
        assert ours[0] > 8 * said[0]
        assert ours[-1] > 9 * said[1]

    def test_noise_of_one_does_not_reach_epsilon_eight(self):
        said = 1.0
        assert accounting.epsilon(dp_sgd_event(said, 0.1, 1000), 1e-5) > 25
        assert compute_noise_multiplier(8.0, 1e-5, 0.1, 100, 10) == pytest.approx(2.0507, abs=1e-4)

    def test_noise_without_the_sampling_rate_is_far_too_much(self):
        said = math.sqrt(2 * math.log(1.25 / 1e-5)) * math.sqrt(10_000) / 8
        assert said > 60
        assert compute_noise_multiplier(8.0, 1e-5, 0.01, 10_000, 1) < 1

    def test_a_fixed_size_sample_is_not_accounted_as_a_poisson_one(self):
        fixed, poisson = SampledWithoutReplacement(Gaussian(1.0), 10, 100), PoissonSampled(Gaussian(1.0), 0.1)
        with pytest.raises(AdjacencyMismatch):
            accounting.epsilon(fixed, 1e-5)
        as_sampled = accounting.epsilon(Repeated(fixed, 100), 1e-5, adjacency="replace_one")
        assert as_sampled > 1.05 * accounting.epsilon(Repeated(poisson, 100), 1e-5)


class TestFederation:
    def test_a_record_and_a_client_are_two_statements_and_their_sum_adds_the_deltas(self):
        accountant = FederatedAccountant(target_delta=1e-5)
        accountant.record_round(1, 1.0, 0.1, 100, noise_multiplier_user=2.0)
        record, client = accountant.guarantees()
        total = accountant.conservative_total()
        assert (record.unit, client.unit) == ("record", "client")
        assert total.epsilon == pytest.approx(record.epsilon + client.epsilon)
        assert total.delta == pytest.approx(2e-5)

    def test_the_average_of_twenty_clients_hides_the_smallest(self):
        records = [950] * 19 + [50]
        rates = [min(1.0, 5 / n) for n in records]
        accountant = FederatedAccountant(target_delta=1e-5)
        for client, rate in enumerate(rates):
            accountant.record_round(1, 1.0, rate, 1000, client=client)
        average = accounting.epsilon(dp_sgd_event(1.0, sum(rates) / 20, 1000), 1e-5)
        assert accountant.worst_client() == "19"
        assert accountant.get_cumulative_sample_epsilon() == pytest.approx(25.2, abs=0.05)
        assert average < 10

    def test_the_exact_cost_so_far_is_no_admission_rule(self):
        event = Gaussian(20.0)
        fixed_in_advance = steps_for(1.0, 1e-6, 20.0)
        assert RenyiFilter(1.0, 1e-6).affordable(event) < fixed_in_advance


class TestComposition:
    def test_advanced_composition_without_its_drift_promises_too_much(self):
        wrong = 1.0 * math.sqrt(2 * 100 * math.log(1 / 1e-5))
        truth = optimal_composition_epsilon(1.0, 0.0, 100, 1e-5)
        assert wrong == pytest.approx(47.99, abs=0.005)
        assert truth == pytest.approx(79.84, abs=0.05)
        assert wrong < truth <= advanced_composition_epsilon(1.0, 100, 1e-5)

    def test_advanced_composition_of_doubled_terms_is_worse_than_adding_up(self):
        wrong = 2 * math.sqrt(math.log(1e5) * 100) * 0.1 + 100 * math.expm1(0.1)
        assert wrong == pytest.approx(17.3, abs=0.05)
        assert basic_composition_epsilon(0.1, 100) == pytest.approx(10)
        assert advanced_composition_epsilon(0.1, 100, 1e-5) == pytest.approx(5.2981, abs=5e-5)
        assert optimal_composition_epsilon(0.1, 0.0, 100, 1e-5) == pytest.approx(4.31, abs=0.005)
        response = Repeated(RandomizedResponse(0.1), 100)
        assert accounting.epsilon(response, 1e-5, adjacency="replace_one") == pytest.approx(4.31, abs=0.005)

    def test_epsilon_over_the_root_of_the_rounds_overspends(self):
        each = PureDP(1.0 / math.sqrt(100))
        assert accounting.epsilon(Repeated(each, 100), 1e-5) > 4
        manager = PrivacyManager(epsilon=1.0, delta=1e-5, num_rounds=100)
        assert accounting.epsilon(manager.plan, 1e-5) <= 1.0

    def test_the_textbook_conversion_of_zcdp_is_loose(self):
        loose = 0.5 + 2 * math.sqrt(0.5 * math.log(1e6))
        assert loose == pytest.approx(5.757, abs=5e-4)
        assert zcdp_to_epsilon(0.5, 1e-6) == pytest.approx(5.2215, abs=5e-5)
        assert accounting.epsilon(Gaussian(1.0), 1e-6) == pytest.approx(4.8866, abs=5e-5)

    def test_bayesian_privacy_is_a_diagnostic_and_gets_no_number(self):
        (row,) = [row for row in compare(W1, 1e-5) if row.notion == "bayesian"]
        assert row.epsilon is None
        assert "diagnostic" in row.remark

    def test_sampling_hides_nothing_from_who_collects_local_reports(self):
        rows = {row.notion: row.epsilon for row in compare(PoissonSampled(Gaussian(5.0), 0.1), 1e-5)}
        assert rows["local"] == accounting.epsilon(Gaussian(5.0), 1e-5, adjacency="replace_one")
        assert rows["local"] > 5 * rows["exact"]


class TestMechanisms:
    @pytest.mark.parametrize(("epsilon", "sigma"), [(1.0, 3.7306), (8.0, 0.60023)])
    def test_gaussian_noise_is_the_analytic_one(self, epsilon, sigma):
        assert GaussianMechanism(epsilon, 1e-5, 1.0).scale == pytest.approx(sigma, rel=2e-5)

    def test_the_classical_gaussian_is_false_from_8_42_on_and_refused_above_1(self):
        assert gaussian_delta(1 / classical(8.41, 1e-5), 8.41) < 1e-5 < gaussian_delta(1 / classical(8.43, 1e-5), 8.43)
        assert GaussianMechanism(20.0, 1e-5, 1.0).scale > classical(20.0, 1e-5)
        with pytest.raises(InvalidArgument, match="ε ≤ 1"):
            GaussianMechanism(1.1, 1e-5, 1.0, calibration="classical")

    def test_clipping_never_scales_up_and_cuts_each_example(self):
        short = np.array([0.03, 0.04])
        assert np.linalg.norm(short * (1.0 / (0.05 + 1e-6))) > 0.99
        assert np.array_equal(clip_gradients(short, 1.0), short)
        batch = np.array([[300.0, 400.0], [0.03, 0.04]])
        clipped = clip_per_example(batch, 1.0)
        assert np.linalg.norm(clipped, axis=1) == pytest.approx([1.0, 0.05])

    def test_noise_on_a_mean_is_divided_by_the_public_size_as_the_mean_is(self):
        manager = PrivacyManager(per_example=True, clip_norm=2.0, expected_batch_size=64)
        assert manager.get_noise_scale() == pytest.approx(2.0 * manager.event.noise_multiplier / 64)

    def test_a_record_inside_a_clipped_batch_moves_it_by_twice_the_clip(self):
        assert PrivacyManager(clip_norm=1.5, unit="client").sensitivity == 1.5
        assert PrivacyManager(clip_norm=1.5, unit="record").sensitivity == 3.0

    def test_votes_need_twice_the_noise_because_one_teacher_moves_two_counts(self):
        assert ReportNoisyMax(epsilon=0.5, sensitivity=1.0).scale == 2 / 0.5
        two_counts = Laplace(noise_multiplier=1 / 0.5)
        assert accounting.epsilon(two_counts, 0.0, adjacency="replace_one") == pytest.approx(2 * 0.5)

    def test_randomized_response_below_one_half_has_no_negative_epsilon(self):
        said = math.log(0.25 / 0.75)
        with pytest.raises(InvalidArgument):
            RandomizedResponse(said)
        event = RandomizedResponse(abs(said))
        assert accounting.epsilon(event, 0.0, adjacency="replace_one") == pytest.approx(math.log(3))

    def test_a_fedavg_step_is_bounded_by_its_clip_and_not_by_the_data(self):
        assert fedavg_step(1.0, 0.1, records=500) == pytest.approx(2 * 0.1 / 500)
        assert fedavg_step(1.0, 0.1, records=500, adjacency="add_remove") == pytest.approx(0.1 / 500)
        assert fedavg_step(1.0, 0.1, records=500, steps=5) == pytest.approx(2 * 0.1 * (1 / 500 + 4))
        with pytest.raises(InvalidArgument, match="true count"):
            fedavg_step(1.0, 0.1, records=500, adjacency="add_remove", normaliser="realised")

    def test_an_admm_step_counts_its_proximity_and_only_released_state(self):
        without = 2 * 1.0 / (500 * 2.0)
        assert iadmm_step(1.0, 2.0, 500) == pytest.approx(without)
        assert iadmm_step(1.0, 2.0, 500, proximity=3.0) == pytest.approx(without * 2 / 5)
        for changed in ({"state": "exact"}, {"steps": 2}, {"optimizer": "adam"}):
            with pytest.raises(InvalidArgument):
                iadmm_step(1.0, 2.0, 500, **changed)


def test_calibration_keeps_the_total_that_a_share_per_round_does_not():
    sigma = calibrate_noise(1.0, 1e-5, lambda noise: Repeated(Gaussian(noise), 100))
    assert accounting.epsilon(Repeated(Gaussian(sigma), 100), 1e-5) <= 1.0


def test_001_a_vote_with_laplace_noise_of_one_over_epsilon_is_not_epsilon_dp():
    """One teacher moves two counts: Lap(1/ε) is 2ε-DP, and votes take Lap(2/ε)."""
    assert LNMax(0.1).scale == 20.0
    two_counts = Repeated(Laplace(noise_multiplier=1 / 0.1), 2)  # Lap(1/ε) on each
    assert accounting.epsilon(two_counts, 0.0) == pytest.approx(0.2, rel=1e-9)
