"""Poisson samples and batches in passes. False-alarm probability 1e-6 per statistical test."""

from __future__ import annotations

import copy
import math
import os
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.plan.local import LocalPlan
from dpfed.plan.tree import TreeNoise
from dpfed.randomness import RandomSource, SeededSource, SystemSource
from dpfed.training.sampling import PassSampler, PoissonSampler, Token, coins, sampler_of

ALPHA = 1e-6


def inclusions(records: int, rate: float, steps: int, source: RandomSource | None = None) -> NDArray[np.bool_]:
    """One row per draw, one column per record."""
    found = np.zeros((steps, records), dtype=bool)
    for draw in PoissonSampler(records, rate, steps, source):
        found[draw.number, draw.indices.numpy()] = True
    return found


# --- the law ---


@pytest.mark.parametrize("seed", [1, None], ids=["seeded", "system"])
@pytest.mark.parametrize("rate", [0.5, 0.1, 1 / 3, 2.0**-8, 1e-3])
def test_each_record_is_drawn_with_the_stated_probability(rate: float, seed: int | None):
    counts = inclusions(50, rate, 4000, seed and SeededSource(seed)).sum(axis=0)
    assert stats.binomtest(int(counts.sum()), 50 * 4000, rate).pvalue > ALPHA / 51
    for count in counts:
        assert stats.binomtest(int(count), 4000, rate).pvalue > ALPHA / 51


def test_records_are_included_independently_of_each_other_in_pairs():
    found = inclusions(40, 0.3, 20_000, SeededSource(2)).astype(float)
    correlations = np.corrcoef(found.T)[np.triu_indices(40, 1)]
    limit = stats.norm.isf(ALPHA / 2 / len(correlations)) / math.sqrt(20_000)
    assert np.abs(correlations).max() < limit
    assert np.abs(correlations).max() > limit / 10  # they vary as those of independent records do


def test_draws_are_independent_of_each_other():
    found = inclusions(20_000, 0.3, 20, SeededSource(3)).astype(float)
    correlations = np.corrcoef(found)[np.triu_indices(20, 1)]
    assert np.abs(correlations).max() < stats.norm.isf(ALPHA / 2 / len(correlations)) / math.sqrt(20_000)


@pytest.mark.parametrize(("records", "rate"), [(1000, 0.01), (300, 0.5), (64, 2.0**-6)])
def test_the_size_of_a_sample_is_binomial_by_chi_square(records: int, rate: float):
    sizes = inclusions(records, rate, 5000, SeededSource(4)).sum(axis=1)
    law = stats.binom(records, rate)
    edges = np.unique(law.ppf(np.linspace(0.02, 0.98, 20)))
    expected = np.diff(np.concatenate([[0.0], law.cdf(edges), [1.0]])) * 5000
    seen = np.bincount(np.searchsorted(edges, sizes), minlength=len(expected))
    assert stats.chisquare(seen, expected).pvalue > ALPHA


@pytest.mark.parametrize("records", [20, 300, 5000])
def test_the_rate_never_depends_on_the_number_of_records(records: int):
    steps = 200_000 // records
    total = int(inclusions(records, 0.05, steps, SeededSource(records)).sum())
    assert stats.binomtest(total, records * steps, 0.05).pvalue > ALPHA


class _Words(RandomSource):
    """A source that gives the words it is told, and no more of them."""

    is_private = False

    def __init__(self, *words: list[int]) -> None:
        super().__init__()
        self.words_left = list(words)

    def _key(self) -> bytes:
        return bytes(32)

    def _child(self, name: str) -> RandomSource:
        return self

    def bytes(self, count: int) -> bytes:
        words = np.array(self.words_left.pop(0), dtype=np.uint16)
        assert words.nbytes == count
        return words.tobytes()


def test_a_record_on_the_edge_of_the_rate_is_decided_by_more_bits():
    rate = Fraction(3, 2**16) + Fraction(5, 2**32) + Fraction(1, 2**48)
    source = _Words([2, 3, 4, 3, 3], [4, 5, 6], [0])
    assert coins(rate, 5, source).tolist() == [True, True, False, True, False]


