"""Unary encodings. False-alarm probability 1e-6 per test of a law."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.ldp import OptimizedUnary, SymmetricUnary, packed
from dpfed.randomness import SeededSource
from support.local_reports import known


@pytest.mark.parametrize("case", [*known("ldp_sue"), *known("ldp_oue")], ids=lambda case: case["id"])
def test_chances_and_variances_are_the_known_ones(case):
    given, expected = case["inputs"], case["expected"]
    oracle = (SymmetricUnary if case["group"] == "ldp_sue" else OptimizedUnary)(given["eps"], 100)
    found = {
        "p": float(oracle.chances[0]),
        "q": float(oracle.chances[1]),
        "var0": oracle.variance(given["n"]),
        "var": oracle.variance(given["n"], given.get("f", 0.0)),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=case["tol"])


@pytest.mark.parametrize("kind", [SymmetricUnary, OptimizedUnary])
@pytest.mark.parametrize("domain", [3, 8, 13])
def test_every_bit_follows_its_law(kind, domain):
    oracle = kind(1.0, domain)
    own, other = map(float, oracle.chances)
    bits = packed.unpack(oracle.randomize(np.full(20_000, 2), SeededSource(domain)), domain)
    law = np.where(np.arange(domain) == 2, own, other)
    tests = [stats.binomtest(int(ones), 20_000, chance) for ones, chance in zip(bits.sum(axis=0), law, strict=True)]
    assert min(test.pvalue for test in tests) > 1e-6 / domain


@pytest.mark.parametrize("kind", [SymmetricUnary, OptimizedUnary])
def test_the_epsilon_is_that_of_two_changed_bits(kind):
    oracle = kind(1.3, 5)
    own, other = oracle.chances
    assert math.log(own * (1 - other) / (other * (1 - own))) == pytest.approx(oracle.epsilon, rel=1e-12)


def test_bits_beyond_the_domain_are_refused():
    reports = OptimizedUnary(1.0, 5).randomize([1, 2])
    reports[0, 0] |= 1 << 6
    with pytest.raises(InvalidArgument, match="more bits than were declared"):
        OptimizedUnary(1.0, 5).estimate(reports)
