"""The distribution of the loss, read off the lattice: its mass, its mean and spread, and the δ that it owes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpfed import events as ev
from dpfed.accounting import delta, epsilon
from dpfed.accounting.loss_distribution import LossDistribution, read_losses
from dpfed.errors import UnsupportedEvent

RUN = ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.0), 0.01), 10_000)


def moments(loss: LossDistribution) -> tuple[float, float]:
    mean = float(loss.losses @ loss.masses)
    return mean, math.sqrt(float((loss.losses - mean) ** 2 @ loss.masses))


@pytest.mark.parametrize("count", [1, 16])
def test_the_loss_of_gaussian_noise_is_normal(count: int) -> None:
    (loss,) = read_losses(ev.Repeated(ev.Gaussian(4.0), count), 1e-5)
    assert loss.masses.sum() == pytest.approx(1.0, abs=1e-6)
    assert moments(loss) == pytest.approx((count / 32, math.sqrt(count) / 4), rel=1e-4)


@pytest.mark.parametrize(
    ("event", "adjacency", "sides"),
    [
        (RUN, "add_remove", 2),
        (ev.Repeated(ev.Laplace(10.0), 3), "add_remove", 1),
        (ev.Repeated(ev.RandomizedResponse(0.2, 5), 50), "replace_one", 1),
        (ev.Repeated(ev.Shuffled(ev.RandomizedResponse(1.0), 100), 10), "replace_one", 1),
    ],
    ids=repr,
)
def test_what_lies_beyond_epsilon_is_what_delta_is_for(event: ev.Event, adjacency: str, sides: int) -> None:
    found = read_losses(event, 1e-3, adjacency=adjacency)
    assert len(found) == sides
    at = epsilon(event, 1e-3, adjacency=adjacency)
    owed = max(float((loss.masses * -np.expm1(np.minimum(at - loss.losses, 0.0))).sum()) for loss in found)
    assert owed == pytest.approx(delta(event, at, adjacency=adjacency), rel=0.01)
    assert all(loss.masses.sum() == pytest.approx(1.0, abs=1e-5) for loss in found)


def test_mass_at_infinity_is_kept_apart() -> None:
    (loss,) = read_losses(ev.ApproximateDP(1.0, 1e-3), 1e-2)
    assert loss.at_infinity == pytest.approx(1e-3)


@pytest.mark.parametrize("event", [ev.ZeroConcentratedDP(0.1), ev.Unprotected()], ids=repr)
def test_a_release_without_a_known_loss_is_refused(event: ev.Event) -> None:
    with pytest.raises(UnsupportedEvent, match="not known"):
        read_losses(event, 1e-5)


def test_a_loss_that_is_spread_too_far_is_refused() -> None:
    with pytest.raises(UnsupportedEvent, match="too far"):
        read_losses(ev.Repeated(ev.Gaussian(1e-6), 10), 1e-5)