@pytest.mark.parametrize("last", [0, 1])
def test_the_last_bit_of_a_rate_counts(last: int):
    rate = Fraction(math.nextafter(0.5, 1.0))  # 1/2 + 2⁻⁵³
    source = _Words([2**15], [0], [0], [2**11 - 1 + last])
    assert coins(rate, 1, source).tolist() == [last == 0]


def test_a_rate_of_one_takes_every_record_and_draws_may_be_empty():
    assert inclusions(100, 1.0, 3).all()
    sizes = inclusions(10, 0.01, 100, SeededSource(5)).sum(axis=1)
    assert (sizes == 0).any()
    assert not inclusions(0, 0.5, 3).any()


def test_many_records_are_drawn_in_passes_without_a_seam():
    records = (1 << 20) + 1000
    (draw,) = PoissonSampler(records, 0.1, 1, SeededSource(6))
    assert draw.indices.dtype == torch.int64
    assert bool((draw.indices[1:] > draw.indices[:-1]).all())
    late = int((draw.indices >= 1 << 20).sum())
    assert stats.binomtest(late, 1000, 0.1).pvalue > ALPHA / 2
    assert stats.binomtest(len(draw.indices), records, 0.1).pvalue > ALPHA / 2


# --- draws and tokens ---


def test_steps_are_the_draws_of_the_whole_run():
    sampler = PoissonSampler(10, 0.5, 5)
    first = [draw.number for draw, _ in zip(sampler, range(2), strict=False)]
    assert first == [0, 1]
    rest = [draw.number for draw in sampler]
    assert rest[-1] == 4
    assert len(set(first + rest)) == len(first + rest)
    assert len(sampler) == 0
    with pytest.raises(InvalidArgument, match="all 5 draws were taken"):
        iter(sampler)


def test_a_token_is_used_once():
    draws = list(PoissonSampler(10, 0.5, 2))
    draws[0].token.use()
    with pytest.raises(InvalidArgument, match="draw 0 was charged already"):
        draws[0].token.use()
    draws[1].token.use()


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_token_is_not_copied(twin: object):
    with pytest.raises(TypeError, match="used twice"):
        twin(Token(0))


def test_what_is_shown_of_a_draw_tells_nothing_of_the_sample():
    (draw,) = PoissonSampler(10, 0.5, 1)
    assert repr(draw) == "Draw(number=0, token=Token(number=0))"


def test_a_seed_repeats_the_samples_and_is_stamped():
    one, other = (inclusions(100, 0.3, 5, SeededSource(7)) for _ in range(2))
    assert np.array_equal(one, other)
    assert "NOT PRIVATE" in repr(PoissonSampler(10, 0.5, 1, SeededSource(7)))
    assert not PoissonSampler(10, 0.5, 1, SeededSource(7)).is_private
    assert PoissonSampler(10, 0.5, 1).is_private


def test_two_runs_draw_different_samples():
    assert not np.array_equal(inclusions(100, 0.5, 5, SystemSource()), inclusions(100, 0.5, 5, SystemSource()))
    assert not np.array_equal(inclusions(100, 0.5, 5), inclusions(100, 0.5, 5))


def _in_child(work: object) -> bytes:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, work())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_processes_never_draw_the_same_samples():
    sampler = PoissonSampler(200, 0.5, 10)
    next(iter(sampler))

    def sample() -> bytes:
        return next(iter(sampler)).indices.numpy().tobytes()

    assert len({_in_child(sample), _in_child(sample), sample()}) == 3


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_token_is_refused_in_a_forked_process():
    (draw,) = PoissonSampler(10, 0.5, 1)

    def use() -> bytes:
        try:
            draw.token.use()
        except InvalidArgument as refusal:
            return str(refusal).encode()
        return b"used"

    assert b"another process" in _in_child(use)
    draw.token.use()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-1, 0.5, 1), "size_of_data"),
        ((1.5, 0.5, 1), "size_of_data"),
        ((10, 0.0, 1), "sample_rate"),
        ((10, 1.1, 1), "sample_rate"),
        ((10, math.nan, 1), "sample_rate"),
        ((10, 0.5, 0), "steps"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: tuple[int, float, int], name: str):
    with pytest.raises(InvalidArgument, match=name):
        PoissonSampler(*arguments)


