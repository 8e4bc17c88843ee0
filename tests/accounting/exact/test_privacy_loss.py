"""Laws of losses: their masses, what mixing does to them, and the cells that dominate them."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
from mpmath import mp

from dpfed.accounting.exact import privacy_loss
from dpfed.accounting.exact.privacy_loss import (
    AbsentLaw,
    DiscreteLaw,
    GaussianLaw,
    LaplaceLaw,
    PresentLaw,
    ReplacedGaussianLaw,
)

EVERYWHERE = np.array([-np.inf, np.inf])
COIN = DiscreteLaw(np.array([-1.0, 1.0]), np.array([1 / (1 + math.e), math.e / (1 + math.e)]))
# P reveals 0.1 of its mass outright and so does Q, which P cannot see.
LEAKING = DiscreteLaw(np.array([-1.0, 1.0]), 0.9 * np.array([1 / (1 + math.e), math.e / (1 + math.e)]), 0.1)
LAWS = [
    GaussianLaw(0.3),
    GaussianLaw(8.0),
    LaplaceLaw(0.7),
    COIN,
    *(mix(inner, rate) for mix in (PresentLaw, AbsentLaw) for inner in (GaussianLaw(1.5), LaplaceLaw(2.0), COIN)
      for rate in (1e-3, 0.4, 0.999)),
    PresentLaw(LEAKING, 0.5),
    ReplacedGaussianLaw(0.8, 0.3),
]  # fmt: skip


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_the_masses_of_all_cells_are_one(law: privacy_loss.Law) -> None:
    (p,), (q,) = law.masses(EVERYWHERE)
    assert p == pytest.approx(1.0, abs=1e-14)
    assert q == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_the_loss_of_a_narrow_cell_is_the_log_of_its_masses(law: privacy_loss.Law) -> None:
    low, high = law.span(1e-6)
    edges = np.linspace(low - 1e-9, high + 1e-9, 4001)
    p, q = law.masses(edges)
    seen = (p > 1e-12) & (q > 1e-12)
    loss = np.log(p[seen] / q[seen])
    assert np.all(loss > edges[:-1][seen] - 1e-6)
    assert np.all(loss <= edges[1:][seen] + 1e-6)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_no_more_than_the_tail_lies_outside_the_span(law: privacy_loss.Law) -> None:
    low, high = law.span(1e-9)
    (below,), _ = law.masses(np.array([-np.inf, low - 1e-12]))
    (above,), _ = law.masses(np.array([high + 1e-12, np.inf]))
    assert below <= 1.01e-9
    assert above - law.at_infinity <= 1.01e-9


@pytest.mark.parametrize("sigma", [0.2, 1.0, 40.0])
@pytest.mark.parametrize("rate", [1e-4, 0.2, 0.99])
@pytest.mark.parametrize("epsilon", [0.01, 0.7, 3.0])
def test_one_sampled_gaussian_has_the_amplified_hockey_stick(sigma: float, rate: float, epsilon: float) -> None:
    inner = math.log1p(math.expm1(epsilon) / rate)
    expected = rate * oracle.gaussian_delta(1 / sigma, inner)
    assert privacy_loss.delta(PresentLaw(GaussianLaw(1 / sigma), rate), epsilon) == pytest.approx(
        expected, rel=1e-7, abs=1e-15
    )


def test_one_absent_unit_has_the_other_hockey_stick() -> None:
    expected = oracle.absent_gaussian_hockey_stick(0.8, 0.6)(np.array([0.3]))[0]
    assert privacy_loss.delta(AbsentLaw(GaussianLaw(1 / 0.8), 0.6), 0.3) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_single_bounds_stand_on_their_sides(law: privacy_loss.Law) -> None:
    for epsilon in (0.0, 0.2, 1.0):
        assert privacy_loss.delta_lower(law, epsilon) <= privacy_loss.delta(law, epsilon)


def test_a_lower_bound_far_out_does_not_trust_vanishing_masses() -> None:
    # A Gaussian of μ = 1 has δ(37.4488) = 1e-300; at 37.547 the mass of Q is no longer a normal number.
    law = PresentLaw(GaussianLaw(1.0), 1 - 1e-12)
    assert privacy_loss.delta_lower(law, 37.547) < 1e-300 < privacy_loss.delta(law, 37.44)


def test_a_sampled_pair_keeps_the_mass_that_only_the_absent_side_has() -> None:
    edges = np.array([-np.inf, math.log(0.5) - 1e-9, math.log(0.5) + 1e-9, np.inf])
    p, q = PresentLaw(LEAKING, 0.5).masses(edges)
    assert q[1] == pytest.approx(0.1)
    assert p[1] == pytest.approx(0.05)
    assert p[2] - 0.5 * 0.9 * (1 + 1e-12) > 0.05  # the revealed half is in the last cell


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("width", [0.05, 0.4])
def test_split_cells_dominate_the_law_and_keep_both_masses(law: privacy_loss.Law, width: float) -> None:
    low, high = law.span(1e-14)
    points = np.arange(math.floor(low / width), math.ceil(high / width) + 1) * width
    _, masses = privacy_loss.split(law, points)
    (above,), _ = law.masses(np.array([points[-1], np.inf]))
    assert masses.sum() + above == pytest.approx(1.0, abs=1e-12)
    for epsilon in (-0.5, 0.0, 0.11, 0.9):
        dominating = float((masses * np.maximum(-np.expm1(epsilon - points), 0)).sum()) + above
        assert dominating >= privacy_loss.delta_lower(law, epsilon) - 1e-13


@pytest.mark.parametrize(
    ("law", "release"),
    [
        (GaussianLaw(2.0), oracle.gaussian(0.5)),
        (LaplaceLaw(0.5), oracle.laplace(2.0)),
        (PresentLaw(GaussianLaw(2.0), 0.01), oracle.gaussian(0.5).sampled(0.01)),
        (AbsentLaw(GaussianLaw(2.0), 0.01), oracle.gaussian(0.5).sampled(0.01).mirrored()),
        # All but a hair of the mass at one loss, the largest: its cells are narrower than rounding.
        (AbsentLaw(GaussianLaw(20.0), 0.1), oracle.gaussian(0.05).sampled(0.1).mirrored()),
        (ReplacedGaussianLaw(0.5, 0.2), oracle.replaced_gaussian(0.5, 0.2)),
    ],
    ids=repr,
)
def test_cumulants_of_cells_are_just_above_the_moments(law: privacy_loss.Law, release: oracle.Release) -> None:
    tilts = np.array([0.01, 0.5, 3.0])
    true = release.log_moment(tilts).real
    ours = privacy_loss.cumulants(law, tilts, 1e-30)
    assert np.all(ours >= true - 1e-12)
    assert np.all(ours <= true * 1.02 + 1e-4)


@pytest.mark.parametrize("buckets", [3, 4, 7])
def test_cumulants_near_order_one_are_not_rounded_below_the_moments(buckets: int) -> None:
    with mp.workdps(40):
        chance = 1 / (mp.exp(mp.mpf(0.001)) + buckets - 1)
        masses = [chance, (buckets - 2) * chance, chance * mp.exp(mp.mpf(0.001))]
        law = DiscreteLaw(np.array([-0.001, 0.0, 0.001]), np.array([float(mass) for mass in masses]))
        for tilt in (1e-6, 1e-5, 1e-4, 1e-3):
            moment = sum(mass * mp.exp(mp.mpf(tilt) * at) for mass, at in zip(masses, (-0.001, 0, 0.001), strict=True))
            assert privacy_loss.cumulants(law, np.array([tilt]), 0.0)[0] >= mp.log(moment)


def test_a_law_without_any_loss_has_no_cumulant() -> None:
    silent = DiscreteLaw(np.zeros(2), np.full(2, 0.5))
    assert privacy_loss.cumulants(silent, np.array([1.0, 100.0]), 0.0) == pytest.approx([0.0, 0.0], abs=1e-12)
