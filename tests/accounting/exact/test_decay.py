"""The proof of decay against the characteristic function itself, on a finer grid and at many frequencies."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest

from dpfed.accounting.exact.decay import Slabs
from dpfed.accounting.exact.pairs import DiscretePair, GaussianPair, LaplacePair
from dpfed.accounting.exact.sampled_gaussian import SampledGaussian, Side


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
    (SampledGaussian(0.12532, 0.99986, Side.ABSENT), 4.866, 12.0),
    (SampledGaussian(0.10042, 0.00466, Side.PRESENT), 0.09675, 0.0017),
    (SampledGaussian(0.14666, 0.0003635, Side.ABSENT), 11.266, 449.9),
    (SampledGaussian(0.1079, 0.99985, Side.ABSENT), 4.192, 7.88),
]


@pytest.mark.parametrize(("pair", "tilt", "omega"), FLAT, ids=lambda value: repr(value)[:60])
def test_a_flat_loss_proves_no_decay_that_is_not_there(pair: SampledGaussian, tilt: float, omega: float) -> None:
    assert largest(*tilted(pair, tilt), omega) <= pair.decay(tilt, omega, 1.5 * tilt) + 1e-9


@pytest.mark.parametrize("sigma", [0.01, 0.02, 0.05])
@pytest.mark.parametrize("side", Side)
def test_a_density_beyond_the_floats_proves_nothing_false(sigma: float, side: Side) -> None:
    assert -0.75 < SampledGaussian(sigma, 0.3, side).decay(0.01, 1e-3, 0.02) <= 0


def test_no_proof_is_above_the_truth(campaign_scale: int) -> None:
    draw = np.random.default_rng(3)
    proved = 0

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    for _ in range(120 * campaign_scale):
        rate = float(draw.choice([between(1e-5, 1), 1 - between(1e-6, 0.5)]))
        pair = SampledGaussian(between(0.15, 20), rate, list(Side)[draw.integers(3)])
        tilt = between(0.02, 30)
        mass, loss = tilted(pair, tilt)
        spread = math.sqrt(max((mass * loss**2).sum() - (mass * loss).sum() ** 2, 1e-300))
        omega = between(0.01, 30) / spread
        claimed, true = pair.decay(tilt, omega, between(1, 3) * tilt), largest(mass, loss, omega)
        assert true <= claimed + 1e-9, (pair, tilt, omega)
        proved += claimed < 0.3 * max(true, -1.0)
    assert proved > 60 * campaign_scale  # a test of nothing would pass as well


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(("sigma", "rate"), [(0.3, 1e-3), (0.7, 0.05), (1.0, 0.5), (2.0, 0.99), (5.0, 0.2)])
@pytest.mark.parametrize("tilt", [0.1, 3.0, 20.0])
def test_the_density_of_the_loss_bends_no_more_than_is_proved(
    sigma: float, rate: float, tilt: float, side: Side
) -> None:
    step = 1e-2 * min(sigma, sigma**2)
    x = np.arange(-6 * sigma - 2, tilt + 6 * sigma + 2, step)

    def mixture(at: np.ndarray) -> np.ndarray:
        return np.logaddexp(math.log1p(-rate), math.log(rate) + (at - 0.5) / sigma**2)

    def slope(at: np.ndarray) -> np.ndarray:
        return np.exp(math.log(rate) + (at - 0.5) / sigma**2 - mixture(at))

    power = {
        Side.PRESENT: (tilt + 1) * mixture(x) - np.log(slope(x)),
        Side.ABSENT: -tilt * mixture(x) - np.log(slope(x)),
        Side.REPLACED: (tilt + 1) * mixture(x) - tilt * mixture(-x) - np.log(slope(x) + slope(-x)),
    }
    bends = np.diff(-(x**2) / (2 * sigma**2) + power[side], 2) / step**2
    assert bends.max() <= (tilt + 9) / (4 * sigma**4) * (1 + 1e-3) + 1e-3


def test_an_ordinary_step_is_proved_to_decay() -> None:
    pair = SampledGaussian(1.0, 0.1, Side.PRESENT)
    mass, loss = tilted(pair, 1.0)
    spread = math.sqrt((mass * loss**2).sum() - (mass * loss).sum() ** 2)
    assert pair.decay(1.0, 1.0 / spread, 1.5) <= -0.05


def test_one_slab_is_a_uniform_law() -> None:
    slab = Slabs(mass=np.ones(1), reach=np.full(1, 2.0))
    frequencies = np.arange(1, 60_000) * 1e-3
    waves = np.abs(np.sin(frequencies) / frequencies)
    later = np.maximum.accumulate(waves[::-1])[::-1]
    for index in range(0, 50_000, 7):
        assert math.log(later[index]) <= slab.log_decay(float(frequencies[index])) + 1e-12
    assert slab.log_decay(0.1) == pytest.approx(math.log(math.sin(0.1) / 0.1), rel=0.01)


def test_two_bumps_far_apart_are_no_gaussian() -> None:
    # Half the mass in each of two narrow bumps: |φ| returns to nearly 1 at every multiple of 2π/10.
    loss = np.arange(-1, 11, 1e-3)
    density = sum(np.exp(-(((loss - at) / 0.01) ** 2) / 2) / (0.02 * math.sqrt(2 * math.pi)) for at in (0, 10))
    slabs = Slabs.below(loss, np.log(np.maximum(density, 1e-300)), 0.0, mode=11_000)
    assert 0.85 < slabs.mass.sum() <= 1
    assert -((0.01 * 2 * math.pi / 10) ** 2) / 2 <= slabs.log_decay(2 * math.pi / 10) <= 0
    assert slabs.log_decay(200.0) < -0.5


def test_a_gaussian_falls_as_its_closed_form() -> None:
    assert GaussianPair(0.5).decay(3.0, 4.0, 4.0) == -2.0


@pytest.mark.parametrize("pair", [LaplacePair(0.1), DiscretePair((-1.0, 1.0), (0.3, 0.7))])
def test_atoms_prove_nothing(pair: LaplacePair | DiscretePair) -> None:
    assert pair.decay(1.0, 100.0, 1.0) == 0.0
