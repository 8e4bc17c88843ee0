"""Noise on tensors: the right law up to its tails, shared with nobody. False-alarm probability 1e-6 per test."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
import threading
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from dpfed.errors import InvalidArgument
from dpfed.randomness import RandomSource, SeededSource, SystemSource
from dpfed.training.noise import NoiseSource, _add_floats_, _add_laplace_, grid_sensitivity, is_finite

N = 100_000
ALPHA = 1e-6
MODES = ["float", "grid"]
DTYPES = [torch.float32, torch.float64]


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def noise_of(noise: NoiseSource, count: int = N, dtype: torch.dtype = torch.float32, std: float = 1.0) -> Tensor:
    return noise.add({"x": zeros(count, dtype=dtype)}, std)["x"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", [11, None], ids=["seeded", "system"])
def test_noise_is_gaussian_by_kolmogorov_and_smirnov(seed: int | None, dtype: torch.dtype, mode: str):
    drawn = noise_of(NoiseSource(seed and SeededSource(seed), mode), dtype=dtype, std=3.0).double().numpy() / 3.0
    assert stats.kstest(drawn, stats.norm.cdf).pvalue > ALPHA


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16, torch.float16], ids=str)
def test_the_variance_of_noise_is_the_one_asked_for_by_chi_square(dtype: torch.dtype, mode: str):
    total = float((noise_of(NoiseSource(SeededSource(12), mode), dtype=dtype, std=0.5).double() / 0.5).square().sum())
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], N)
    assert low < total < high


@pytest.mark.parametrize("mode", MODES)
def test_noise_falls_into_equally_likely_cells_by_chi_square(mode: str):
    drawn = noise_of(NoiseSource(SeededSource(13), mode)).double().numpy()
    counts = np.histogram(stats.norm.cdf(drawn), bins=100, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > ALPHA


def test_radii_that_were_drawn_again_join_the_others_without_a_seam():
    """Half the squared radius of a pair is exponential of mean 1; one in 2⁹ is drawn again with more bits."""
    pairs = noise_of(NoiseSource(SeededSource(15)), 1 << 21).double().view(-1, 2, 1 << 17)
    halves = (pairs.square().sum(1) / 2).flatten().numpy()
    assert stats.kstest(halves[:N], stats.expon.cdf).pvalue > ALPHA / 5
    longest = halves[halves > 9 * math.log(2)] - 9 * math.log(2)
    assert stats.kstest(longest, stats.expon.cdf).pvalue > ALPHA / 5
    shortest = halves[halves < 2.0**-9]
    assert stats.kstest(shortest, lambda x: np.expm1(-x) / math.expm1(-(2.0**-9))).pvalue > ALPHA / 5
    for count, rate in ((longest.size, 2.0**-9), (shortest.size, -math.expm1(-(2.0**-9)))):
        assert stats.binomtest(count, halves.size, rate).pvalue > ALPHA / 5


class _Fixed(RandomSource):
    """A source of one byte, and another for the bits drawn later, to reach values no test could wait for."""

    is_private = False

    def __init__(self, byte: int, later: int) -> None:
        super().__init__()
        self.byte, self.later = byte, later

    def _key(self) -> bytes:
        return bytes(32)

    def _child(self, name: str) -> RandomSource:
        return self

    def bytes(self, count: int) -> bytes:
        return bytes([self.later]) * count

    def fill(self, array: NDArray) -> None:
        array.view(np.uint8)[:] = self.byte


@pytest.mark.parametrize(
    ("mode", "dtype"), [("float", torch.float32), ("float", torch.float64), ("grid", torch.float32)]
)
def test_tails_go_beyond_nine_standard_deviations(mode: str, dtype: torch.dtype):
    assert float(noise_of(NoiseSource(_Fixed(0, 255), mode), 2, dtype)[0]) > 9.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_shortest_radius_is_finite(dtype: torch.dtype):
    assert bool(noise_of(NoiseSource(_Fixed(255, 255)), 2, dtype).isfinite().all())


def test_the_shortest_radius_in_float32_has_all_its_bits_and_is_not_zero():
    """31 bits rounded to float32 alone would make the pair of the last word exactly zero."""
    longest = float(noise_of(NoiseSource(_Fixed(255, 255)), 2).abs().max())
    assert longest == pytest.approx(math.sqrt(2.0 * 2.0**-84), rel=1e-5, abs=0)


@pytest.mark.parametrize("mode", MODES)
def test_tensors_and_calls_are_independent_of_each_other(mode: str):
    noise = NoiseSource(SeededSource(16), mode)
    calls = [noise.add({"a": zeros(N), "b": zeros(N)}, 1.0) for _ in range(2)]
    draws = [tensor.double().numpy() for call in calls for tensor in call.values()]
    limit = stats.norm.isf(ALPHA / 24) / math.sqrt(N)
    for one, other in combinations(draws, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < limit
        assert abs(np.corrcoef(one**2, other**2)[0, 1]) < limit


def test_both_halves_of_a_pass_are_independent():
    first, second = noise_of(NoiseSource(SeededSource(17)), 2 * N).double().view(2, N).numpy()
    limit = stats.norm.isf(ALPHA / 4) / math.sqrt(N)
    assert abs(np.corrcoef(first, second)[0, 1]) < limit
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < limit


def test_long_vectors_do_not_repeat_between_passes():
    drawn = noise_of(NoiseSource(SeededSource(18)), 700_001, torch.float64)
    assert drawn.unique().numel() == drawn.numel()


@pytest.mark.parametrize("mode", MODES)
def test_a_seed_gives_the_same_noise_again_and_is_stamped(mode: str):
    one, other = (NoiseSource(SeededSource(19), mode) for _ in range(2))
    assert torch.equal(noise_of(one), noise_of(other))
    assert not torch.equal(noise_of(one), noise_of(NoiseSource(SeededSource(20), mode)))
    assert not one.is_private
    assert "NOT PRIVATE" in repr(one)
    assert NoiseSource(mode=mode).is_private
    assert "NOT PRIVATE" not in repr(NoiseSource(mode=mode))


def test_two_sources_of_one_seeded_object_go_on_instead_of_starting_over():
    seeded = SeededSource(21)
    assert not torch.equal(noise_of(NoiseSource(seeded)), noise_of(NoiseSource(seeded)))


def test_other_draws_from_the_source_do_not_move_the_noise():
    seeded = SeededSource(21)
    seeded.bytes(100)
    assert torch.equal(noise_of(NoiseSource(seeded)), noise_of(NoiseSource(SeededSource(21))))


def test_two_runs_and_a_resume_never_share_noise():
    code = (
        "import torch; from dpfed.training.noise import NoiseSource\n"
        "print(NoiseSource().add({'x': torch.zeros(4)}, 1.0)['x'].tolist())"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    assert runs[0].stdout != runs[1].stdout
    noise = NoiseSource(SystemSource())
    noise_of(noise, 2)
    resumed = copy.deepcopy(noise)
    assert not torch.equal(noise_of(resumed, 8), noise_of(noise, 8))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("mode", MODES)
def test_forked_workers_never_share_noise(mode: str):
    noise = NoiseSource(mode=mode)
    noise_of(noise, 4)
    drawn = {_in_child(noise) for _ in range(3)} | {noise_of(noise, 4).numpy().tobytes()}
    assert len(drawn) == 4


def _in_child(noise: NoiseSource) -> bytes:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, noise_of(noise, 4).numpy().tobytes())
        os._exit(0)
    os.waitpid(pid, 0)
    drawn = os.read(read, 64)
    os.close(read)
    os.close(write)
    return drawn


def test_threads_never_share_noise():
    noise, seen = NoiseSource(), []
    threads = [
        threading.Thread(target=lambda: seen.extend(noise_of(noise, 1000, torch.float64).tolist())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 8000
    assert stats.kstest(seen, stats.norm.cdf).pvalue > ALPHA


@pytest.mark.parametrize("mode", MODES)
def test_names_shapes_precisions_and_order_are_kept_and_the_input_is_not_changed(mode: str):
    tensors = {
        "half": zeros(3, dtype=torch.bfloat16),
        "double": torch.ones((2, 2), dtype=torch.float64, requires_grad=True),
        "scalar": torch.tensor(1.5),
        "turned": torch.arange(6.0).view(2, 3).T,
        "empty": zeros(0, 4),
        "short": zeros(2, dtype=torch.float16),
    }
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    noisy = NoiseSource(SeededSource(22), mode).add(tensors, 1e-3)
    assert list(noisy) == list(tensors)
    for name, tensor in tensors.items():
        assert (noisy[name].shape, noisy[name].dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(tensor.detach(), before[name])
        assert torch.allclose(noisy[name].double(), tensor.detach().double(), atol=0.1)
        assert not noisy[name].requires_grad
        assert not tensor.numel() or not torch.equal(noisy[name], before[name])


@pytest.mark.parametrize("mode", MODES)
def test_no_tensors_and_empty_tensors_are_allowed(mode: str):
    assert NoiseSource(mode=mode).add({}, 1.0) == {}
    assert NoiseSource(mode=mode).add({"x": zeros(0)}, 1.0)["x"].shape == (0,)


@pytest.mark.parametrize("count", [1, 2, 3, 2**18 - 1, 2**18, 2**18 + 1])
@pytest.mark.parametrize("mode", MODES)
def test_every_number_gets_noise(mode: str, count: int):
    assert int((noise_of(NoiseSource(SeededSource(23), mode), count, torch.float64) == 0).sum()) == 0


@pytest.mark.parametrize("mode", MODES)
def test_huge_tensors_need_little_memory_besides_the_result(mode: str):
    """Counted by the system in a new process: 100 MB in and out, and no more than the pass's arrays besides."""
    code = (
        "import resource, torch; from dpfed.training.noise import NoiseSource\n"
        "torch.set_num_threads(1)\n"
        f"noise = NoiseSource(mode={mode!r}); x = torch.zeros(25_000_000); noise.add({{'x': x[:300_000]}}, 1.0)\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "x.add_(0.0); before = peak(); noise.add({'x': x}, 1.0); print((peak() - before) / 1024)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 150


@pytest.mark.parametrize("std", [math.nan, math.inf, 0.0, -1.0, True, None])
@pytest.mark.parametrize("mode", MODES)
def test_a_std_that_is_no_positive_number_is_refused(mode: str, std: object):
    with pytest.raises(InvalidArgument, match="std must be a positive finite number"):
        NoiseSource(mode=mode).add({"x": zeros(2)}, std)


@pytest.mark.parametrize("std", [1e-40, 1e35])
def test_noise_that_would_vanish_or_overflow_in_float32_is_refused(std: float):
    with pytest.raises(InvalidArgument, match="std must be from"):
        NoiseSource().add({"x": zeros(2)}, std)


def test_noise_beyond_the_precision_of_the_tensor_is_refused():
    with pytest.raises(InvalidArgument, match="beyond the numbers of"):
        NoiseSource().add({"half": zeros(1000, dtype=torch.float16)}, 1e6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("mode", MODES)
def test_numbers_that_are_not_finite_are_refused(mode: str, bad: float):
    with pytest.raises(InvalidArgument, match="tensors must be finite"):
        NoiseSource(mode=mode).add({"x": torch.tensor([0.0, bad])}, 1.0)


def test_a_sum_that_overflows_is_not_taken_for_infinity():
    assert bool(NoiseSource().add({"x": torch.full((4,), 3e38)}, 1.0)["x"].isfinite().all())


@pytest.mark.parametrize("bad", [torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.complex64), [0.0]])
def test_what_is_no_float_tensor_is_refused(bad: object):
    with pytest.raises(InvalidArgument, match="float64, float32, bfloat16 or float16"):
        NoiseSource().add({"x": bad}, 1.0)


def test_sparse_tensors_are_refused():
    with pytest.raises(InvalidArgument, match="to_dense"):
        NoiseSource().add({"x": torch.eye(3).to_sparse()}, 1.0)


def test_an_unknown_mode_is_refused():
    with pytest.raises(InvalidArgument, match="'float' or 'grid'"):
        NoiseSource(mode="secure")


def test_each_mode_names_its_arithmetic():
    assert NoiseSource().arithmetic == "ideal arithmetic"
    assert NoiseSource(mode="grid").arithmetic == "grid"


# --- the grid ---


def test_grid_noise_lies_on_the_grid_whatever_the_data():
    noise = NoiseSource(SeededSource(24), "grid")
    x = SeededSource(25).normal(1000)
    noisy = noise.add({"x": torch.from_numpy(x)}, 0.7)["x"].numpy()
    assert np.all(noisy % noise.grid(0.7) == 0)
    assert not np.signbit(noisy[noisy == 0]).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_grid_noise_does_not_depend_on_the_data(dtype: torch.dtype):
    x = torch.from_numpy(SeededSource(26).normal(1001)).to(dtype)
    grid = NoiseSource(mode="grid").grid(2.0)
    noise = NoiseSource(SeededSource(27), "grid").add({"x": zeros(1001, dtype=torch.float64)}, 2.0)["x"]
    noisy = NoiseSource(SeededSource(27), "grid").add({"x": x}, 2.0)["x"]
    assert torch.equal(noisy, ((x.double() / grid).round() * grid + noise).to(dtype))


@pytest.mark.parametrize("byte", [0, 255], ids=["a sine of +0", "a radius of -0"])
def test_a_zero_of_the_grid_does_not_show_the_sign_of_what_was_rounded(byte: int):
    """These sources make noise that is rounded to a zero of either sign, so the rounded data alone are left."""
    noise = NoiseSource(_Fixed(byte, 255), "grid")
    for x in (-1e-20, 1e-20):
        noisy = noise.add({"x": torch.tensor([x, x], dtype=torch.float64)}, 1.0)["x"]
        zeros = noisy[noisy == 0]
        assert len(zeros)
        assert not torch.signbit(zeros).any()


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=20),
    st.floats(1e-3, 10),
    st.floats(1e-3, 10),
    st.integers(0, 2**32 - 1),
)
def test_rounding_moves_neighbours_apart_by_no_more_than_the_grid_sensitivity(
    values: list[float], clip: float, std: float, seed: int
):
    noise = NoiseSource(mode="grid")
    grid = noise.grid(std)
    one = np.array(values)
    step = SeededSource(seed).normal(len(values))
    other = one + clip * step / np.linalg.norm(step)
    moved = [Fraction(a) - Fraction(b) for a, b in zip(np.rint(one / grid), np.rint(other / grid), strict=True)]
    norm_squared = sum(x * x for x in moved) * Fraction(grid) ** 2
    really = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(one, other, strict=True))
    clip_really = math.sqrt(really) * (1 + 1e-15)  # dividing by the norm rounds as well
    assert norm_squared <= Fraction(grid_sensitivity(clip_really, len(values), grid)) ** 2


