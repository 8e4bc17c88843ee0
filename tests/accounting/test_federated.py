from __future__ import annotations

import json
import math

import pytest

from dpfed.accounting.accountant import get_privacy_spent
from dpfed.accounting.federated import FederatedAccountant, epsilon_by_round
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee

TEN_ROUNDS = [7.05, 9.97, 12.40, 14.56, 16.56, 18.44, 20.23, 21.94, 23.60, 25.20]
SAMPLE = {"noise_multiplier_sample": 1.0, "sample_rate_sample": 0.1, "steps_sample": 100}
USER = {"noise_multiplier_user": 2.0, "sample_rate_user": 0.5, "steps_user": 1}


def after_rounds(rounds: int, **arguments) -> FederatedAccountant:
    accountant = FederatedAccountant(target_delta=1e-5)
    for round_num in range(1, rounds + 1):
        accountant.record_round(round_num=round_num, **arguments)
    return accountant


class TestRounds:
    def test_the_ten_rounds_of_the_seed_cost_what_they_cost(self):
        table = epsilon_by_round(1.0, 0.1, steps_per_round=100, num_rounds=10, delta=1e-5)
        assert [round(epsilon, 2) for epsilon in table] == TEN_ROUNDS

    def test_the_formula_of_the_seed_is_not_what_is_reported(self):
        # RDP = αq²/(2σ²) is no bound for a sampled Gaussian: after a round it gives less than the truth.
        naive = min(100 * a * 0.1**2 / 2 + math.log(1e5) / (a - 1) for a in range(2, 65))
        exact = after_rounds(1, **SAMPLE).get_cumulative_sample_epsilon()
        assert naive < 5.4
        assert exact > 7.04
        # Nor are they the figures of the seed's table.
        assert exact > 8 * 0.85

    def test_the_recorded_table_is_the_planned_one(self):
        accountant = after_rounds(10, **SAMPLE)
        assert [round(epsilon, 2) for epsilon in accountant.epsilon_by_round().values()] == TEN_ROUNDS
        assert list(accountant.epsilon_by_round()) == list(range(1, 11))
        assert round(accountant.get_cumulative_sample_epsilon(), 2) == 25.20

    def test_the_loop_of_the_seed_watches_the_cumulative_epsilon(self):
        accountant, target_eps, ran = FederatedAccountant(target_delta=1e-5), 16.0, 0
        for r in range(1, 11):
            accountant.record_round(round_num=r, **SAMPLE)
            ran = r
            cumulative_eps = accountant.get_cumulative_sample_epsilon()
            if cumulative_eps > target_eps:
                break
        assert ran == 5

    def test_nothing_recorded_costs_nothing(self):
        accountant = FederatedAccountant()
        assert accountant.get_cumulative_sample_epsilon() == 0.0
        assert accountant.get_cumulative_user_epsilon() == 0.0
        assert accountant.epsilon_by_round() == {}
        assert accountant.guarantees() == ()

    def test_rounds_may_be_recorded_in_any_order_and_with_gaps(self):
        orderly, late = FederatedAccountant(), FederatedAccountant()
        for r in (1, 4, 9):
            orderly.record_round(r, **SAMPLE)
        for r in (9, 1, 4):
            late.record_round(r, **SAMPLE)
        assert late.get_cumulative_sample_epsilon() == orderly.get_cumulative_sample_epsilon()
        assert late.epsilon_by_round() == orderly.epsilon_by_round()


