"""The hardened path: outputs on a grid the data do not choose, and noise wide enough for the rounding."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.mechanisms.additive import grid_step, perturb
from dpfed.mechanisms.gaussian import GaussianMechanism
from dpfed.mechanisms.laplace import LaplaceMechanism
from dpfed.randomness import RandomSource, SeededSource

N = 100_000
INPUTS = [0.0, 1.0, 1 / 3, -1 / 3, 1e-17, 1e-300, 123456.789, 1e15, 2.0**52, 1e300]


def mechanisms(hardened: bool, source: RandomSource) -> list[GaussianMechanism | LaplaceMechanism]:
    return [
        GaussianMechanism(1.0, 1e-5, 1.0, hardened=hardened, source=source),
        LaplaceMechanism(1.0, 1.0, hardened=hardened, source=source),
    ]


@pytest.mark.parametrize("x", INPUTS)
@pytest.mark.parametrize("which", [0, 1], ids=["gaussian", "laplace"])
def test_every_output_is_a_multiple_of_the_grid_step(which: int, x: float) -> None:
    mechanism = mechanisms(True, SeededSource(1))[which]
    outputs = mechanism.add_noise(np.full(1000, x))
    assert np.all(np.fmod(outputs, grid_step(mechanism.scale)) == 0)


def off_grid_share(mechanism: GaussianMechanism | LaplaceMechanism, x: float) -> float:
    """Mironov's reading: the share of outputs that are no multiple of a fine power of two."""
    outputs = mechanism.add_noise(np.full(N, x))
    return float(np.mean(np.fmod(outputs, 2.0**-54) != 0))


@pytest.mark.parametrize("which", [0, 1], ids=["gaussian", "laplace"])
def test_mironovs_attack_reads_the_plain_path_and_finds_nothing_in_the_hardened_one(which: int) -> None:
    plain, hardened = mechanisms(False, SeededSource(2))[which], mechanisms(True, SeededSource(2))[which]
    assert off_grid_share(plain, 0.0) > 10 * off_grid_share(plain, 1.0)
    assert off_grid_share(hardened, 0.0) == off_grid_share(hardened, 1.0) == 0


@pytest.mark.parametrize("which", [0, 1], ids=["gaussian", "laplace"])
def test_neighbours_differ_by_a_shift_of_whole_steps_and_by_nothing_else(which: int) -> None:
    step = grid_step(mechanisms(True, SeededSource(3))[which].scale)
    at_zero = mechanisms(True, SeededSource(3))[which].add_noise(np.zeros(N)) / step
    near_third = mechanisms(True, SeededSource(3))[which].add_noise(np.full(N, 1 / 3)) / step
    assert np.array_equal(near_third - at_zero, np.full(N, np.rint(1 / 3 / step)))


def test_the_sign_of_a_tiny_input_does_not_show_in_a_negative_zero() -> None:
    def no_noise(count: int) -> np.ndarray:
        return np.full(count, -0.0)

    for x in (-1e-300, 1e-300, -0.0):
        noisy = perturb(np.array([x]), no_noise, 1.0, lambda step, dimension: 1.0, True)
        assert not np.signbit(noisy[0])


@given(st.floats(1e-290, 1e290))
def test_the_step_is_a_power_of_two_of_the_scale_alone(scale: float) -> None:
    step = grid_step(scale)
    assert math.frexp(step)[0] == 0.5
    assert 2.0**-41 < step / scale <= 2.0**-40


def capture_noise(mechanism: GaussianMechanism | LaplaceMechanism, dimension: int) -> float:
    """The factor by which the mechanism multiplies a draw of 1."""

    class Ones(RandomSource):
        is_private = False

        def _key(self) -> bytes:
            return bytes(32)

        def _child(self, name: str) -> RandomSource:
            return self

        def normal(self, shape: object = ()) -> np.ndarray:
            return np.ones(shape)

        laplace = normal

    kind = type(mechanism)
    arguments = (0.001, 1e-9, 1.0) if kind is GaussianMechanism else (0.001, 1.0)
    return float(kind(*arguments, source=Ones()).add_noise(np.zeros(dimension))[0])


@pytest.mark.parametrize("dimension", [1, 1_000_000])
def test_noise_is_widened_by_what_rounding_adds_to_the_sensitivity(dimension: int) -> None:
    gaussian, laplace = GaussianMechanism(0.001, 1e-9, 1.0), LaplaceMechanism(0.001, 1.0)
    step = grid_step(gaussian.scale)
    expected = gaussian.scale * (1.0 + step * math.sqrt(dimension))
    assert capture_noise(gaussian, dimension) == pytest.approx(expected, abs=step)
    step = grid_step(laplace.scale)
    assert capture_noise(laplace, dimension) == pytest.approx(laplace.scale * (1.0 + step * dimension), abs=step)
    assert laplace.scale * step * 1_000_000 > 1e3 * step  # the widening is seen at the resolution of this test


@given(st.floats(1e-9, 1e9), st.floats(1e-6, 1e3), st.integers(1, 1000))
def test_the_widened_scale_is_never_rounded_below_what_is_owed(
    sensitivity: float, multiplier: float, dimension: int
) -> None:
    def huge(count: int) -> np.ndarray:
        return np.full(count, 2.0**60)  # so large that the grid does not round it

    mechanism = GaussianMechanism.from_noise_multiplier(multiplier, sensitivity)
    noise = perturb(np.zeros(dimension), huge, mechanism.scale, mechanism._widening, hardened=True)[0]
    step = Fraction(grid_step(mechanism.scale))
    owed = Fraction(multiplier) * (Fraction(sensitivity) + step * math.isqrt(dimension))
    assert Fraction(noise) / 2**60 >= owed


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    st.lists(st.floats(-2, 2), min_size=20, max_size=20),
)
def test_rounding_moves_neighbours_apart_by_at_most_a_step_per_coordinate(x: list[float], move: list[float]) -> None:
    def no_noise(count: int) -> np.ndarray:
        return np.zeros(count)

    def release(values: np.ndarray) -> np.ndarray:
        return perturb(values, no_noise, 1.0, lambda step, dimension: 1.0, True)

    here = np.array(x)
    there = here + np.array(move[: len(x)])
    moved = np.abs(release(here) - release(there))
    assert np.all(moved <= np.abs(here - there) + grid_step(1.0))
