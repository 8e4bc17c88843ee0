"""Noise bits: right distributions, no shared streams, no cut tails. False-alarm probability 1e-6 per test."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.randomness import RandomSource, SeededSource, SystemSource, or_system

Make = Callable[[], RandomSource]

N = 100_000
ALPHA = 1e-6

SOURCES = [partial(SeededSource, 20_250_101), SystemSource]


@pytest.mark.parametrize("make", SOURCES, ids=["seeded", "system"])
@pytest.mark.parametrize(
    ("draw", "law"),
    [
        (lambda s: s.uniform(N), stats.uniform()),
        (lambda s: s.normal(N), stats.norm()),
        (lambda s: s.laplace(N), stats.laplace()),
        (lambda s: s.exponential(N), stats.expon()),
        (lambda s: s.gumbel(N), stats.gumbel_r()),
    ],
    ids=["uniform", "normal", "laplace", "exponential", "gumbel"],
)
def test_draws_follow_their_law(make: Make, draw: Callable[[RandomSource], np.ndarray], law: object) -> None:
    assert stats.kstest(draw(make()), law.cdf).pvalue > ALPHA


@pytest.mark.parametrize("make", SOURCES, ids=["seeded", "system"])
def test_normal_variance_is_one_by_chi_square(make: Make) -> None:
    total = float(np.sum(make().normal(N) ** 2))
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], N)
    assert low < total < high


def test_both_halves_of_a_box_muller_pair_are_uncorrelated() -> None:
    pairs = SeededSource(3).normal((N, 2))
    correlation = np.corrcoef(pairs.T)[0, 1]
    radii = np.corrcoef((pairs**2).T)[0, 1]
    limit = stats.norm.isf(ALPHA / 4) / np.sqrt(N)
    assert abs(correlation) < limit
    assert abs(radii) < 3 * limit


class _Fixed(RandomSource):
    """A source that repeats one word pattern, to reach values no test could wait for."""

    is_private = False

    def __init__(self, pattern: bytes) -> None:
        super().__init__()
        self.pattern = pattern

    def _key(self) -> bytes:
        return bytes(32)

    def _child(self, name: str) -> RandomSource:
        return self

    def bytes(self, count: int) -> bytes:
        return (self.pattern * count)[:count]


@pytest.mark.parametrize("pattern", [bytes(16), b"\xff" * 16], ids=["all zeros", "all ones"])
def test_extreme_words_give_finite_numbers(pattern: bytes) -> None:
    source = _Fixed(pattern)
    for draws in (source.normal(2), source.laplace(2), source.exponential(2), source.uniform(2)):
        assert np.all(np.isfinite(draws))
    assert np.all(source.uniform(2) < 1)


def test_normal_tail_reaches_beyond_nine_standard_deviations() -> None:
    assert _Fixed(bytes(16)).normal(2)[0] > 9.4


def test_laplace_tail_reaches_beyond_forty_scales() -> None:
    assert _Fixed(bytes(16)).laplace(1)[0] > 43


def test_uniforms_use_all_53_bits() -> None:
    scaled = SeededSource(1).uniform(1000) * 2.0**53
    assert np.array_equal(scaled, np.rint(scaled))
    assert np.any(scaled % 2 == 1)


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 100])
def test_integers_are_uniform_below_the_bound(bound: int) -> None:
    draws = SeededSource(bound).integers(bound, N)
    counts = np.bincount(draws, minlength=bound)
    assert counts.size == bound
    if bound > 1:
        assert stats.chisquare(counts).pvalue > ALPHA


def test_integers_reach_both_ends_of_the_widest_range() -> None:
    draws = SeededSource(5).integers(2**63, 1000)
    assert draws.min() >= 0
    assert draws.max() > 2**62


@pytest.mark.parametrize("bound", [0, -1, 2**63 + 1, 1.5, True])
def test_a_bound_that_is_no_count_is_refused(bound: object) -> None:
    with pytest.raises(InvalidArgument, match="bound"):
        SeededSource(1).integers(bound)


@pytest.mark.parametrize("shape", [(), 0, 1, 7, (2, 3), (3, 0, 2)])
def test_shape_is_the_one_asked_for(shape: int | tuple[int, ...]) -> None:
    source = SeededSource(1)
    expected = (shape,) if isinstance(shape, int) else shape
    for draws in (
        source.uniform(shape),
        source.normal(shape),
        source.laplace(shape),
        source.integers(9, shape),
    ):
        assert draws.shape == expected


def test_long_draws_do_not_repeat_between_chunks() -> None:
    draws = SeededSource(9).normal(200_000)
    assert np.unique(draws).size == draws.size


@pytest.mark.parametrize("size", [0, 1, 15, 2**16, 2**16 + 15, 3 * 2**16 + 7])
def test_filling_an_array_gives_the_bytes_that_reading_gives(size: int) -> None:
    filling, reading = SeededSource(6), SeededSource(6)
    array = np.zeros(size, dtype=np.uint8)
    filling.fill(array)
    assert array.tobytes() == reading.bytes(size)
    assert filling.bytes(8) == reading.bytes(8)


def test_two_system_sources_share_nothing() -> None:
    assert SystemSource().bytes(32) != SystemSource().bytes(32)


def test_a_source_never_repeats_itself() -> None:
    source = SystemSource()
    assert source.bytes(32) != source.bytes(32)


@pytest.mark.parametrize("make", SOURCES, ids=["seeded", "system"])
def test_streams_of_different_names_differ_and_one_name_goes_on(make: Make) -> None:
    source = make()
    noise, sampling = source.stream("noise"), source.stream("sampling")
    assert len({source.bytes(32), noise.bytes(32), sampling.bytes(32), source.stream("noise").bytes(32)}) == 4
    assert source.stream("noise") is noise


def test_nested_stream_names_do_not_collide() -> None:
    source = SeededSource(1)
    assert source.stream("a").stream("b").bytes(16) != source.stream("ab").bytes(16)


def test_equal_seeds_agree_and_different_seeds_differ() -> None:
    assert np.array_equal(SeededSource(1).normal(5), SeededSource(1).normal(5))
    assert not np.array_equal(SeededSource(1).normal(5), SeededSource(2).normal(5))


def test_a_seeded_source_and_its_streams_say_they_are_not_private() -> None:
    source = SeededSource(1).stream("noise")
    assert not source.is_private
    assert "NOT PRIVATE" in repr(source)
    assert SystemSource().is_private


def test_a_copied_system_source_does_not_repeat_the_original() -> None:
    source = SystemSource()
    source.bytes(1)
    for twin in (copy.copy(source), copy.deepcopy(source), pickle.loads(pickle.dumps(source))):  # noqa: S301
        assert twin.bytes(32) != source.bytes(32)


def test_a_seeded_source_refuses_to_be_copied() -> None:
    with pytest.raises(TypeError, match="start over"):
        copy.deepcopy(SeededSource(1))


def test_threads_never_get_the_same_bytes() -> None:
    source = SystemSource()
    seen: list[bytes] = []
    threads = [threading.Thread(target=lambda: seen.extend(source.bytes(16) for _ in range(200))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 1600


def _draw_in_child(source: RandomSource) -> bytes:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, source.bytes(32) + source.stream("noise").bytes(32))
        os._exit(0)
    os.waitpid(pid, 0)
    drawn = os.read(read, 64)
    os.close(read)
    os.close(write)
    return drawn


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("make", SOURCES, ids=["seeded", "system"])
def test_parent_and_children_never_share_noise(make: Make) -> None:
    source = make()
    source.bytes(1)
    source.stream("noise").bytes(1)
    children = [_draw_in_child(source) for _ in range(2 if source.is_private else 1)]
    mine = source.bytes(32), source.stream("noise").bytes(32)
    everything = {*mine, *(child[:32] for child in children), *(child[32:] for child in children)}
    assert len(everything) == 2 + 2 * len(children)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_seeded_source_for_a_name_that_comes_once_is_the_same_in_every_process() -> None:
    class Late:
        def __init__(self, source: RandomSource) -> None:
            self.bytes = lambda count: source.once("round 1").bytes(count)
            self.stream = lambda name: source.once("round 1").stream(name)

    source, made = SeededSource(8), SeededSource(8).once("round 1")
    expected = made.bytes(32) + made.stream("noise").bytes(32)
    assert _draw_in_child(Late(source)) == expected
    assert _draw_in_child(Late(SystemSource())) != expected
    inherited = SeededSource(8).once("round 1")
    drawn = _draw_in_child(inherited)
    assert drawn[:32] != expected[:32]
    assert drawn[32:] != expected[32:]


def test_none_means_the_system_source_of_the_process() -> None:
    assert or_system(None) is or_system(None)
    assert or_system(None).is_private
    seeded = SeededSource(1)
    assert or_system(seeded) is seeded


def test_a_numpy_generator_is_refused_as_a_source() -> None:
    with pytest.raises(InvalidArgument, match="RandomSource"):
        or_system(np.random.default_rng(1))


@pytest.mark.parametrize("seed", [1.5, "seed", True, None])
def test_a_seed_that_is_no_whole_number_is_refused(seed: object) -> None:
    with pytest.raises(InvalidArgument, match="seed"):
        SeededSource(seed)


def test_the_cipher_is_loaded_at_the_first_draw() -> None:
    code = (
        "import sys, dpfed.randomness as r; s = r.SystemSource(); assert 'cryptography' not in sys.modules;"
        "s.bytes(1); assert 'cryptography' in sys.modules; assert 'scipy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
