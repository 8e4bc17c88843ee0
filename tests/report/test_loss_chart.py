"""The picture of the loss: made for one direction and two, for few losses and many, in every format."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed import events as ev
from dpfed.accounting import epsilon
from dpfed.accounting.loss_distribution import LossDistribution, read_losses
from dpfed.report.loss_chart import FORMATS, _make_edges, draw_losses

STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
RUN = ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.0), 0.1), 50)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_drawn(kind: str) -> None:
    assert draw_losses(read_losses(RUN, 1e-5), epsilon(RUN, 1e-5), 1e-5, kind).startswith(STARTS[kind])


def test_both_directions_and_epsilon_are_named() -> None:
    text = draw_losses(read_losses(RUN, 1e-5), epsilon(RUN, 1e-5), 1e-5, "svg").decode()
    for words in ("the unit is removed", "the unit is added", "privacy loss of the whole run", "at δ = 1e-05"):
        assert words in text


@pytest.mark.parametrize(
    "loss",
    [
        LossDistribution(np.array([0.0]), np.array([1.0]), 0.0),
        LossDistribution(np.array([-1.0, 1.0]), np.array([0.27, 0.73]), 0.0),
        LossDistribution(np.array([0.5]), np.array([0.5]), 0.5),
    ],
    ids=["nothing", "coin", "leak"],
)
def test_few_losses_are_drawn_as_they_are(loss: LossDistribution) -> None:
    text = draw_losses([loss], 1.0, 1e-5, "svg").decode()
    assert "probability" in text
    assert "the unit is removed" not in text


@pytest.mark.parametrize("points", [61, 1000, 1777])
def test_the_density_of_a_smooth_loss_has_one_peak(points: int) -> None:
    losses = np.linspace(-5, 5, points)
    edges = _make_edges(losses, (-4.7, 5.9))
    bars, _ = np.histogram(losses, edges, weights=np.exp(-(losses**2) / 2))
    assert np.count_nonzero(np.diff(np.sign(np.diff(bars[:-1])))) <= 2


def test_a_single_loss_beside_many_of_the_other_direction_is_drawn() -> None:
    many, one = np.linspace(-1, 1, 100), np.array([0.0])
    losses = LossDistribution(many, np.full(100, 0.01), 0.0), LossDistribution(one, np.array([1.0]), 0.0)
    assert draw_losses(losses, 1.0, 1e-5, "svg").startswith(b"<?xml")
