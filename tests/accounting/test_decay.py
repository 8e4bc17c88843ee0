"""The proof of decay against the characteristic function itself, on a finer grid and at many frequencies."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest

from dpfed.accounting.decay import POINTS_PER_SIGMA, log_decay
from dpfed.accounting.moments import DiscretePair, GaussianPair, LaplacePair
from dpfed.accounting.sampled_gaussian import SampledGaussian, Side


def tilted(pair: SampledGaussian, tilt: float) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and losses of the tilted pair on a fine grid."""
    if pair.side is Side.REPLACED:
        release = oracle.replaced_gaussian(pair.sigma, pair.rate, top=2 * tilt + 2)
    else:
        release = oracle.gaussian(pair.sigma, top=tilt + 1).sampled(pair.rate)
    release = release.mirrored() if pair.side is Side.ABSENT else release
    exponents = release.log_q + (tilt + 1) * release.loss
    kept = exponents > exponents.max() - 40
    mass = np.exp(exponents[kept] - exponents.max())
    return mass / mass.sum(), release.loss[kept]


def largest(mass: np.ndarray, loss: np.ndarray, omega: float) -> float:
    """log sup |φ(w)| over frequencies from Ω to 300 Ω that the grid resolves."""
    frequencies = omega * np.exp(np.linspace(0, math.log(300), 120))
    widest = float(np.abs(np.diff(loss)).max())
    values = [abs((mass * np.exp(1j * w * loss)).sum()) for w in frequencies if w == omega or w * widest < 1]
    return math.log(max(values))


# Nearly all mass where the loss is flat: an atom in all but name, so |φ| stays near 1.
FLAT = [
    (SampledGaussian(0.12532, 0.99986, Side.ABSENT), 4.866, 12.0, -0.0434),
    (SampledGaussian(0.10042, 0.00466, Side.PRESENT), 0.09675, 0.0017, -0.02),
    (SampledGaussian(0.14666, 0.0003635, Side.ABSENT), 11.266, 449.9, -0.02),
    (SampledGaussian(0.1079, 0.99985, Side.ABSENT), 4.192, 7.88, -0.05),
]


@pytest.mark.parametrize(("pair", "tilt", "omega", "enough"), FLAT, ids=lambda value: repr(value)[:60])
def test_a_flat_loss_proves_no_decay_that_is_not_there(
    pair: SampledGaussian, tilt: float, omega: float, enough: float
) -> None:
    assert largest(*tilted(pair, tilt), omega) <= pair.decay(tilt, omega, enough) + 1e-9


def test_no_proof_is_above_the_truth(campaign_scale: int) -> None:
    draw = np.random.default_rng(3)
    proved = 0

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    for _ in range(120 * campaign_scale):
        rate = float(draw.choice([between(1e-5, 1), 1 - between(1e-6, 0.5)]))
        pair = SampledGaussian(between(0.15, 20), rate, list(Side)[draw.integers(3)])
        tilt, enough = between(0.02, 30), -between(1e-6, 0.5)
        mass, loss = tilted(pair, tilt)
        spread = math.sqrt(max((mass * loss**2).sum() - (mass * loss).sum() ** 2, 1e-300))
        omega = between(0.1, 30) * math.sqrt(-enough) / spread
        claimed = pair.decay(tilt, omega, enough)
        assert claimed == 0 or claimed <= enough
        assert claimed == 0 or largest(mass, loss, omega) <= claimed + 1e-9, (pair, tilt, omega, enough)
        proved += claimed < 0
    assert proved > 20 * campaign_scale  # a test of nothing would pass as well


def test_an_ordinary_step_is_proved_to_decay() -> None:
    pair = SampledGaussian(1.0, 0.1, Side.PRESENT)
    mass, loss = tilted(pair, 1.0)
    spread = math.sqrt((mass * loss**2).sum() - (mass * loss).sum() ** 2)
    assert pair.decay(1.0, 1.0 / spread, -0.01) <= -0.01


def test_two_points_far_apart_are_no_gaussian() -> None:
    # Half the mass at each of two losses: |φ| returns to 1 at every multiple of 2π/10.
    x = np.arange(-5, 5, 1 / POINTS_PER_SIGMA)
    mass = np.exp(-(x**2) / 2) / np.exp(-(x**2) / 2).sum()
    loss = 10 * (x > 0) + 1e-9 * x
    assert log_decay(mass, loss, omega=2 * math.pi / 10, enough=-0.1) == 0.0


def test_a_gaussian_falls_as_its_closed_form() -> None:
    assert GaussianPair(0.5).decay(3.0, 4.0, -0.1) == -2.0


@pytest.mark.parametrize("pair", [LaplacePair(0.1), DiscretePair((-1.0, 1.0), (0.3, 0.7))])
def test_atoms_prove_nothing(pair: LaplacePair | DiscretePair) -> None:
    assert pair.decay(1.0, 100.0, -0.1) == 0.0
