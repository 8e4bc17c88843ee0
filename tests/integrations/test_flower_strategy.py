"""Flower's loop with dpfed's aggregation: public weights, malformed clients, robust rules, noise that is paid for."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from dpfed.aggregation.rules import CenteredClipping, CoordinateMedian, Krum
from dpfed.errors import AccountUnavailable, BudgetExceeded, InvalidArgument, NotReserved
from dpfed.integrations.flower_strategy import PrivateStrategy
from dpfed.ledger.ledger import Ledger
from dpfed.randomness import SeededSource
from flower_apps import SENT, MemoryGrid, count_charges, flower_task, record_of
from studies import SilentSource

CLIP, CLIENTS = 0.5, 4


@pytest.fixture(autouse=True)
def task():
    with flower_task():
        yield


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(url):
    with Ledger(url) as found:
        found.open("study", epsilon=8.0, delta=1e-5, unit="client")
        yield found


def user(ledger, rounds=3, **settings):
    settings = {"epsilon": 8.0, "account": "study", "min_available_nodes": 1} | settings
    return PrivateStrategy.user("study", clients=CLIENTS, rounds=rounds, clip_norm=CLIP, ledger=ledger, **settings)


def client_of(arrays, seen=lambda message: None, weight=1, keys=("arrays",)):
    def train(message, context):
        seen(message)
        records = {key: record_of(arrays) for key in keys}
        return Message(
            RecordDict({**records, "m": MetricRecord({"num-examples": weight, "loss": 9.0})}), reply_to=message
        )

    return train


def fails(message, context):
    raise RuntimeError("secret")


def moved(by):
    return {name: (array + by).astype(array.dtype) for name, array in SENT.items()}


def run(strategy, *clients, rounds=1, start=SENT):
    found = strategy.start(MemoryGrid(dict(enumerate(clients, 1))), record_of(start), num_rounds=rounds)
    assert found.train_metrics_clientapp == found.evaluate_metrics_clientapp == {}
    return np.concatenate([found.arrays[name].numpy().astype(np.float64).ravel() for name in start])


START = np.concatenate([array.ravel() for array in SENT.values()])
NEAR = [client_of(moved(0.1))] * (CLIENTS - 1)

STRANGE = {
    "not there": None,
    "failed": fails,
    "no numbers": client_of(moved(np.nan)),
    "infinite": client_of(moved(np.inf)),
    "another shape": client_of({**SENT, "bias": np.zeros(2, np.float32)}),
    "another name": client_of({"weight": SENT["weight"], "other": SENT["bias"]}),
    "one array more": client_of({**SENT, "rows": np.zeros(2)}),
    "two records": client_of(SENT, keys=("arrays", "more")),
    "texts": client_of({name: np.full(array.shape, "x") for name, array in SENT.items()}),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_a_strange_client_contributes_zero_and_the_denominator_stays(ledger, strange):
    clients = [*NEAR, STRANGE[strange]] if STRANGE[strange] else NEAR
    update = np.full(4, 0.1)  # of norm 0.2, within the clip
    assert run(user(ledger, source=SilentSource()), *clients) == pytest.approx(START + 0.75 * update, abs=1e-6)
    plain = PrivateStrategy(clients=CLIENTS, min_available_nodes=1)
    assert run(plain, *clients) == pytest.approx(START + 0.75 * update, abs=1e-6)


def test_adding_a_client_moves_the_mean_by_at_most_the_clip_norm_over_the_clients(ledger):
    strategy = user(ledger, rounds=9, source=SilentSource())
    without = run(strategy, *NEAR)
    for far in (1e-3, 1.0, 1e5):
        distance = np.linalg.norm(run(strategy, *NEAR, client_of(moved(far))) - without)
        assert distance == pytest.approx(min(2 * far, CLIP) / CLIENTS, rel=1e-3)
    assert float(strategy.plan.server.sensitivity("add_remove")) == pytest.approx(CLIP / CLIENTS)


def test_what_clients_say_of_their_examples_changes_nothing(ledger):
    strategy = user(ledger, source=SilentSource())
    assert run(strategy, *NEAR, client_of(moved(0.1), weight=10_000)) == pytest.approx(START + 0.1)


def test_the_noise_is_that_of_the_event_that_is_charged(ledger):
    """20,000 numbers: their standard deviation is off by 2.5 % with a chance of about 6e-7."""
    start = {"weight": np.zeros(20_000)}
    strategy = user(ledger, source=SeededSource(3))
    found = run(strategy, client_of(start), start=start)
    ((event, times),) = strategy.plan.study_charges().items()
    assert times == 3
    assert np.std(found) == pytest.approx(event.noise_multiplier * CLIP / CLIENTS, rel=0.025)
    again = run(strategy, client_of(start), start=start)
    assert not np.isclose(found, again, atol=1e-9).any()


def test_a_round_that_nobody_answers_releases_noise_and_costs_as_much(ledger, url):
    found = run(user(ledger), fails, fails)
    assert not np.isclose(found, START, atol=1e-9).any()
    assert count_charges(url, "study") == 1


def test_every_round_is_on_disk_before_a_client_gets_its_model(ledger, url):
    charged = []
    clients = [*NEAR, client_of(moved(0.1), lambda message: charged.append(count_charges(url, "study")))]
    strategy = user(ledger)
    run(strategy, *clients, rounds=3)
    assert charged == [0, 1, 2]
    with pytest.raises(NotReserved, match="all 3 rounds"):
        run(strategy, *clients)
    assert charged == [0, 1, 2]
    assert strategy.promise.epsilon == 8.0


def test_a_refused_commit_lets_no_model_out_and_a_new_process_goes_on_with_the_run(ledger, url):
    run(user(ledger, rounds=2), *NEAR)
    freezing = client_of(moved(0.1), lambda message: ledger.freeze("study", reason="a question"))
    with pytest.raises(AccountUnavailable):
        run(user(ledger, rounds=2), *NEAR, freezing)
    ledger.unfreeze("study", reason="answered")
    again = user(ledger, rounds=2)
    run(again, *NEAR)
    assert count_charges(url, "study") == 2


def test_what_the_account_does_not_allow_is_refused(ledger):
    with pytest.raises(BudgetExceeded):
        user(ledger, epsilon=9.0)
    with pytest.raises(InvalidArgument, match="krum"):
        user(ledger, rule=Krum(max_faulty=1))
    ledger.open("rows", epsilon=8.0, delta=1e-5)
    with pytest.raises(InvalidArgument, match="unit is client"):
        user(ledger, account="rows")


def test_centred_clipping_has_the_same_sensitivity(ledger):
    strategy = user(ledger, rounds=9, source=SilentSource(), rule=CenteredClipping(max_faulty=1))
    distance = np.linalg.norm(run(strategy, *NEAR) - START - 0.75 * 0.1)
    assert distance == pytest.approx(0.0, abs=1e-6)


def test_a_median_holds_against_a_hostile_client_where_sites_noise_what_they_send():
    strategy = PrivateStrategy(clients=CLIENTS, rule=CoordinateMedian(max_faulty=1))
    assert run(strategy, *NEAR, client_of(moved(1e4))) == pytest.approx(START + 0.1, abs=1e-6)


def test_too_few_updates_for_a_rule_leave_the_model_as_it_is():
    strategy = PrivateStrategy(clients=CLIENTS, rule=CoordinateMedian(max_faulty=1))
    found = strategy.start(MemoryGrid(dict.fromkeys(range(1, 5), fails)), record_of(SENT), num_rounds=1)
    assert not found.arrays


def test_a_reply_of_a_node_that_was_not_asked_or_answers_twice_counts_not(ledger):
    strategy = user(ledger, source=SilentSource())
    grid = MemoryGrid(dict(enumerate(NEAR, 1)))
    messages = list(strategy.configure_train(1, record_of(SENT), ConfigRecord(), grid))
    replies = grid.send_and_receive(messages)
    stranger = grid.send_and_receive(messages)[0]
    stranger.metadata.__dict__["_src_node_id"] = 99
    arrays, _ = strategy.aggregate_train(1, [*replies, *replies, stranger])
    assert arrays["bias"].numpy() == pytest.approx(SENT["bias"] + 0.075, abs=1e-6)
    with pytest.raises(InvalidArgument, match="no open round"):
        strategy.aggregate_train(1, replies)


def test_counters_and_single_numbers_are_clipped_or_stay(ledger):
    start = {**SENT, "seen": np.array([3]), "scale": np.array(1.0, np.float32)}
    far = {**start, "seen": np.array([99]), "scale": np.array(1e6, np.float32)}
    found = run(user(ledger, source=SilentSource()), client_of(far), start=start)
    assert found == pytest.approx([*START, 3.0, 1.0 + CLIP / CLIENTS])
