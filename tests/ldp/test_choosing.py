from __future__ import annotations

import math

import pytest

from dpfed.errors import InvalidArgument
from dpfed.ldp import HadamardResponse, KaryResponse, LocalHashing, OptimizedUnary, choose


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_the_border_is_where_the_variances_cross(epsilon):
    border = math.floor(3 * math.exp(epsilon) + 2)
    for size in (border, border + 2):
        kary, unary = (kind(epsilon, size).variance(100) for kind in (KaryResponse, OptimizedUnary))
        assert type(choose(epsilon, size).mechanism) is (KaryResponse if kary < unary else OptimizedUnary)


@pytest.mark.parametrize(
    ("domain", "kind"), [(5, KaryResponse), (1000, OptimizedUnary), (1025, LocalHashing), (2_000_000, HadamardResponse)]
)
def test_each_domain_gets_its_oracle_and_a_reason(domain, kind):
    found = choose(1.0, domain)
    assert type(found.mechanism) is kind
    assert str(domain) in found.reason
    assert found.mechanism.domain == domain


def test_absence_counts_as_a_value():
    assert choose(1.0, 10, absent=True).mechanism == OptimizedUnary(1.0, 10, absent=True)
    assert type(choose(1.0, 10).mechanism) is KaryResponse


@pytest.mark.parametrize(("epsilon", "domain"), [(0.0, 5), (1.0, 1), (1.0, 0)])
def test_impossible_questions_are_refused(epsilon, domain):
    with pytest.raises(InvalidArgument):
        choose(epsilon, domain)
