"""The inversion: both bounds hold the closed form, and what the sum leaves out is paid for."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest

from dpfed import events as ev
from dpfed.accounting import epsilon, epsilon_bounds
from dpfed.accounting.exact.contour import Inversion, copies, smallest_epsilon


def gaussian_line(mu: float, tilt: float, step: float, count: int) -> Inversion:
    s = tilt + 1j * step * np.arange(count)
    steeper = [(factor * tilt, mu**2 * factor * tilt * (factor * tilt + 1) / 2) for factor in (1.15, 1.5)]
    decay = -((mu * step * (count - 1)) ** 2) / 2
    return Inversion(tilt, step, mu**2 * s * (s + 1) / 2, error=1e-14, decay=decay, others=steeper)


@pytest.mark.parametrize("tilt", [2.0, 4.0, 8.0])
@pytest.mark.parametrize("step", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("count", [3, 20, 200])
def test_any_line_brackets_the_closed_form(tilt: float, step: float, count: int) -> None:
    line = gaussian_line(1.0, tilt, step, count)
    for at in (0.0, 1.0, 4.0, 8.0):
        true = oracle.gaussian_delta(1.0, at)
        assert line.lower(at) <= true * (1 + 1e-12)
        assert line.upper(at) >= true * (1 - 1e-12)
        assert line.upper(at) - line.lower(at) <= line.width(at) + 1e-12 * line.upper(at)


def test_a_long_fine_line_is_exact() -> None:
    line = gaussian_line(1.0, 4.0, 0.3, 64)
    assert line.upper(4.0) == pytest.approx(oracle.gaussian_delta(1.0, 4.0), rel=1e-9)


def test_a_coarse_step_errs_on_the_safe_side_by_its_copies() -> None:
    step = 1.0
    line = gaussian_line(1.0, 4.0, step, 64)
    period = 2 * math.pi / step
    terms = [oracle.gaussian_delta(1.0, 4.0 + k * period) * math.exp(4.0 * k * period) for k in (1, 2)]
    left = -math.expm1(4.0 - period) * math.exp(-4.0 * period)
    assert line.upper(4.0) == pytest.approx(oracle.gaussian_delta(1.0, 4.0) + sum(terms) + left, rel=1e-6)
    assert sum(terms) + left <= copies(4.0, 4.0, step, line.others)


def test_a_short_line_pays_for_what_it_leaves_out() -> None:
    short, long = gaussian_line(1.0, 4.0, 0.3, 6), gaussian_line(1.0, 4.0, 0.3, 64)
    assert short.width(4.0) > 100 * long.width(4.0)


@pytest.mark.parametrize("start", [0.0, 3.0, 4.377, 20.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_the_search_ends_at_a_point_that_passes(start: float, delta: float) -> None:
    line = gaussian_line(1.0, 4.0, 0.1, 200)
    found = smallest_epsilon(line, delta, start)
    assert line.upper(found) <= delta
    true = oracle.smallest_epsilon(lambda e: oracle.gaussian_delta(1.0, e), delta)
    assert true * (1 - 1e-12) <= found <= true * (1 + 1e-6) + 1e-6


def test_mass_at_infinity_is_added() -> None:
    line = gaussian_line(1.0, 4.0, 0.3, 64)
    leaking = Inversion(4.0, 0.3, line.moments, line.error, line.decay, line.others, at_infinity=1e-3)
    assert leaking.upper(4.0) == pytest.approx(line.upper(4.0) + 1e-3, rel=1e-12)


def laplace_losses(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses and P-masses of `count` Laplace releases of b = 10, on a grid of 2e-4: each node split between two."""
    release, width = oracle.laplace(10.0, 200), 2e-4
    places = (release.loss + 0.1) / width
    low = np.clip(np.floor(places).astype(int), 0, 999)
    p, share, masses = np.exp(release.log_q + release.loss), places - low, np.zeros(1001)
    np.add.at(masses, low, p * (1 - share))
    np.add.at(masses, low + 1, p * share)
    whole = np.fft.irfft(np.fft.rfft(masses, 65536) ** count, 65536)[: 1000 * count + 1]
    return -0.1 * count + width * np.arange(len(whole)), whole


def test_fifty_laplace_releases_are_not_cut_before_their_characteristic_function_returns() -> None:
    """|φ| of a Laplace loss comes back to about ½ at w = 2π/0.2, far beyond where it first dies out."""
    run = ev.Repeated(ev.Laplace(10.0), 50)
    losses, masses = laplace_losses(50)
    low, high = epsilon_bounds(run, 1e-5)

    def delta_at(at: float) -> float:
        return float((masses * np.maximum(-np.expm1(at - losses), 0)).sum())

    assert delta_at(high) <= 1e-5 * (1 + 1e-4)
    assert delta_at(low) >= 1e-5 * (1 - 1e-4)
    assert delta_at(high - 1e-3) > 1e-5
    assert epsilon(run, 1e-5) == pytest.approx(high, rel=1e-9)