def test_the_grid_sensitivity_is_the_formula_rounded_up():
    assert grid_sensitivity(1.0, 10**6, 2.0**-20) == pytest.approx(1 + 1000 * 2.0**-20, rel=1e-15)
    assert Fraction(grid_sensitivity(1.0, 2, 0.5)) ** 2 > Fraction(3, 2) + 2 * Fraction(1, 2) * Fraction(14142, 10000)
    assert grid_sensitivity(0.3, 7, 0.0) == 0.3
    assert grid_sensitivity(1.0, 1, 2.0**-60) > 1.0, "the nearest number would be too low"


@given(st.integers(1, 10**12))
def test_the_grid_sensitivity_is_never_below_the_root_of_the_dimension(dimension: int):
    assert (Fraction(grid_sensitivity(2.0**-30, dimension, 1.0)) - Fraction(2) ** -30) ** 2 >= dimension


@given(st.floats(0.01, 100), st.floats(1e-6, 1e6), st.integers(1, 10**12))
def test_the_std_pays_for_the_grid_that_it_makes(multiplier: float, clip: float, dimension: int):
    for mode in MODES:
        noise = NoiseSource(mode=mode)
        std = noise.std(multiplier, clip, dimension)
        assert Fraction(std) >= Fraction(multiplier) * Fraction(grid_sensitivity(clip, dimension, noise.grid(std)))
        assert std <= multiplier * clip * (1 + 1e-3 * multiplier)


