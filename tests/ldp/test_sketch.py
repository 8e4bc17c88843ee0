"""Count-mean sketches. False-alarm probability 1e-6 per test of a law."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.ldp import CountMeanSketch, HadamardSketch, packed
from dpfed.randomness import SeededSource
from support.local_reports import known


@pytest.mark.parametrize("case", known("cms"), ids=lambda case: case["id"])
def test_chances_scales_and_noise_are_the_known_ones(case):
    given = case["inputs"]
    sizes = {"buckets": given["m"], "functions": given["k"]}
    rows, signs = CountMeanSketch(given["eps"], 100, **sizes), HadamardSketch(given["eps"], 100, **sizes)
    found = {
        "flip": rows.flip_chance,
        "c": rows.scale,
        "per_user_priv_var": (rows.scale**2 - 1) / 4,
        "hcms_flip": signs.flip_chance,
        "hcms_c": signs.scale,
        "hcms_per_user_var": signs.scale**2,
    }
    assert found == pytest.approx(case["expected"], rel=case["tol"])


@pytest.mark.parametrize("kind", [CountMeanSketch, HadamardSketch])
def test_collisions_do_not_go_away_with_more_users(kind):
    sketch = kind(8.0, 10, buckets=16, functions=4)
    worst, spread = sketch.variance(10**12), sketch.variance(10**12, others=[0.1] * 9 + [0.1])
    assert worst == pytest.approx((16 / 15) ** 2 * (1 / 16) * (15 / 16) / 4, rel=1e-3)
    assert spread == pytest.approx(worst / 10, rel=1e-3)


def test_every_bit_of_a_row_is_flipped_with_its_chance():
    sketch = CountMeanSketch(1.0, 10, buckets=12, functions=1)
    bits = packed.unpack(sketch.randomize(np.full(20_000, 7), SeededSource(1))["bits"], 12)
    own = int(sketch.positions(np.array([0]), np.array([7]))[0])
    law = np.where(np.arange(12) == own, 1 - sketch.flip_chance, sketch.flip_chance)
    tests = [stats.binomtest(int(ones), 20_000, chance) for ones, chance in zip(bits.sum(axis=0), law, strict=True)]
    assert min(test.pvalue for test in tests) > 1e-6 / 12


def test_functions_and_entries_do_not_depend_on_the_value():
    sketch = HadamardSketch(1.0, 10, buckets=16, functions=8)
    ours, theirs = (sketch.randomize(np.full(500, value), SeededSource(1)) for value in (0, 9))
    assert np.array_equal(ours[["function", "entry"]], theirs[["function", "entry"]])


def test_whether_two_values_meet_a_third_is_independent():
    """Over 20,000 functions; lines instead of polynomials would fail: a value's neighbours meet it together."""
    sketch = CountMeanSketch(1.0, 10, buckets=4, functions=20_000)
    functions = np.arange(20_000)
    third, below, above = (sketch.positions(functions, np.full(20_000, value)) for value in (5, 4, 6))
    meets = 2 * (below == third) + (above == third)
    law = np.array([9, 3, 3, 1]) / 16
    assert stats.chisquare(np.bincount(meets, minlength=4), 20_000 * law).pvalue > 1e-6


def test_large_domains_are_looked_up_in_parts():
    sketch = HadamardSketch(6.0, 5000, buckets=64, functions=16)
    found = sketch.estimate(sketch.randomize(np.full(3000, 4321), SeededSource(3)))
    assert int(np.argmax(found.frequencies)) == 4321


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (CountMeanSketch, {"buckets": 1}),
        (HadamardSketch, {"buckets": 100}),
        (CountMeanSketch, {"functions": 0}),
        (HadamardSketch, {"functions": 1 << 17}),
    ],
)
def test_sketches_of_impossible_sizes_are_refused(kind, sizes):
    with pytest.raises(InvalidArgument, match=f"{next(iter(sizes))} must be"):
        kind(1.0, 10, **sizes)


@pytest.mark.parametrize("kind", [CountMeanSketch, HadamardSketch])
def test_reports_of_functions_that_the_sketch_does_not_have_are_refused(kind):
    large, small = (kind(1.0, 10, buckets=16, functions=functions) for functions in (64, 2))
    with pytest.raises(InvalidArgument, match="does not have"):
        small.estimate(large.randomize(np.zeros(100, dtype=int), SeededSource(1)))