class TestClients:
    def test_a_small_site_is_reported_and_not_the_average(self):
        """Twenty sites, batches of five, 100 steps in ten rounds: the one of fifty records costs 25.2."""
        sizes = {"small": 50, **{f"site-{i}": 137 for i in range(19)}}
        accountant = FederatedAccountant(target_delta=1e-5)
        for r in range(1, 11):
            for site, size in sizes.items():
                accountant.record_round(r, 1.0, 5 / size, 100, client=site)
        average_rate = sum(5 / size for size in sizes.values()) / len(sizes)
        average = get_privacy_spent(1000, 1.0, average_rate, 1e-5)
        assert average == pytest.approx(8.4, abs=0.05)
        assert accountant.get_cumulative_sample_epsilon() == pytest.approx(25.2, abs=0.01)
        assert accountant.worst_client() == "small"
        assert accountant.get_client_epsilon("site-3") < average

    def test_a_client_pays_only_for_the_rounds_it_took_part_in(self):
        accountant = FederatedAccountant()
        for r in range(1, 5):
            accountant.record_round(r, **SAMPLE, client="always")
        accountant.record_round(2, **SAMPLE, client="once")
        accountant.record_round(3, 1.0, 0.1, 37, client="half")
        assert accountant.get_client_epsilon("always") == pytest.approx(14.56, abs=0.005)
        assert accountant.get_client_epsilon("once") == pytest.approx(7.05, abs=0.005)
        assert accountant.get_client_epsilon("half") == pytest.approx(get_privacy_spent(37, 1.0, 0.1, 1e-5), rel=1e-9)
        assert accountant.clients() == ("always", "once", "half")
        assert accountant.worst_client() == "always"

    @pytest.mark.parametrize("everyone_first", [True, False])
    def test_a_round_of_every_client_composes_with_a_named_ones(self, everyone_first):
        accountant = FederatedAccountant()
        calls = [{"round_num": 1}, {"round_num": 2, "client": "a"}]
        for call in calls if everyone_first else reversed(calls):
            accountant.record_round(**call, **SAMPLE)
        assert accountant.get_client_epsilon("a") == pytest.approx(9.97, abs=0.005)
        assert accountant.get_client_epsilon("never-named") == pytest.approx(7.05, abs=0.005)
        assert accountant.get_cumulative_sample_epsilon() == accountant.get_client_epsilon("a")

    def test_a_named_round_and_one_of_every_client_may_share_a_number_and_both_count(self):
        accountant = FederatedAccountant()
        accountant.record_round(1, **SAMPLE)
        accountant.record_round(1, **SAMPLE, client="a")
        assert accountant.get_client_epsilon("a") == pytest.approx(9.97, abs=0.005)
        assert accountant.epsilon_by_round() == {1: accountant.get_client_epsilon("a")}

    def test_a_client_known_by_number_is_the_one_known_by_its_digits(self):
        accountant = FederatedAccountant()
        accountant.record_round(1, **SAMPLE, client=7)
        accountant.record_round(2, **SAMPLE, client="7")
        assert accountant.clients() == ("7",)
        assert accountant.get_client_epsilon(7) == pytest.approx(9.97, abs=0.005)

    def test_other_clients_do_not_move_ones_epsilon(self):
        alone, among = FederatedAccountant(), FederatedAccountant()
        alone.record_round(1, **SAMPLE, client="a")
        for client in ("b", "a", "c"):
            among.record_round(1, **SAMPLE, client=client)
        assert among.get_client_epsilon("a") == alone.get_client_epsilon("a")


