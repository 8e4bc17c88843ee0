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
from dpfed.federated.algorithms.registry import build, checked

SIZE = 3
ALL = [FedAvg(0.5), FedProx(0.1, 0.5), *(FedOpt(optimizer=name) for name in OPTIMIZERS)]
every = pytest.mark.parametrize("algorithm", ALL, ids=repr)
vectors = st.lists(st.floats(-1e3, 1e3), min_size=SIZE, max_size=SIZE).map(np.array)


def bits(weights, state):
    return weights.tobytes(), {name: value.tobytes() for name, value in state.items()}


@every
@given(first=vectors, updates=st.lists(vectors, min_size=1, max_size=4), others=st.lists(vectors, max_size=3))
def test_a_step_depends_on_model_update_and_state_only(algorithm, first, updates, others):
    """So it is post-processing of the noised aggregate: whatever else went through the object leaves no trace."""
    weights, state = first, algorithm.start(SIZE)
    for update in updates:
        before = bits(weights, {**state, "update": update})
        found = algorithm.step(weights, update, state)
        for other in others:
            algorithm.step(other, other, algorithm.start(SIZE))
        copied = {name: value.copy() for name, value in state.items()}
        assert bits(*algorithm.step(weights.copy(), update.copy(), copied)) == bits(*found)
        assert bits(weights, {**state, "update": update}) == before, "an argument was changed"
        weights, state = found


@every
def test_the_state_is_plain_arrays_of_the_models_size_and_keeps_its_names(algorithm):
    start = algorithm.start(SIZE)
    _, after = algorithm.step(np.zeros(SIZE), np.ones(SIZE), start)
    assert start.keys() == after.keys()
    assert all(type(value) is np.ndarray and value.shape == (SIZE,) for value in (*start.values(), *after.values()))


@every
def test_no_update_and_no_state_move_nothing(algorithm):
    assert algorithm.step(np.ones(SIZE), np.zeros(SIZE), algorithm.start(SIZE))[0].tolist() == [1.0] * SIZE


def test_fedavg_moves_by_the_update_times_the_rate():
    assert FedAvg(2.0).step(np.array([1.0, 2.0]), np.array([0.25, -1.0]), {})[0].tolist() == [1.5, 0.0]


def test_fedprox_differs_from_fedavg_in_what_its_clients_do():
    weights, update = np.array([1.0]), np.array([0.25])
    assert FedProx(0.3, 2.0).step(weights, update, {})[0] == FedAvg(2.0).step(weights, update, {})[0]
    assert (FedProx(0.3).proximal, FedAvg().proximal, FedOpt().proximal) == (0.3, 0.0, 0.0)


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
    weights, state = np.array([1.0]), algorithm.start(1)
    for update, (model, mean, square) in zip((2.0, -1.0), BY_HAND[name], strict=True):
        weights, state = algorithm.step(weights, np.array([update]), state)
        assert weights[0] == pytest.approx(model, rel=1e-15)
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
    weights, state = np.zeros(4), algorithm.start(4)
    for update in updates:
        weights, state = algorithm.step(weights, update, state)
    expected = [peer(name, column.tolist(), 0.1, 0.9, 0.99, 1e-3) for column in updates.T]
    np.testing.assert_allclose(weights, expected, rtol=1e-11)


def test_adams_bias_is_not_corrected():
    """As in the paper: with correction the first step would be η·Δ/(|Δ| + τ), whatever β₁ is."""
    algorithm = FedOpt(optimizer="adam", server_learning_rate=1.0, beta1=0.9, beta2=0.0, tau=1e-9)
    assert algorithm.step(np.zeros(1), np.ones(1), algorithm.start(1))[0][0] == pytest.approx(0.1)


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
    assert found.step(np.zeros(2), np.array([3.0, -3.0]), {})[0].tolist() == [0.25, 0.0]
    with pytest.raises(InvalidArgument, match="its options are: rate"):
        build("signs_of_mine:Signs", directory=tmp_path, speed=0.25)


def test_a_proximal_strength_that_is_no_number_is_refused():
    class Strange(FedAvg):
        proximal = -1.0

    with pytest.raises(InvalidArgument, match="proximal"):
        checked(Strange())
    with pytest.raises(InvalidArgument, match="lacks one"):
        checked(FedAvg)