def test_a_std_that_reaches_the_next_power_of_two_pays_for_the_coarser_grid():
    noise = NoiseSource(mode="grid")
    clip = math.nextafter(1.0, 0)
    std = noise.std(1.0, clip, 100)
    assert std >= 1.0
    assert Fraction(std) >= Fraction(grid_sensitivity(clip, 100, noise.grid(1.0)))


# --- Laplace ---


def laplace_of(noise: NoiseSource, count: int = N, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return noise.add({"x": zeros(count, dtype=dtype)}, scale, "l1")["x"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_l1_noise_is_laplaces_by_kolmogorov_and_smirnov(dtype: torch.dtype, mode: str):
    drawn = laplace_of(NoiseSource(SeededSource(31), mode), dtype=dtype, scale=3.0).double().numpy() / 3.0
    assert stats.kstest(drawn, stats.laplace.cdf).pvalue > ALPHA


@pytest.mark.parametrize("mode", MODES)
def test_l1_noise_has_the_scale_asked_for_and_equally_likely_cells_by_chi_square(mode: str):
    """|x|/b is exponential, so that twice the sum of N of them is χ² with 2N degrees of freedom."""
    drawn = laplace_of(NoiseSource(SeededSource(32), mode), scale=0.5).double().numpy() / 0.5
    low, high = stats.chi2.ppf([ALPHA / 4, 1 - ALPHA / 4], 2 * N)
    assert low < 2 * np.abs(drawn).sum() < high
    counts = np.histogram(stats.laplace.cdf(drawn), bins=100, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > ALPHA / 2


@pytest.mark.parametrize("mode", MODES)
def test_the_tail_of_l1_noise_is_exponential_too_and_goes_beyond_40_scales(mode: str):
    drawn = laplace_of(NoiseSource(SeededSource(33), mode), 1 << 20, torch.float64).abs().numpy()
    assert stats.kstest(drawn[drawn > 7] - 7, stats.expon.cdf).pvalue > ALPHA
    assert float(laplace_of(NoiseSource(_Fixed(0, 0), mode), 2).abs().min()) > 40.0


def test_l1_noise_lies_on_the_grid_whatever_the_data_and_does_not_depend_on_them():
    x = torch.from_numpy(SeededSource(34).normal(1001))
    grid = NoiseSource(mode="grid").grid(0.7)
    noise = laplace_of(NoiseSource(SeededSource(35), "grid"), 1001, torch.float64, 0.7)
    noisy = NoiseSource(SeededSource(35), "grid").add({"x": x}, 0.7, "l1")["x"]
    assert torch.equal(noisy, (x / grid).round() * grid + noise)
    assert bool((noisy % grid == 0).all())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 3, 2**18 + 1])
def test_every_number_gets_l1_noise_of_its_own(mode: str, count: int):
    drawn = laplace_of(NoiseSource(SeededSource(36), mode), count, torch.float64)
    assert drawn.unique().numel() > 0.999 * count
    assert int((drawn == 0).sum()) == 0


@given(st.floats(0.01, 100), st.floats(1e-6, 1e6), st.integers(1, 10**9))
def test_the_scale_of_l1_noise_pays_for_the_grid_that_it_makes(multiplier: float, clip: float, dimension: int):
    noise = NoiseSource(mode="grid")
    scale, grid = noise.std(multiplier, clip, dimension, "l1"), noise.grid(noise.std(multiplier, clip, dimension, "l1"))
    assert Fraction(scale) >= Fraction(multiplier) * (Fraction(clip) + Fraction(grid) * dimension)
    assert NoiseSource().std(multiplier, clip, dimension, "l1") == NoiseSource().std(multiplier, clip, 1)


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ([1.0, -2.0], True),
        ([], True),
        ([3e38, 3e38, -1.0], True),
        ([math.inf, 1.0], False),
        ([math.inf, -math.inf], False),
        ([1.0, math.nan], False),
        ([3e38, 3e38, -math.inf], False),
    ],
)
def test_what_is_finite_is_told_by_every_number_also_where_their_sum_overflows(values: list[float], answer: bool):
    assert is_finite(torch.tensor(values)) is answer
    assert is_finite(torch.tensor(values, requires_grad=True)) is answer


