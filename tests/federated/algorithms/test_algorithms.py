"""Every algorithm is a pure function of released values, so it costs nothing; and each is the one of its paper."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.fedavg import FedAvg
from dpfed.federated.algorithms.fedopt import OPTIMIZERS, FedOpt
from dpfed.federated.algorithms.fedprox import FedProx
from dpfed.federated.algorithms.protocol import ModelChange
from dpfed.federated.algorithms.registry import build, require_algorithm
from dpfed.federated.messages import Task

SIZE = 3
ALL = [FedAvg(0.5), FedProx(0.1, 0.5), *(FedOpt(optimizer=name) for name in OPTIMIZERS)]
every = pytest.mark.parametrize("algorithm", ALL, ids=repr)
vectors = st.lists(st.floats(-1e3, 1e3), min_size=SIZE, max_size=SIZE).map(np.array)


def bits(state, *more):
    return [value.tobytes() for value in (*state.values(), *more)]


@every
@given(first=vectors, updates=st.lists(vectors, min_size=1, max_size=4), others=st.lists(vectors, max_size=3))
def test_a_step_depends_on_the_mean_update_and_state_only(algorithm, first, updates, others):
    """So it is post-processing of the noised aggregate: whatever else went through the object leaves no trace."""
    state = algorithm.start(first)
    for update in updates:
        before = bits(state, update)
        found = algorithm.step(state, update)
        for other in others:
            algorithm.step(algorithm.start(other), other)
        copied = {name: value.copy() for name, value in state.items()}
        assert bits(algorithm.step(copied, update.copy())) == bits(found)
        assert bits(state, update) == before, "an argument was changed"
        state = found


@every
def test_the_state_is_plain_arrays_of_the_models_size_and_keeps_its_names(algorithm):
    start = algorithm.start(np.zeros(SIZE))
    after = algorithm.step(start, np.ones(SIZE))
    assert start.keys() == after.keys()
    assert all(type(value) is np.ndarray and value.shape == (SIZE,) for value in (*start.values(), *after.values()))


@every
def test_no_update_and_no_state_move_nothing(algorithm):
    assert algorithm.step(algorithm.start(np.ones(SIZE)), np.zeros(SIZE))["weights"].tolist() == [1.0] * SIZE


@every
def test_the_model_is_sent_and_its_change_leaves(algorithm):
    sent = algorithm.task(algorithm.start(np.ones(SIZE)))
    assert list(sent) == ["weights"]
    change = np.arange(3.0)
    task = Task(1, sent)
    assert algorithm.leaves(change, task, {}) is change
    assert algorithm.objective(task, {}).start is task.weights


def test_fedavg_moves_by_the_update_times_the_rate():
    state = FedAvg(2.0).step({"weights": np.array([1.0, 2.0])}, np.array([0.25, -1.0]))
    assert state["weights"].tolist() == [1.5, 0.0]


def test_fedprox_differs_from_fedavg_in_what_its_clients_do():
    state, update = {"weights": np.array([1.0])}, np.array([0.25])
    assert FedProx(0.3, 2.0).step(state, update) == FedAvg(2.0).step(state, update)
    task = Task(1, state)
    aims = [algorithm.objective(task, {}) for algorithm in (FedProx(0.3), FedAvg(), FedOpt())]
    assert [aim.pull for aim in aims] == [0.3, 0.0, 0.0]
    assert all(aim.anchor is task.weights and aim.shift is None for aim in aims)


# Two rounds with Δ = 2, then −1, from w = 1, with η = 1/2, β₁ = 1/2, β₂ = 3/4, τ = 1 (so v starts at 1), by hand:
#   momentum: m = 2, w = 2;                  m = 1 − 1 = 0, w = 2
#   adam:     m = 1, v = 3/4 + 4/4 = 7/4;    m = 1/2 − 1/2 = 0
#   yogi:     m = 1, v = 1 − (1/4)·4·(−1) = 2;   v = 2 − (1/4)·1·(+1) = 7/4
#   adagrad:  m = 1, v = 1 + 4 = 5;          v = 6
BY_HAND = {
    "momentum": [(2.0, 2.0, None), (2.0, 0.0, None)],
    "adam": [(1 + 0.5 / (1.75**0.5 + 1), 1.0, 1.75), (1 + 0.5 / (1.75**0.5 + 1), 0.0, 1.5625)],
    "yogi": [(1 + 0.5 / (2**0.5 + 1), 1.0, 2.0), (1 + 0.5 / (2**0.5 + 1), 0.0, 1.75)],
    "adagrad": [(1 + 0.5 / (5**0.5 + 1), 1.0, 5.0), (1 + 0.5 / (5**0.5 + 1), 0.0, 6.0)],
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fedopt_takes_the_steps_computed_by_hand(name):
    algorithm = FedOpt(optimizer=name, server_learning_rate=0.5, beta1=0.5, beta2=0.75, tau=1.0)
    state = algorithm.start(np.array([1.0]))
    for update, (model, mean, square) in zip((2.0, -1.0), BY_HAND[name], strict=True):
        state = algorithm.step(state, np.array([update]))
        assert state["weights"][0] == pytest.approx(model, rel=1e-15)
        assert state["mean"][0] == mean
        assert state.get("square", [None])[0] == square


def peer(name, updates, eta, beta1, beta2, tau):
    """Algorithm 2 of Reddi et al. 2021, line by line in decimals, for one coordinate: xₜ₊₁ = xₜ + η mₜ/(√vₜ + τ)."""
    with localcontext(prec=50):
        eta, beta1, beta2, tau = map(Decimal, (eta, beta1, beta2, tau))
        x, m, v = Decimal(0), Decimal(0), tau * tau
        for delta in map(Decimal, updates):
            m = beta1 * m + (1 - beta1) * delta
            if name == "adagrad":
                v = v + delta**2
            elif name == "yogi":
                gap = v - delta**2
                v = v - (1 - beta2) * delta**2 * (0 if gap == 0 else Decimal(1).copy_sign(gap))
            else:
                v = beta2 * v + (1 - beta2) * delta**2
            x = x + eta * m / (v.sqrt() + tau)
        return float(x)


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad"])
def test_fedopt_agrees_with_the_papers_algorithm_over_fifty_rounds(name):
    updates = np.random.default_rng(5).normal(size=(50, 4)) * [1e-4, 1e-2, 1.0, 30.0]
    algorithm = FedOpt(optimizer=name, server_learning_rate=0.1, beta1=0.9, beta2=0.99, tau=1e-3)
    state = algorithm.start(np.zeros(4))
    for update in updates:
        state = algorithm.step(state, update)
    expected = [peer(name, column.tolist(), 0.1, 0.9, 0.99, 1e-3) for column in updates.T]
    np.testing.assert_allclose(state["weights"], expected, rtol=1e-11)


def test_adams_bias_is_not_corrected():
    """As in the paper: with correction the first step would be η·Δ/(|Δ| + τ), whatever β₁ is."""
    algorithm = FedOpt(optimizer="adam", server_learning_rate=1.0, beta1=0.9, beta2=0.0, tau=1e-9)
    assert algorithm.step(algorithm.start(np.zeros(1)), np.ones(1))["weights"][0] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("fedsgd", {}),
        ("fedavg", {"mu": 1.0}),
        ("fedavg", {"server_learning_rate": 0.0}),
        ("fedprox", {}),
        ("fedprox", {"proximal": -1.0}),
        ("fedopt", {"optimizer": "lion"}),
        ("fedopt", {"beta1": 1.0}),
        ("fedopt", {"tau": 0.0}),
        ("nowhere.at.all:Algorithm", {}),
        ("math:pi", {}),
        ("fractions:Fraction", {}),
    ],
)
def test_what_is_no_algorithm_is_refused_by_name(kind, options):
    with pytest.raises(InvalidArgument):
        build(kind, **options)


OWN = """
from dpfed.federated.algorithms.protocol import LocalObjective, ModelChange