class TestLevels:
    def test_the_two_levels_are_two_statements(self):
        accountant = after_rounds(3, **SAMPLE, **USER)
        record, client = accountant.guarantees()
        assert record == Guarantee(accountant.get_cumulative_sample_epsilon(), 1e-5, "record")
        assert client == Guarantee(accountant.get_cumulative_user_epsilon(), 1e-5, "client")
        assert client.epsilon == pytest.approx(get_privacy_spent(3, 2.0, 0.5, 1e-5), rel=1e-9)

    def test_the_conservative_total_adds_both_epsilon_and_delta(self):
        accountant = FederatedAccountant(target_delta=1e-5, target_delta_user=1e-4)
        accountant.record_round(1, **SAMPLE, **USER)
        total = accountant.conservative_total()
        sample, user = accountant.get_cumulative_sample_epsilon(), accountant.get_cumulative_user_epsilon()
        assert total.epsilon == pytest.approx(sample + user, rel=1e-12)
        assert total.delta == pytest.approx(1.1e-4, rel=1e-12)
        assert total.statements == accountant.guarantees()
        assert "conservative" in str(total)

    def test_each_level_has_its_own_delta(self):
        accountant = FederatedAccountant(target_delta=1e-4, target_delta_user=1e-7)
        accountant.record_round(1, **SAMPLE, **USER)
        assert accountant.get_cumulative_user_epsilon() == pytest.approx(get_privacy_spent(1, 2.0, 0.5, 1e-7), rel=1e-9)
        assert accountant.get_cumulative_sample_epsilon() == pytest.approx(
            get_privacy_spent(100, 1.0, 0.1, 1e-4), rel=1e-9
        )

    def test_a_total_of_one_level_is_that_level(self):
        total = after_rounds(1, **SAMPLE).conservative_total()
        assert (total.epsilon, total.delta) == (total.statements[0].epsilon, 1e-5)

    def test_levels_may_be_recorded_by_separate_calls_of_one_round(self):
        together, apart = after_rounds(1, **SAMPLE, **USER), after_rounds(1, **SAMPLE)
        apart.record_round(1, **USER)
        assert apart.guarantees() == together.guarantees()

    def test_the_server_makes_one_release_to_all_unless_it_is_told_otherwise(self):
        accountant = FederatedAccountant()
        accountant.record_round(1, noise_multiplier_user=2.0)
        assert accountant.get_cumulative_user_epsilon() == pytest.approx(get_privacy_spent(1, 2.0, 1.0, 1e-5), rel=1e-9)
        assert accountant.get_cumulative_sample_epsilon() == 0.0

    def test_replace_one_costs_more(self):
        accountant = FederatedAccountant(adjacency="replace_one")
        accountant.record_round(1, noise_multiplier_user=2.0, steps_user=10)
        assert accountant.get_cumulative_user_epsilon() == pytest.approx(17.8565868, rel=1e-6)


class TestCheckpoint:
    def test_a_checkpoint_goes_through_json_to_the_last_bit(self):
        accountant = after_rounds(4, **SAMPLE, **USER)
        accountant.record_round(5, 0.9, 0.12, 40, client="a")
        accountant.record_round(6, 1.1, 0.03, 400, client="b")
        state = json.loads(json.dumps(accountant.state_dict(), allow_nan=False))
        restored = FederatedAccountant.from_state_dict(state)
        assert restored.state_dict() == accountant.state_dict()
        assert restored.get_client_epsilon("a") == accountant.get_client_epsilon("a")
        restored.record_round(7, **SAMPLE)
        accountant.record_round(7, **SAMPLE)
        assert restored.get_cumulative_sample_epsilon() == accountant.get_cumulative_sample_epsilon()

    def test_the_block_has_the_fields_of_the_seed(self):
        state = after_rounds(2, **SAMPLE).state_dict()
        assert state["target_delta"] == 1e-5
        assert len(state["sample_history"]) == 2
        assert state["user_history"] == []
        assert state["cumulative_sample_epsilon"] == pytest.approx(9.97, abs=0.005)
        assert state["cumulative_user_epsilon"] == 0.0

    def test_a_block_as_the_seed_wrote_it_is_read_and_its_wrong_epsilon_is_not_believed(self):
        block = {
            "target_delta": 1e-5,
            "sample_history": [(1.0, 0.1, 100), (1.0, 0.1, 100)],
            "user_history": [(0.5, 0.8, 1)],
            "cumulative_sample_epsilon": 1.20,
            "cumulative_user_epsilon": 0.3,
        }
        accountant = FederatedAccountant.from_state_dict(block)
        assert accountant.get_cumulative_sample_epsilon() == pytest.approx(9.97, abs=0.005)
        assert accountant.get_cumulative_user_epsilon() > 5
        with pytest.raises(InvalidArgument, match="already recorded"):
            accountant.record_round(2, **SAMPLE)

    @pytest.mark.parametrize(
        "state",
        [
            None,
            {},
            {"version": 2, "target_delta": 1e-5, "sample_history": [], "user_history": []},
            {"target_delta": 1e-5, "user_history": [], "sample_history": [{"round": 1}]},
            {"target_delta": 1e-5, "user_history": [], "sample_history": [(1.0, 0.1)]},
            {"target_delta": 1e-5, "user_history": [], "sample_history": [(-1.0, 0.1, 100)]},
        ],
    )
    def test_what_is_no_checkpoint_is_refused(self, state):
        with pytest.raises(InvalidArgument):
            FederatedAccountant.from_state_dict(state)

    @pytest.mark.parametrize("lost", ["target_delta", "sample_history", "user_history"])
    def test_a_checkpoint_that_lost_a_part_is_refused_and_not_taken_for_unspent(self, lost):
        state = FederatedAccountant().state_dict()
        del state[lost]
        with pytest.raises(InvalidArgument, match=lost):
            FederatedAccountant.from_state_dict(state)