@pytest.mark.parametrize("function", ["log", "cos", "sin"])
def test_the_functions_behind_float32_noise_are_as_precise_as_the_margin_assumes(function: str):
    """Units in the last place by which numpy may be off; all together, and some roundings, must be below 8."""
    words = SeededSource(21).words(1 << 20) >> np.uint64(33)
    words = words[(words >= 1 << 21) & (words < 2**31 - (1 << 21))]
    given = words.astype(np.int32).astype(np.float32) * np.float32(2.0**-31 * (1 if function == "log" else math.pi))
    found, exact = (getattr(np, function)(values) for values in (given, given.astype(np.float64)))
    off = np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert off.max() < (3.83 if function == "log" else 1.49)


def test_noise_for_another_norm_is_refused():
    for call in (lambda: NoiseSource().add({"x": zeros(2)}, 1.0, "linf"), lambda: grid_sensitivity(1.0, 2, 0.0, "l0")):
        with pytest.raises(InvalidArgument, match="norm must be 'l1' or 'l2'"):
            call()


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 2.0**-21), (torch.float64, 2.0**-49)])
def test_a_draw_is_a_little_longer_than_asked_for_which_pays_for_its_rounding(dtype: torch.dtype, rounding: float):
    noisy = torch.zeros(2, dtype=dtype)
    _add_floats_(noisy, torch.ones(2, dtype=dtype), std=1.0)
    laplace = torch.zeros(1, dtype=torch.float64)
    _add_laplace_(laplace, torch.ones(1, dtype=torch.float64), 1.0, 0.0)
    assert bool((noisy > 1 + rounding).all())
    assert float(laplace) > 1