class Signs(ModelChange):
    def __init__(self, rate):
        self.rate = rate

    def start(self, weights):
        return {"weights": weights}

    def objective(self, task, state):
        return LocalObjective(task.weights, pull=self.rate)

    def step(self, state, mean):
        return {"weights": state["weights"] + self.rate * (mean > 0)}
"""
EARLIER = """
class Signs:
    proximal = 0.0

    def __init__(self, rate):
        self.rate = rate

    def start(self, size):
        return {}

    def step(self, weights, update, state):
        return weights + self.rate * (update > 0), {}
"""


def test_an_algorithm_of_your_own_is_found_beside_the_configuration(tmp_path):
    (tmp_path / "signs_of_mine.py").write_text(OWN)
    found = build("signs_of_mine:Signs", directory=tmp_path, rate=0.25)
    assert found.step({"weights": np.zeros(2)}, np.array([3.0, -3.0]))["weights"].tolist() == [0.25, 0.0]
    assert found.objective(Task(1, {"weights": np.zeros(2)}), {}).pull == 0.25
    with pytest.raises(InvalidArgument, match="its options are: rate"):
        build("signs_of_mine:Signs", directory=tmp_path, speed=0.25)


def test_an_algorithm_of_the_earlier_form_goes_on_working(tmp_path):
    (tmp_path / "earlier_signs.py").write_text(EARLIER.replace("proximal = 0.0", "proximal = 0.5"))
    found = build("earlier_signs:Signs", directory=tmp_path, rate=0.25)
    assert found.start(np.ones(2))["weights"].tolist() == [1.0, 1.0]
    assert found.step({"weights": np.zeros(2)}, np.array([3.0, -3.0]))["weights"].tolist() == [0.25, 0.0]
    assert found.objective(Task(1, {"weights": np.zeros(2)}), {}).pull == 0.5
    assert require_algorithm(found) is found


class Counting:
    """Of the earlier form, with a state."""

    proximal = 0.0

    def __init__(self, name):
        self.name = name

    def start(self, size):
        return {self.name: np.zeros(size)}

    def step(self, weights, update, state):
        return weights + update, {self.name: state[self.name] + 1}


def test_the_state_of_an_earlier_algorithm_is_kept_beside_the_model():
    found = require_algorithm(Counting("rounds"))
    state = found.step(found.step(found.start(np.zeros(2)), np.ones(2)), np.ones(2))
    assert {name: value.tolist() for name, value in state.items()} == {"weights": [2.0, 2.0], "rounds": [2.0, 2.0]}
    with pytest.raises(InvalidArgument, match="choose another"):
        require_algorithm(Counting("weights")).start(np.zeros(2))


def test_a_proximal_strength_that_is_no_number_is_refused():
    strange = Counting("rounds")
    strange.proximal = -1.0
    with pytest.raises(InvalidArgument, match="proximal"):
        require_algorithm(strange)
    with pytest.raises(InvalidArgument, match="lacks one"):
        require_algorithm(FedAvg)
    with pytest.raises(InvalidArgument, match="lacks one"):
        require_algorithm(ModelChange())
