"""Pairs and curves of every kind of event against 30-digit sums, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
from mpmath import mp, mpc, mpf

from dpfed import events as ev
from dpfed.accounting.exact.pairs import DiscretePair, GaussianPair, LaplacePair, curve, pairs
from dpfed.errors import AdjacencyMismatch, UnsupportedEvent

ADD, REPLACE = "add_remove", "replace_one"
TILTS = np.array([0.01, 1.0, 7.0])


@mp.workdps(30)
def laplace_moment(shift: float, s: complex) -> complex:
    a, power = mpf(shift), mpc(s)
    inside = mp.quad(lambda x: mp.exp(-x + power * (a - 2 * x)) / 2, [0, a])
    return complex(mp.log(mp.exp(power * a) / 2 + inside + mp.exp(-(power + 1) * a) / 2))


@pytest.mark.parametrize("shift", [0.05, 1.0, 6.0])
def test_laplace_moments_are_the_integral(shift: float) -> None:
    pair = LaplacePair(shift)
    for tilt, value in zip(TILTS, pair.cumulants(TILTS), strict=True):
        true = laplace_moment(shift, tilt).real
        assert true * (1 - 1e-15) <= value <= true + 1e-12
    values, error = pair.line(2.0, 0.7, 9)
    mass = laplace_moment(shift, 2.0)
    for j in (1, 4, 8):
        assert abs(np.exp(values[j] - mass) - np.exp(laplace_moment(shift, 2 + 0.7j * j) - mass)) <= error


def test_gaussian_moments_are_the_closed_form() -> None:
    values, error = GaussianPair(0.7).line(1.5, 0.4, 6)
    s = 1.5 + 0.4j * np.arange(6)
    assert np.abs(values - 0.49 * s * (s + 1) / 2).max() <= error
    assert np.all(GaussianPair(0.7).cumulants(TILTS) >= 0.49 * TILTS * (TILTS + 1) / 2)


def test_discrete_moments_are_the_sum() -> None:
    pair = DiscretePair((-1.2, 0.3, 1.2), (0.1, 0.25, 0.55), at_infinity=0.1)
    s = 2.0 + 0.9j * np.arange(8)
    true = [
        np.log(sum(p * np.exp(z * loss) for loss, p in zip(pair.losses, pair.probabilities, strict=True))) for z in s
    ]
    values, error = pair.line(2.0, 0.9, 8)
    assert np.abs(np.exp(values - values[0].real) - np.exp(np.array(true) - values[0].real)).max() <= error


# --- pairs ---


@pytest.mark.parametrize(("adjacency", "factor"), [(ADD, 1), (REPLACE, 2)])
def test_replacing_moves_a_release_twice_as_far(adjacency: str, factor: int) -> None:
    assert pairs(ev.Gaussian(4.0), adjacency) == (GaussianPair(factor / 4.0),)
    assert pairs(ev.Laplace(4.0), adjacency) == (LaplacePair(factor / 4.0),)
    (moved,) = pairs(ev.DiscreteLaplace(4.0, 3), adjacency)
    assert moved.law.maximum == pytest.approx(factor * 3 / 4.0)


@pytest.mark.parametrize("buckets", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 30.0, 800.0])
@mp.workdps(30)
def test_randomized_response_has_its_three_losses(epsilon: float, buckets: int) -> None:
    (pair,) = pairs(ev.RandomizedResponse(epsilon, buckets), REPLACE)
    assert math.fsum(pair.probabilities) == pytest.approx(1.0, abs=1e-12)
    assert pair.law.maximum == epsilon
    assert pair.probabilities[-1] == pytest.approx(float(1 / (1 + (buckets - 1) * mp.exp(-mpf(epsilon)))), rel=1e-12)


@pytest.mark.parametrize("sensitivity", [1, 2, 5])
def test_discrete_laplace_losses_come_from_the_integers(sensitivity: int) -> None:
    scale = 1.7
    (pair,) = pairs(ev.DiscreteLaplace(scale, sensitivity), ADD)
    k = np.arange(-400, 400)
    p = np.exp(-np.abs(k) / scale) / np.exp(-np.abs(k) / scale).sum()
    loss = (np.abs(k - sensitivity) - np.abs(k)) / scale
    for at in (-0.3, 0.1, 1.0):
        (ours,), _ = pair.law.masses(np.array([at, np.inf]))
        assert ours == pytest.approx(p[loss > at].sum(), rel=1e-12)


@pytest.mark.parametrize(("scale", "sensitivity"), [(0.3, 1), (1.0, 1), (5.0, 3), (1.0, 30)])
def test_discrete_gaussian_losses_come_from_the_integers(scale: float, sensitivity: int) -> None:
    (pair,) = pairs(ev.DiscreteGaussian(scale, sensitivity), ADD)
    k = np.arange(-200, 200)
    weights = np.exp(-(k**2) / (2 * scale**2))
    p, loss = weights / weights.sum(), sensitivity * (sensitivity - 2 * k) / (2 * scale**2)
    for at in (0.05, sensitivity**2 / (2 * scale**2) + 0.01):
        (ours,), _ = pair.law.masses(np.array([at, np.inf]))
        assert ours == pytest.approx(p[loss > at].sum(), rel=1e-9)


def test_events_without_a_pair_have_none() -> None:
    for event in (
        ev.ZeroConcentratedDP(0.1),
        ev.RenyiDP((2.0,), (0.1,)),
        ev.DiscreteGaussian(2.0, 1, 3),
        ev.Unprotected(),
    ):
        assert pairs(event, ADD) == ()


# --- curves ---


def test_the_curve_of_a_discrete_gaussian_reaches_beyond_the_kept_tails() -> None:
    """At whole orders D_α = α Δ²/(2σ²): a cut at twelve deviations would say 13.5 at order 100, not 50."""
    (one,) = curve(ev.DiscreteGaussian(1.0), ADD)
    assert one(np.array([2.0, 100.0, 1000.0])) == pytest.approx([1.0, 50.0, 500.0])
    k = np.arange(-200, 200)
    logs = -(k**2) / 2.0
    exact = [math.log(np.exp(logs + 1.5 * (1 - 2 * k) / 2).sum() / np.exp(logs).sum()) / 1.5]
    assert one(np.array([2.5])) >= np.array(exact) * (1 - 1e-12)


@pytest.mark.parametrize("order", [2.0, 8.0, 100.0])
def test_the_curve_of_releases_of_one_draw_covers_their_divergence(order: float) -> None:
    event = ev.PoissonSampled(ev.Composed([ev.Gaussian(1.0), ev.Laplace(1.0)]), 0.5)
    release = oracle.gaussian(1.0, top=order + 2).beside(oracle.laplace(1.0, 40)).sampled(0.5)
    present, absent = curve(event, ADD)
    for side, truth in ((present, release), (absent, release.mirrored())):
        true = float(truth.log_moment(np.array([order - 1]))[0].real) / (order - 1)
        (ours,) = side(np.array([order]))
        assert true * (1 - 1e-9) <= ours <= 1.2 * true + 1e-3


def test_what_may_reveal_everything_has_no_finite_divergence() -> None:
    orders = np.array([1.5, 2.0, 64.0])
    for event in (ev.Unprotected(), ev.ApproximateDP(0.1, 1e-40), ev.PoissonSampled(ev.ApproximateDP(0.1, 1e-6), 0.01)):
        assert np.all(curve(event, ADD)[0](orders) == math.inf)
    drawn = ev.SampledWithoutReplacement(ev.Unprotected(), 1, 1000)
    assert np.all(curve(drawn, REPLACE)[0](orders) == math.inf)


def test_the_exponential_mechanism_is_an_eighth_concentrated() -> None:
    (one,) = curve(ev.Exponential(0.8), ADD)
    assert one(np.array([2.0, 1000.0])) == pytest.approx([2 * 0.64 / 8, 0.8])


# --- refusals ---


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (ev.PureDP(1.0), REPLACE),
        (ev.RandomizedResponse(1.0), ADD),
        (ev.ZeroConcentratedDP(1.0), REPLACE),
        (ev.SampledWithoutReplacement(ev.Gaussian(1.0), 1, 10), ADD),
        (ev.PoissonSampled(ev.PureDP(1.0, REPLACE), 0.1), ADD),
    ],
)
def test_the_other_neighbouring_relation_is_refused(event: ev.Event, adjacency: str) -> None:
    with pytest.raises(AdjacencyMismatch) as caught:
        pairs(event, adjacency)
    assert caught.value.argument == "adjacency"


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (ev.PoissonSampled(ev.Unprotected(), 0.1), ADD),
        (ev.PoissonSampled(ev.ZeroConcentratedDP(0.1), 0.1), ADD),
        (ev.PoissonSampled(ev.Laplace(1.0), 0.1), REPLACE),
        (ev.DiscreteGaussian(1e6), ADD),
    ],
)
def test_what_has_no_proof_gets_no_number(event: ev.Event, adjacency: str) -> None:
    with pytest.raises(UnsupportedEvent):
        pairs(event, adjacency)
