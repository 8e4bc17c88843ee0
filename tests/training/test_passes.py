"""Batches in passes: who is in them, how often and how far apart. False-alarm probability 1e-6 per statistical test."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.local_plan import LocalPlan
from dpfed.randomness import SeededSource, SystemSource
from dpfed.training.passes import PassSampler, sampler_of
from dpfed.training.sampling import PoissonSampler
from dpfed.tree_noise import TreeNoise

ALPHA = 1e-6


def inclusions(sampler: PassSampler) -> NDArray[np.bool_]:
    """One row per draw, one column per record."""
    found = np.zeros((sampler.steps, sampler.size_of_data), dtype=bool)
    for draw in sampler:
        found[draw.number, draw.indices.numpy()] = True
    return found


@pytest.mark.parametrize(("pass_steps", "steps", "m"), [(7, 7, 1), (7, 5, 1), (7, 21, 3), (7, 17, 3), (1, 4, 4)])
def test_a_record_takes_part_once_a_pass_and_always_a_pass_apart(pass_steps: int, steps: int, m: int) -> None:
    found = inclusions(PassSampler(200, pass_steps, steps, m))
    for record in found.T:
        when = np.flatnonzero(record)
        assert len(when) <= m
        assert (np.diff(when) == pass_steps).all()
    if steps >= pass_steps:
        assert (found[:pass_steps].sum(axis=0) == 1).all()


def test_places_are_uniform_and_each_records_own() -> None:
    """A chi-squared test of the places of all records, and of the pairs of places of neighbours."""
    places = np.argmax(inclusions(PassSampler(60_000, 5, 5, source=SeededSource(1))), axis=0)
    assert stats.chisquare(np.bincount(places, minlength=5)).pvalue > ALPHA
    assert stats.chisquare(np.bincount(5 * places[::2] + places[1::2], minlength=25)).pvalue > ALPHA


def test_the_size_of_a_batch_follows_from_the_records_alone() -> None:
    """Not batch_size records each: a batch filled up from the next one would move others when one is left out."""
    sizes = inclusions(PassSampler(100, 10, 10, source=SeededSource(2))).sum(axis=1)
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