# --- batches in passes ---


def inclusions_in_passes(sampler: PassSampler) -> NDArray[np.bool_]:
    """One row per draw, one column per record."""
    found = np.zeros((sampler.steps, sampler.size_of_data), dtype=bool)
    for draw in sampler:
        found[draw.number, draw.indices.numpy()] = True
    return found


@pytest.mark.parametrize(("pass_steps", "steps", "m"), [(7, 7, 1), (7, 5, 1), (7, 21, 3), (7, 17, 3), (1, 4, 4)])
def test_a_record_takes_part_once_a_pass_and_always_a_pass_apart(pass_steps: int, steps: int, m: int) -> None:
    found = inclusions_in_passes(PassSampler(200, pass_steps, steps, m))
    for record in found.T:
        when = np.flatnonzero(record)
        assert len(when) <= m
        assert (np.diff(when) == pass_steps).all()
    if steps >= pass_steps:
        assert (found[:pass_steps].sum(axis=0) == 1).all()


def test_places_are_uniform_and_each_records_own() -> None:
    """A chi-squared test of the places of all records, and of the pairs of places of neighbours."""
    places = np.argmax(inclusions_in_passes(PassSampler(60_000, 5, 5, source=SeededSource(1))), axis=0)
    assert stats.chisquare(np.bincount(places, minlength=5)).pvalue > ALPHA
    assert stats.chisquare(np.bincount(5 * places[::2] + places[1::2], minlength=25)).pvalue > ALPHA


def test_the_size_of_a_batch_follows_from_the_records_alone() -> None:
    """Not batch_size records each: a batch filled up from the next one would move others when one is left out."""
    sizes = inclusions_in_passes(PassSampler(100, 10, 10, source=SeededSource(2))).sum(axis=1)
    assert sizes.sum() == 100
    assert len(set(sizes.tolist())) > 1


def test_a_pass_that_was_not_declared_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="8 steps are more than 1 passes of 7"):
        PassSampler(200, 7, 8)
    with pytest.raises(InvalidArgument, match="max_participations"):
        PassSampler(200, 7, 15, 2)


def test_there_is_no_second_run_in_one_sampler() -> None:
    sampler = PassSampler(20, 2, 2)
    assert len(list(sampler)) == 2
    with pytest.raises(InvalidArgument, match="all 2 draws were taken"):
        iter(sampler)


def test_a_draw_is_charged_once() -> None:
    draw = next(iter(PassSampler(20, 2, 2)))
    draw.token.use()
    with pytest.raises(InvalidArgument, match="charged already"):
        draw.token.use()


def test_no_records_make_empty_batches() -> None:
    assert [len(draw.indices) for draw in PassSampler(0, 3, 3)] == [0, 0, 0]


def test_the_plan_says_how_batches_are_drawn() -> None:
    plan = LocalPlan(size=20, batch_size=10, steps=2, tree=TreeNoise())
    found = sampler_of(plan, 25, 2, SystemSource())
    assert isinstance(found, PassSampler)
    assert (found.size_of_data, found.pass_steps, found.max_participations) == (25, 2, 1)
    plain = sampler_of(LocalPlan(size=20, batch_size=10, steps=2), 25, 2, SystemSource())
    assert isinstance(plain, PoissonSampler)


def test_a_seeded_sampler_says_that_it_is_not_private() -> None:
    assert repr(PassSampler(5, 2, 2, source=SeededSource(1))) == "PassSampler(pass_steps=2, steps=2) [NOT PRIVATE]"
    assert torch.equal(
        next(iter(PassSampler(5, 2, 2, source=SeededSource(1)))).indices,
        next(iter(PassSampler(5, 2, 2, source=SeededSource(1)))).indices,
    )
