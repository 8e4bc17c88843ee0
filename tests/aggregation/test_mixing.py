"""Mixing replaces updates by means of their nearest or of random buckets, each update in exactly one of these."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.aggregation.mixing import bucketing, nnm
from dpfed.errors import BreakdownError, InvalidArgument
from dpfed.randomness import SeededSource
from robust_cases import make_honest


def test_each_update_becomes_the_mean_of_its_nearest():
    values = make_honest(7, 4)
    near = ((values[:, None] - values[None]) ** 2).sum(axis=2).argsort(axis=1)[:, :5]
    assert np.allclose(nnm(values, max_faulty=2), values[near].mean(axis=1))


def test_a_faulty_update_far_out_reaches_no_honest_one():
    values = make_honest(7, 4)
    values[3] = 1e9
    mixed = np.delete(nnm(values, max_faulty=1), 3, axis=0)
    assert np.allclose(mixed, np.delete(values, 3, axis=0).mean(axis=0))


def test_mixing_half_of_the_updates_away_is_refused():
    with pytest.raises(BreakdownError):
        nnm(make_honest(4, 2), max_faulty=2)


@pytest.mark.parametrize(("count", "size"), [(6, 2), (7, 3), (5, 9), (4, 1)])
def test_every_update_is_in_one_bucket(count, size):
    buckets = bucketing(np.eye(count), bucket_size=size, source=SeededSource(5))
    assert len(buckets) == -(-count // size)
    assert ((buckets > 0).sum(axis=0) == 1).all()
    assert np.allclose(buckets.sum(axis=1), 1)


def test_buckets_are_drawn_anew_and_uniformly():
    """Each of 15 pairs of 6 shares a bucket with chance 1/5: at 3000 draws 6 standard deviations are 0.044 (1e-7)."""
    source, together = SeededSource(6), np.zeros((6, 6))
    for _ in range(3000):
        shared = bucketing(np.eye(6), bucket_size=2, source=source)
        together += (shared.T @ shared) > 0
    pairs = together[np.triu_indices(6, 1)] / 3000
    assert np.abs(pairs - 0.2).max() < 0.044


def test_a_bucket_holds_at_least_one():
    with pytest.raises(InvalidArgument, match="bucket_size"):
        bucketing(np.eye(3), bucket_size=0, source=SeededSource(1))
