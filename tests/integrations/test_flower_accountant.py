"""Flower's own strategies with an accountant on a ledger: what moves how far, what is charged, and when."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from dpfed.accounting.queries import epsilon
from dpfed.errors import AccountUnavailable, AdjacencyMismatch, InvalidArgument, LedgerRolledBack, NotReserved
from dpfed.events import Gaussian, Repeated
from dpfed.integrations.flower_accountant import LedgerAccountant
from dpfed.ledger.ledger import Ledger
from flower_apps import SENT, MemoryGrid, count_charges, flower_task, record_of

CLIP, NOISE, CLIENTS, ROUNDS = 0.5, 4.0, 3, 3
EVENT = GaussianPrivacyEvent(NOISE, CLIENTS, CLIENTS)
SERVER_SIDE, CLIENT_SIDE = DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping


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
        found.open("study", epsilon=8.0, delta=1e-5, unit="client", adjacency="replace_one")
        yield found


def accountant_of(ledger, **settings):
    settings = {"run": "study-12", "rounds": ROUNDS, "arrays": record_of(SENT)} | settings
    return LedgerAccountant(
        ledger, settings.pop("account", "study"), noise_multiplier=NOISE, population_size=CLIENTS, **settings
    )


def client_of(arrays, seen=lambda message: None, weight=1):
    def train(message, context):
        seen(message)
        content = RecordDict({"arrays": record_of(arrays), "metrics": MetricRecord({"num-examples": weight})})
        return Message(content, reply_to=message)

    return train


def strategy_of(kind=SERVER_SIDE, noise=NOISE, accountant=None):
    fedavg = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    return kind(fedavg, noise, CLIP, CLIENTS, accountant=accountant)


def run(strategy, *clients, rounds=1):
    return strategy.start(MemoryGrid(dict(enumerate(clients, 1))), record_of(SENT), num_rounds=rounds)


def moved(by, arrays=SENT):
    return {name: array + np.asarray(by, array.dtype) for name, array in arrays.items()}


# ---- what Flower's strategy does, at zero noise ----


def mean_with(client, start=SENT):
    strategy = strategy_of(noise=0.0)
    others = [client_of(moved(0.01, start))] * (CLIENTS - 1)
    grid = MemoryGrid(dict(enumerate([client_of(client), *others], 1)))
    found = strategy.start(grid, record_of(start), num_rounds=1).arrays
    return np.concatenate([array.numpy().astype(np.float64).ravel() for array in found.values()])


def test_replacing_a_client_moves_flowers_mean_by_two_clip_norms_over_the_clients():
    distance = np.linalg.norm(mean_with(moved(9.0)) - mean_with(moved(-9.0)))
    assert distance == pytest.approx(2 * CLIP / CLIENTS, rel=1e-5)


def test_flower_does_not_clip_what_is_not_a_number_which_is_said_to_be_not_covered():
    assert np.isnan(mean_with(moved(np.nan))).all()
    assert "NaN" in LedgerAccountant.__doc__.partition("Not covered:")[2]


def test_a_client_less_is_no_release_at_all_so_add_or_remove_is_not_what_is_protected(ledger):
    def fails(message, context):
        raise RuntimeError

    clients = [client_of(moved(0.1))] * (CLIENTS - 1)
    assert run(strategy_of(accountant=accountant_of(ledger)), *clients, fails).train_metrics_clientapp == {}


def test_flower_does_not_clip_a_single_number_and_so_it_is_refused(ledger):
    start = {"weight": SENT["weight"], "temperature": np.array(1.0, np.float32)}
    far = {"weight": SENT["weight"] + 1, "temperature": np.array(1000.0, np.float32)}
    near = {"weight": SENT["weight"] + 1, "temperature": np.array(1.0, np.float32)}
    assert np.linalg.norm(mean_with(far, start) - mean_with(near, start)) > 100 * CLIP
    with pytest.raises(InvalidArgument, match="which Flower does not clip"):
        accountant_of(ledger, arrays=record_of(start))


@pytest.mark.parametrize("dtype", [np.int64, np.float16, np.complex64, np.bool_])
def test_arrays_that_flower_does_not_noise_are_refused(ledger, dtype):
    with pytest.raises(InvalidArgument, match="no array"):
        accountant_of(ledger, arrays=record_of({}))
    with pytest.raises(InvalidArgument, match="does not noise"):
        accountant_of(ledger, arrays=record_of({**SENT, "seen": np.zeros(1, dtype)}))


# ---- what is charged ----


@pytest.mark.parametrize("kind", [SERVER_SIDE, CLIENT_SIDE])
def test_every_release_is_on_disk_before_a_client_gets_the_model(ledger, url, kind):
    charged = []
    clients = [client_of(moved(0.1), lambda message: charged.append(count_charges(url, "study")))] * CLIENTS
    strategy = strategy_of(kind, accountant=accountant_of(ledger))
    run(strategy, *clients, rounds=ROUNDS)
    assert charged == [0] * CLIENTS + [1] * CLIENTS + [2] * CLIENTS
    assert strategy.privacy_spent().num_releases == count_charges(url, "study") == ROUNDS
    ledger.verify()


def test_epsilon_is_that_of_a_client_who_is_replaced(ledger):
    accountant = accountant_of(ledger)
    accountant.compose(EVENT, 2)
    exact = epsilon(Repeated(Gaussian(NOISE / 2), 2), 1e-5)  # the same with twice the sensitivity, by hand
    assert accountant.get_epsilon(1e-5) == pytest.approx(exact, rel=1e-6)
    assert accountant.get_delta(exact) == pytest.approx(1e-5, rel=1e-3)
    spent = accountant.get_privacy_spent()
    assert (spent.epsilon, spent.delta, spent.num_releases) == (accountant.get_epsilon(1e-5), 1e-5, 2)


def test_flowers_own_figure_is_for_half_the_sensitivity():
    settings = (1e-5, CLIENTS, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    theirs = RdpAccountant(PrivacyConfig(*settings))
    theirs.compose(EVENT, 2)
    assert theirs.get_epsilon(1e-5) < 0.7 * epsilon(Repeated(Gaussian(NOISE / 2), 2), 1e-5)


def test_a_round_that_is_not_reserved_is_refused_before_any_client_is_asked(ledger, url):
    asked = []
    clients = [client_of(moved(0.1), asked.append)] * CLIENTS
    strategy = strategy_of(accountant=accountant_of(ledger, rounds=1))
    with pytest.raises(PrivacyBudgetExhausted):
        run(strategy, *clients, rounds=2)
    assert (len(asked), count_charges(url, "study")) == (CLIENTS, 1)


def test_other_noise_than_was_reserved_is_refused(ledger):
    accountant = accountant_of(ledger)
    weaker = GaussianPrivacyEvent(NOISE / 4, CLIENTS, CLIENTS)
    assert accountant.would_exceed(weaker)
    with pytest.raises(NotReserved):
        accountant.compose(weaker)
    with pytest.raises(InvalidArgument, match="population_size"):
        accountant.compose(GaussianPrivacyEvent(NOISE, CLIENTS, 99))


def test_noise_is_not_what_a_seed_in_the_app_makes_it(ledger):
    found = []
    for name in ("study-12", "study-13"):
        np.random.seed(42)  # as apps do
        strategy = strategy_of(accountant=accountant_of(ledger, run=name, rounds=1))
        found.append(run(strategy, *[client_of(moved(0.1))] * CLIENTS).arrays["weight"].numpy())
    assert not np.isclose(*found).any()


@pytest.mark.parametrize(("limit", "exceeds"), [(0.5, True), (7.9, False)])
def test_a_limit_that_is_given_holds_beside_the_reservation(ledger, limit, exceeds):
    assert accountant_of(ledger).would_exceed(EVENT, max_epsilon=limit) is exceeds


def test_a_refused_commit_lets_no_model_out(ledger, url):
    strategy = strategy_of(accountant=accountant_of(ledger))
    freeze = [client_of(moved(0.1), lambda message: _freeze(ledger))] + [client_of(moved(0.1))] * (CLIENTS - 1)
    with pytest.raises(AccountUnavailable):
        run(strategy, *freeze)
    assert count_charges(url, "study") == 0


def _freeze(ledger):
    ledger.freeze("study", reason="a question")


def test_a_crash_after_the_commit_costs_and_gives_nothing_away(ledger, url):
    class Crashing(LedgerAccountant):
        def get_privacy_spent(self, delta=None):
            if self.num_releases:
                raise KeyboardInterrupt
            return super().get_privacy_spent(delta)

    settings = {"run": "study-12", "rounds": 2, "noise_multiplier": NOISE, "population_size": CLIENTS}
    crashing = Crashing(ledger, "study", arrays=record_of(SENT), **settings)
    clients = [client_of(moved(0.1))] * CLIENTS
    with pytest.raises(KeyboardInterrupt):
        run(strategy_of(accountant=crashing), *clients)
    assert count_charges(url, "study") == 1
    again = accountant_of(ledger, rounds=2)  # a new process of the same run
    assert again.num_releases == 1
    run(strategy_of(accountant=again), *clients)
    assert again.would_exceed(EVENT)


@pytest.mark.parametrize(
    ("terms", "kind", "says"),
    [
        ({"unit": "record", "adjacency": "replace_one"}, InvalidArgument, "whole clients"),
        ({"unit": "client", "adjacency": "add_remove"}, AdjacencyMismatch, "who is replaced"),
    ],
)
def test_an_account_for_something_else_is_refused(ledger, terms, kind, says):
    ledger.open("other", epsilon=8.0, delta=1e-5, **terms)
    with pytest.raises(kind, match=says):
        accountant_of(ledger, account="other")


def test_unequal_weights_are_refused_by_flower_itself(ledger, url):
    clients = [client_of(moved(0.1))] * (CLIENTS - 1) + [client_of(moved(0.1), weight=10_000)]
    with pytest.raises(ValueError, match="equal client weights"):
        run(strategy_of(accountant=accountant_of(ledger)), *clients)
    assert count_charges(url, "study") == 0


# ---- checkpoints of Flower ----


def test_a_checkpoint_points_to_the_ledger_and_gives_nothing_back(ledger):
    accountant = accountant_of(ledger)
    before = accountant.state_dict()
    accountant.compose(EVENT)
    accountant.load_state_dict(before)
    assert accountant.num_releases == 1


def test_a_checkpoint_that_has_seen_more_than_the_ledger_is_refused(ledger):
    accountant = accountant_of(ledger)
    later = accountant.state_dict() | {"head": f"999:{'0' * 64}"}
    with pytest.raises(LedgerRolledBack):
        accountant.load_state_dict(later)
    with pytest.raises(LedgerRolledBack, match="what it has seen"):
        accountant.load_state_dict(later | {"head": None})
    with pytest.raises(InvalidArgument, match="another account or run"):
        accountant.load_state_dict(later | {"run": "study-13"})
