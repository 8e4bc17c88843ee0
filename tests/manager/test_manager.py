"""Seed 003's twelve test classes, with assertions that can fail, and what the seed got wrong."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpfed import events as ev
from dpfed.accounting.composition import optimal_composition_epsilon
from dpfed.errors import BudgetExceeded, InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.manager.manager import (
    DPSGDTrainer,
    PrivacyBudget,
    PrivacyManager,
    advanced_composition_epsilon,
    basic_composition_epsilon,
    compute_epsilon_from_delta,
)
from dpfed.randomness import RandomSource, SeededSource
from gaussian_rounds import exact_epsilon, spend

# The budget warns in the caller's name, so under pytest's rules the tests here decide what becomes of it.
pytestmark = pytest.mark.filterwarnings("ignore::dpfed.manager.budget.PrivacyBudgetWarning")


class SilentSource(RandomSource):
    """Noise of zero: what is left of a release is the value that the noise was to hide. Counts its draws."""

    is_private = False

    def __init__(self) -> None:
        super().__init__()
        self.draws = 0

    def _key(self) -> bytes:
        return bytes(32)

    def _child(self, name: str) -> RandomSource:
        return self

    def normal(self, shape=()):
        self.draws += 1
        return np.zeros(shape)


class TestGradientClipping:
    def test_a_long_array_gets_the_clip_norm_and_keeps_its_direction(self):
        clipped = PrivacyManager(clip_norm=2.0).clip_gradients(np.array([10.0, 20.0, 30.0]))
        assert np.linalg.norm(clipped) == pytest.approx(2.0)
        assert clipped / clipped[0] == pytest.approx([1.0, 2.0, 3.0])

    def test_a_dict_is_clipped_as_one_vector_and_keeps_its_shapes(self):
        gradients = {"w": np.full((2, 3), 4.0, dtype=np.float32), "b": np.full(3, 4.0)}
        clipped = PrivacyManager(clip_norm=1.0).clip_gradients(gradients)
        assert {name: (part.shape, part.dtype) for name, part in clipped.items()} == {
            "w": ((2, 3), np.dtype(np.float32)),
            "b": ((3,), np.dtype(np.float64)),
        }
        total = math.sqrt(sum(float(np.sum(part.astype(float) ** 2)) for part in clipped.values()))
        assert total == pytest.approx(1.0, rel=1e-6)
        assert total <= 1.0

    def test_a_short_gradient_is_not_scaled_up(self):
        gradients = np.array([1e-3, -2e-3])
        assert np.array_equal(PrivacyManager(clip_norm=1.0).clip_gradients(gradients), gradients)

    def test_zeros_stay_zeros(self):
        assert np.array_equal(PrivacyManager().clip_gradients(np.zeros(4)), np.zeros(4))

    def test_examples_are_clipped_one_by_one(self):
        manager = PrivacyManager(clip_norm=1.0, per_example=True)
        clipped = manager.clip_gradients(np.array([[3.0, 4.0], [0.3, 0.4]]))
        assert clipped == pytest.approx(np.array([[0.6, 0.8], [0.3, 0.4]]))


class TestGaussianNoise:
    @pytest.mark.parametrize("clip_norm", [0.1, 1.0, 5.0])
    def test_the_noise_scale_is_multiplier_times_clip_norm(self, clip_norm):
        manager = PrivacyManager(clip_norm=clip_norm)
        assert manager.get_noise_scale() == pytest.approx(manager.event.noise_multiplier * clip_norm)

    def test_the_noise_is_normal_with_the_promised_scale(self):
        """False alarm: 1e-6 for each of the two tests, and none in repetition, for the source is seeded."""
        manager = PrivacyManager(epsilon=3.0, clip_norm=0.5, num_rounds=1, source=SeededSource(5))
        noise = manager.add_gaussian_noise(np.zeros(100_000))
        scale = manager.get_noise_scale()
        low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], noise.size)
        assert low < np.sum((noise / scale) ** 2) < high
        assert stats.kstest(noise / scale, "norm").pvalue > 1e-6

    def test_the_noise_is_fresh_every_time(self):
        manager = PrivacyManager(num_rounds=2)
        first, second = (manager.add_gaussian_noise(np.zeros(5)) for _ in range(2))
        assert not np.any(first == second)
        assert len(set(first)) == 5

    def test_a_dict_gets_noise_everywhere_and_keeps_its_structure(self):
        gradients = {"w": np.zeros((2, 3), dtype=np.float32), "b": [np.zeros(2), 0.0]}
        noisy = PrivacyManager().add_gaussian_noise(gradients)
        assert noisy["w"].shape == (2, 3)
        assert noisy["w"].dtype == np.float32
        assert isinstance(noisy["b"][1], float)
        assert np.all(noisy["w"] != 0)
        assert np.all(noisy["b"][0] != 0)
        assert noisy["b"][1] != 0

    def test_a_gradient_that_was_not_clipped_is_refused_and_nothing_is_spent(self):
        manager = PrivacyManager(clip_norm=1.0, source=SilentSource())
        with pytest.raises(InvalidArgument, match="call clip_gradients first"):
            manager.add_gaussian_noise(np.array([10.0, 0.0]))
        assert (manager.privacy_budget.rounds_used, manager._source.draws) == (0, 0)

    def test_an_example_that_was_not_clipped_is_refused(self):
        manager = PrivacyManager(clip_norm=1.0, per_example=True)
        with pytest.raises(InvalidArgument, match="longer"):
            manager.add_gaussian_noise(np.array([[0.1, 0.0], [1.1, 0.0]]))

    def test_a_clip_of_ones_own_in_single_precision_passes_and_is_cut_to_the_norm(self):
        manager = PrivacyManager(clip_norm=1.0, source=SilentSource())
        released = manager.add_gaussian_noise(np.array([1.0 + 1e-7, 0.0]))
        assert released[0] <= 1.0

    def test_adding_noise_alone_charges_a_round_too(self):
        manager = PrivacyManager(num_rounds=2)
        manager.add_gaussian_noise(manager.clip_gradients(np.ones(3)))
        assert manager.privacy_budget.rounds_used == 1


class TestPrivacyApplication:
    def test_apply_is_clip_then_noise(self):
        gradients = {"w": np.array([30.0, 40.0]), "b": np.array([0.0])}
        both = PrivacyManager(source=SeededSource(3)).apply_privacy(gradients)
        manager = PrivacyManager(source=SeededSource(3))
        steps = manager.add_gaussian_noise(manager.clip_gradients(gradients))
        assert np.array_equal(both["w"], steps["w"])
        assert np.array_equal(both["b"], steps["b"])

    def test_apply_charges_exactly_one_round(self):
        manager = PrivacyManager(num_rounds=5)
        manager.apply_privacy(np.ones(3))
        assert manager.privacy_budget.rounds_used == 1

    def test_the_round_after_the_last_is_refused_before_any_noise_is_drawn(self):
        source = SilentSource()
        manager = PrivacyManager(num_rounds=3, source=source)
        for _ in range(3):
            manager.apply_privacy(np.ones(2))
        for release in (manager.apply_privacy, manager.add_gaussian_noise):
            with pytest.raises(BudgetExceeded):
                release(np.zeros(2))
        assert source.draws == 3
        assert manager.privacy_budget.epsilon_remaining() == 0.0

    def test_the_charge_stands_when_drawing_noise_fails(self):
        class BrokenSource(SilentSource):
            def normal(self, shape=()):
                raise OSError("no entropy")

        manager = PrivacyManager(source=BrokenSource())
        with pytest.raises(OSError, match="no entropy"):
            manager.apply_privacy(np.ones(2))
        assert manager.privacy_budget.rounds_used == 1

    def test_the_input_is_left_alone(self):
        gradients = np.array([3.0, 4.0])
        PrivacyManager().apply_privacy(gradients)
        assert np.array_equal(gradients, [3.0, 4.0])


class TestPrivacyStatus:
    def test_the_status_holds_the_promise_and_what_is_spent(self):
        manager = PrivacyManager(epsilon=2.0, delta=1e-6, clip_norm=0.5, num_rounds=4)
        manager.apply_privacy(np.ones(3))
        status = manager.get_privacy_status()
        assert {key: status[key] for key in ("epsilon_total", "delta", "clip_norm", "num_rounds")} == {
            "epsilon_total": 2.0,
            "delta": 1e-6,
            "clip_norm": 0.5,
            "num_rounds": 4,
        }
        assert status["rounds_used"] == 1
        assert status["noise_scale"] == manager.get_noise_scale()
        assert (status["unit"], status["adjacency"], status["is_private"]) == ("client", "add_remove", True)
        assert status["epsilon_spent"] == compute_epsilon_from_delta(1e-6, manager.event.noise_multiplier)

    def test_the_status_warns_at_50_80_and_95_percent_of_the_budget(self):
        manager, said = PrivacyManager(epsilon=2.0, num_rounds=20), []
        for _ in range(20):
            said.append(manager.get_privacy_status()["warning"])
            manager.apply_privacy(np.ones(1))
        said.append(manager.get_privacy_status()["warning"])
        passed = {used: text.partition(" of")[0] for used, text in enumerate(said)}
        assert passed == dict.fromkeys(range(10), "") | {
            used: f"{50 if used < 16 else 80 if used < 19 else 95} %" for used in range(10, 21)
        }
        assert said[19] == "95 % of the budget is passed: 19 of 20 rounds of ε = 2 are spent, 1 are left"

    def test_the_status_is_the_same_whatever_the_data(self):
        managers = [PrivacyManager(), PrivacyManager()]
        managers[0].apply_privacy(np.full(3, 1e6))
        managers[1].apply_privacy(np.zeros(3))
        assert managers[0].get_privacy_status() == managers[1].get_privacy_status()

    def test_a_seeded_source_is_stamped_not_private(self):
        manager = PrivacyManager(source=SeededSource(1))
        assert manager.get_privacy_status()["is_private"] is False
        assert "NOT PRIVATE" in repr(manager)
        assert "NOT PRIVATE" not in repr(PrivacyManager())

    def test_the_promise_is_shown_in_a_notebook(self):
        shown = PrivacyManager(epsilon=1.0)._repr_html_()
        assert "attacker catches at most" in shown
        assert "<th>rounds_used</th><td>0</td>" in shown

    def test_the_guarantee_carries_unit_and_adjacency(self):
        manager = PrivacyManager(epsilon=1.0, delta=1e-5, per_example=True)
        assert manager.guarantee == Guarantee(1.0, 1e-5, "record", "add_remove")


class TestDPSGDTrainer:
    def test_the_trainer_releases_what_its_manager_releases(self):
        trainer = DPSGDTrainer(PrivacyManager(source=SeededSource(9)))
        alone = PrivacyManager(source=SeededSource(9)).apply_privacy(np.ones(3))
        assert np.array_equal(trainer.clip_and_noise_gradients(np.ones(3)), alone)

    def test_the_stats_count_steps_and_hold_the_budget(self):
        trainer = DPSGDTrainer(PrivacyManager(num_rounds=5))
        for _ in range(3):
            trainer.clip_and_noise_gradients({"w": np.ones(2)})
        stats = trainer.get_stats()
        assert (stats["gradients_clipped"], stats["noise_added"], stats["training_steps"]) == (3, 3, 3)
        assert stats["privacy_budget"] == trainer.privacy_manager.privacy_budget.get_status()
        assert stats["privacy_budget"]["rounds_used"] == 3

    def test_a_refused_step_is_not_counted(self):
        trainer = DPSGDTrainer(PrivacyManager(num_rounds=1))
        trainer.clip_and_noise_gradients(np.ones(2))
        with pytest.raises(BudgetExceeded):
            trainer.clip_and_noise_gradients(np.ones(2))
        assert trainer.get_stats()["training_steps"] == 1

    def test_the_stats_do_not_tell_whose_gradient_was_long(self):
        """How many gradients exceeded the clip norm depends on the data, and no noise covers it."""
        stats = []
        for size in (1e-3, 1e3):
            trainer = DPSGDTrainer(PrivacyManager())
            trainer.clip_and_noise_gradients(np.full(3, size))
            stats.append(trainer.get_stats())
        assert stats[0] == stats[1]

    def test_only_a_manager_will_do(self):
        with pytest.raises(InvalidArgument, match="must be a PrivacyManager"):
            DPSGDTrainer(1.0)


class TestCompositionTheorems:
    def test_basic_adds_up(self):
        assert basic_composition_epsilon(0.5, 10) == 5.0

    def test_advanced_is_below_basic_for_many_small_steps(self):
        assert advanced_composition_epsilon(0.1, 100, 1e-5) == pytest.approx(5.2981, abs=5e-5)

    def test_advanced_never_exceeds_basic(self):
        for epsilon in (0.01, 0.1, 1.0, 3.0):
            for count in (1, 2, 10, 1000):
                advanced = advanced_composition_epsilon(epsilon, count, 1e-6)
                assert advanced <= basic_composition_epsilon(epsilon, count)

    def test_epsilon_over_root_t_a_round_breaks_the_budget(self):
        """Ten releases of ε/√10 each may cost 3.16, and at the same δ each they have no ε at all."""
        each = 1.0 / math.sqrt(10)
        assert optimal_composition_epsilon(each, 0.0, 10, 1e-5) == pytest.approx(3.16, abs=0.005)
        assert optimal_composition_epsilon(each, 1e-5, 10, 1e-5) == math.inf

    def test_the_noise_of_the_seed_breaks_its_own_second_example(self):
        """ε = 10 over 50 rounds with σ = √(2 ln(1.25/δ))·C/(ε/√T) costs more than 10; ours exactly 10."""
        seed = math.sqrt(2 * math.log(1.25 / 1e-5)) / (10.0 / math.sqrt(50))
        manager = PrivacyManager(epsilon=10.0, delta=1e-5, clip_norm=1.0, num_rounds=50)
        assert exact_epsilon(seed, 50, 1e-5) > 10.0
        assert manager.get_noise_scale() > seed
        assert exact_epsilon(manager.event.noise_multiplier, 50, 1e-5) == pytest.approx(10.0, rel=1e-9)

    def test_the_remaining_budget_of_the_seed_goes_negative_and_ours_does_not(self):
        budget, per_round = PrivacyBudget(epsilon=1.0, num_rounds=10), 1.0 / math.sqrt(10)
        spend(budget, 10)
        assert 1.0 - 10 * per_round < 0
        assert budget.epsilon_remaining() == 0.0


class TestIntegrationWithModel:
    def descend(self, manager: PrivacyManager, rounds: int) -> np.ndarray:
        target, weights = np.array([1.0, -2.0, 0.5]), np.zeros(3)
        for _ in range(rounds):
            weights = weights - 0.2 * manager.apply_privacy(weights - target)
        return np.abs(weights - target)

    def test_a_model_learns_with_a_generous_budget(self):
        manager = PrivacyManager(epsilon=1e5, clip_norm=1.0, num_rounds=50, source=SeededSource(2))
        assert np.max(self.descend(manager, 50)) < 0.2

    def test_a_small_budget_drowns_the_same_model_in_noise(self):
        manager = PrivacyManager(epsilon=0.1, clip_norm=1.0, num_rounds=50, source=SeededSource(2))
        assert np.max(self.descend(manager, 50)) > 5

    def test_a_model_of_layers_is_updated_layer_by_layer(self):
        weights = {"layer1": np.zeros((4, 3)), "layer2": np.zeros(3)}
        trainer = DPSGDTrainer(PrivacyManager(epsilon=1.0))
        noisy = trainer.clip_and_noise_gradients({name: part + 1 for name, part in weights.items()})
        updated = {name: part - 0.1 * noisy[name] for name, part in weights.items()}
        assert {name: part.shape for name, part in updated.items()} == {"layer1": (4, 3), "layer2": (3,)}
        assert all(np.all(part != 0) for part in updated.values())


class TestPrivacyEdgeCases:
    @pytest.mark.parametrize(
        "gradients",
        [
            np.array([1.0, math.nan]),
            np.array([math.inf]),
            np.array([]),
            [],
            {},
            {"w": np.array([1.0]), "b": np.array([math.nan])},
            np.array(["a"]),
            None,
            "gradient",
            np.array([1 + 2j]),
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("method", ["apply_privacy", "add_gaussian_noise"])
    def test_bad_gradients_are_refused_before_anything_is_spent(self, method, gradients):
        source = SilentSource()
        manager = PrivacyManager(source=source)
        with pytest.raises(InvalidArgument) as refused:
            getattr(manager, method)(gradients)
        assert refused.value.argument == "gradients"
        assert (manager.privacy_budget.rounds_used, source.draws) == (0, 0)

    @pytest.mark.parametrize(
        "gradients",
        [
            np.array(3.0),
            {"w": np.ones((4, 2)), "b": np.ones(3)},
            np.zeros((0, 0)),
            {"w": np.zeros((0, 2)), "b": np.ones((1, 2))},
            np.ones((2, 0)),
        ],
        ids=repr,
    )
    def test_bad_examples_are_refused_before_anything_is_spent(self, gradients):
        manager = PrivacyManager(per_example=True)
        with pytest.raises(InvalidArgument):
            manager.apply_privacy(gradients)
        assert manager.privacy_budget.rounds_used == 0

    def test_more_examples_than_can_be_added_exactly_are_refused(self):
        manager = PrivacyManager(per_example=True)
        with pytest.raises(InvalidArgument, match="at most 1048576 examples"):
            manager.apply_privacy(np.zeros(((1 << 20) + 1, 1), dtype=np.float32))
        assert manager.privacy_budget.rounds_used == 0

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [
            ({"epsilon": -1.0}, "epsilon"),
            ({"delta": 1.5}, "delta"),
            ({"clip_norm": 0.0}, "clip_norm"),
            ({"num_rounds": 0}, "num_rounds"),
            ({"num_rounds": 2.5}, "num_rounds"),
            ({"unit": "household"}, "unit"),
            ({"per_example": 1}, "per_example"),
            ({"source": np.random.default_rng(0)}, "source"),
            ({"expected_batch_size": 32}, "expected_batch_size"),
            ({"per_example": True, "expected_batch_size": 0}, "expected_batch_size"),
        ],
    )
    def test_bad_settings_are_refused_by_name(self, arguments, name):
        with pytest.raises(InvalidArgument) as refused:
            PrivacyManager(**arguments)
        assert refused.value.argument == name

    def test_what_decides_the_noise_cannot_be_changed_later(self):
        manager = PrivacyManager()
        for holder, name in [
            (manager, "params"),
            (manager, "privacy_budget"),
            (manager, "unit"),
            (manager.params, "clip_norm"),
            (manager.privacy_budget, "num_rounds"),
            (manager.privacy_budget, "rounds_used"),
        ]:
            with pytest.raises(AttributeError):
                setattr(holder, name, getattr(holder, name))

    def test_one_number_and_a_huge_one_are_gradients_too(self):
        manager = PrivacyManager(source=SilentSource())
        assert manager.apply_privacy(0.25) == pytest.approx(0.25)
        assert manager.apply_privacy(np.array([1e300, 1e300])) == pytest.approx([math.sqrt(0.5)] * 2)

    def test_an_empty_sample_is_released_as_noise_around_zero(self):
        """A Poisson sample may be empty; a refusal would tell it from a sample of one."""
        empty = {"w": np.zeros((0, 2, 3), dtype=np.float32), "b": np.zeros((0, 3))}
        noisy = PrivacyManager(per_example=True).apply_privacy(empty)
        assert {name: (part.shape, part.dtype.name) for name, part in noisy.items()} == {
            "w": ((2, 3), "float32"),
            "b": ((3,), "float64"),
        }
        assert np.all(noisy["b"] != 0)

    def test_a_very_strict_promise_is_kept(self):
        manager = PrivacyManager(epsilon=1e-6, delta=1e-15, num_rounds=1000)
        assert exact_epsilon(manager.event.noise_multiplier, 1000, 1e-15) <= 1e-6


class TestSensitivity:
    """What one unit can change in a release, seen with the noise silenced."""

    def released(self, gradients, **settings) -> np.ndarray:
        return PrivacyManager(clip_norm=0.75, source=SilentSource(), **settings).apply_privacy(gradients)

    def noise_covers(self, **settings) -> float:
        manager = PrivacyManager(clip_norm=0.75, **settings)
        return manager.get_noise_scale() / manager.event.noise_multiplier

    def test_a_client_absent_or_present_moves_it_by_the_clip_norm(self):
        rng = np.random.default_rng(0)
        moves = []
        for _ in range(300):
            contribution = rng.normal(size=3) * 10.0 ** rng.uniform(-2, 3)
            moves.append(np.linalg.norm(self.released(contribution) - self.released(np.zeros(3))))
        assert max(moves) == pytest.approx(0.75, rel=1e-9) == self.noise_covers()

    def test_a_record_added_or_removed_moves_a_sum_of_examples_by_the_clip_norm(self):
        rng = np.random.default_rng(1)
        moves = []
        for _ in range(300):
            examples = rng.normal(size=(rng.integers(1, 6), 3)) * 10.0 ** rng.uniform(-2, 3)
            full = self.released(examples, per_example=True)
            for index in range(len(examples)):
                fewer = np.delete(examples, index, axis=0)
                moves.append(np.linalg.norm(full - self.released(fewer, per_example=True)))
        assert max(moves) == pytest.approx(0.75, rel=1e-8) == self.noise_covers(per_example=True)

    def test_a_record_inside_a_batch_gradient_turns_it_around(self):
        rng = np.random.default_rng(2)
        moves = []
        for _ in range(300):
            batch = rng.normal(size=(4, 1)) * 10.0 ** rng.uniform(-1, 2, size=(4, 1))
            full = self.released(batch.mean(axis=0), unit="record")
            for index in range(len(batch)):
                fewer = np.delete(batch, index, axis=0).mean(axis=0)
                moves.append(np.linalg.norm(full - self.released(fewer, unit="record")))
        assert max(moves) == pytest.approx(1.5, rel=1e-9) == self.noise_covers(unit="record")

    def test_the_mean_by_a_public_size_divides_value_and_noise_alike(self):
        examples = np.array([[30.0, 40.0], [0.3, 0.4]])
        mean = self.released(examples, per_example=True, expected_batch_size=4)
        assert mean == pytest.approx(self.released(examples, per_example=True) / 4)
        assert self.noise_covers(per_example=True, expected_batch_size=4) == pytest.approx(0.75 / 4)

    def test_the_realised_number_of_examples_is_never_the_divisor(self):
        """Two examples and one alike: a mean by the true count would hide who took part; the sum does not."""
        one, two = np.array([[0.3, 0.4]]), np.array([[0.3, 0.4], [0.3, 0.4]])
        settings = {"per_example": True, "expected_batch_size": 2}
        assert self.released(two, **settings) == pytest.approx(2 * self.released(one, **settings))

    def test_the_sum_of_examples_does_not_depend_on_their_order(self):
        """Float addition rounds by order, and a rounding can exceed what one record is allowed to change."""
        rng = np.random.default_rng(3)
        examples = rng.normal(size=(2000, 4)) * 10.0 ** rng.uniform(-9, 1, size=(2000, 1))
        shuffled = examples[rng.permutation(2000)]
        # So little noise that its grid is finer than the rounding that is looked for.
        settings = {"per_example": True, "epsilon": 1e8}
        assert np.array_equal(self.released(examples, **settings), self.released(shuffled, **settings))

    def test_cutting_to_the_grid_of_the_sum_lengthens_no_example(self):
        """Rounded to the nearest grid point, half of these would be longer than the clip norm."""
        rng = np.random.default_rng(4)
        for example in rng.normal(size=(50, 3)):
            # So little noise that its own grid is finer than that of the sum.
            released = self.released(10 * example[None], per_example=True, epsilon=1e8)
            assert sum(Fraction(value) ** 2 for value in released.tolist()) <= Fraction(0.75) ** 2

    @pytest.mark.parametrize(
        ("settings", "unit", "factor"),
        [
            ({}, "client", 1),
            ({"per_example": True}, "record", 1),
            ({"unit": "record"}, "record", 2),
            ({"unit": "person"}, "person", 2),
            ({"per_example": True, "unit": "client"}, "client", 1),
        ],
    )
    def test_the_unit_decides_the_sensitivity_and_not_the_event(self, settings, unit, factor):
        manager = PrivacyManager(epsilon=1.0, clip_norm=3.0, **settings)
        assert (manager.unit, manager.sensitivity) == (unit, 3.0 * factor)
        assert manager.event == PrivacyManager(epsilon=1.0).event
        assert manager._mechanism.event == manager.event
        assert manager.plan == ev.Repeated(manager.event, 10)


class TestEndToEndPrivacy:
    def test_an_attacker_who_sees_all_rounds_gains_no_more_than_promised(self):
        """P[caught] ≤ e^ε P[false alarm] + δ for the best statistic, the mean over rounds, at 11 thresholds.

        200,000 runs and a margin of 5.5 standard errors: a sound release fails with probability below 1e-6,
        noise that is too small by a third fails for certain.
        """
        runs, rounds, epsilon, delta = 200_000, 4, 1.0, 1e-2
        contribution = PrivacyManager(source=SilentSource()).apply_privacy(np.array([100.0]))[0]
        scores = {}
        for name, seed, shift in (("present", 8, contribution), ("absent", 9, 0.0)):
            manager = PrivacyManager(epsilon, delta, num_rounds=rounds, source=SeededSource(seed))
            # Noise is independent from coordinate to coordinate, so each coordinate is one run.
            noise = [manager.add_gaussian_noise(np.zeros(runs)) for _ in range(rounds)]
            scores[name] = np.mean(noise, axis=0) + shift
            assert manager.privacy_budget.is_exhausted
        margin = 5.5 * math.sqrt((1 + math.exp(2 * epsilon)) / (4 * runs))
        for threshold in np.linspace(-5, 10, 11):
            caught, alarms = (np.mean(scores[name] > threshold) for name in ("present", "absent"))
            assert caught <= math.exp(epsilon) * alarms + delta + margin

    def test_the_pipeline_from_configuration_to_refusal(self, tmp_path):
        path = tmp_path / "fl_config.yaml"
        path.write_text("privacy: {epsilon: 2.0, delta: 1e-6, clip_norm: 0.5, num_rounds: 5}\n")
        trainer = DPSGDTrainer(PrivacyManager.from_config(path))
        for _ in range(5):
            trainer.clip_and_noise_gradients({"w": np.ones((3, 2)), "b": np.ones(2)})
        with pytest.raises(BudgetExceeded):
            trainer.clip_and_noise_gradients({"w": np.ones((3, 2)), "b": np.ones(2)})
        budget = trainer.get_stats()["privacy_budget"]
        assert (budget["epsilon_remaining"], budget["epsilon_spent"], budget["delta"]) == (0.0, 2.0, 1e-6)