class TestRefusals:
    def test_a_round_is_recorded_once_per_client_and_level(self):
        accountant = after_rounds(1, **SAMPLE, client="a")
        accountant.record_round(1, **SAMPLE, client="b")
        with pytest.raises(InvalidArgument, match="round 1 of a is already recorded at sample level"):
            accountant.record_round(1, **SAMPLE, client="a")
        assert accountant.get_client_epsilon("a") == pytest.approx(7.05, abs=0.005)

    def test_a_refused_round_records_nothing_at_either_level(self):
        accountant = after_rounds(1, **USER)
        for bad in ({**SAMPLE, **USER}, {**SAMPLE, "noise_multiplier_user": -1.0}):
            with pytest.raises(InvalidArgument):
                accountant.record_round(1, **bad)
        assert accountant.get_cumulative_sample_epsilon() == 0.0

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [
            ({"round_num": 0, **SAMPLE}, "round_num"),
            ({"round_num": 1.5, **SAMPLE}, "round_num"),
            ({"round_num": True, **SAMPLE}, "round_num"),
            ({"round_num": 1}, "noise_multiplier_sample"),
            ({"round_num": 1, "steps_sample": 100}, "noise_multiplier_sample"),
            ({"round_num": 1, "sample_rate_user": 0.5}, "noise_multiplier_user"),
            ({"round_num": 1, "noise_multiplier_sample": 1.0}, "steps_sample"),
            ({"round_num": 1, **SAMPLE, "steps_sample": 0}, "steps_sample"),
            ({"round_num": 1, **SAMPLE, "steps_sample": 2.5}, "steps_sample"),
            ({"round_num": 1, **SAMPLE, "sample_rate_sample": 1.5}, "sample_rate_sample"),
            ({"round_num": 1, **SAMPLE, "noise_multiplier_sample": math.nan}, "noise_multiplier_sample"),
            ({"round_num": 1, **USER, "noise_multiplier_user": 0.0}, "noise_multiplier_user"),
            ({"round_num": 1, **SAMPLE, "client": ""}, "client"),
            ({"round_num": 1, **SAMPLE, "client": 1.5}, "client"),
        ],
    )
    def test_a_bad_argument_is_named(self, arguments, name):
        with pytest.raises(InvalidArgument) as refusal:
            FederatedAccountant().record_round(**arguments)
        assert refusal.value.argument == name

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
    def test_a_bad_delta_is_refused(self, delta):
        with pytest.raises(InvalidArgument, match="target_delta"):
            FederatedAccountant(target_delta=delta)

    def test_an_unknown_level_is_refused(self):
        with pytest.raises(InvalidArgument, match="level"):
            FederatedAccountant().get_client_epsilon("a", level="record")


def test_it_shows_one_statement_per_level():
    accountant = after_rounds(1, **SAMPLE, **USER)
    assert "per record" in repr(accountant)
    assert "per client" in repr(accountant)
    assert accountant._repr_html_().count("<p>") == 2
    assert "nothing recorded" in repr(FederatedAccountant())
