from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.accounting.closed_forms import gaussian_epsilon
from dpfed.accounting.notions import compare, epsilon_by_notion, pure_epsilon, zcdp_rho
from dpfed.accounting.queries import epsilon
from dpfed.errors import AdjacencyMismatch, InvalidArgument, UnsupportedEvent
from dpfed.events import (
    ApproximateDP,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomizedResponse,
    RenyiDP,
    Repeated,
    SampledWithoutReplacement,
    Shuffled,
    Unprotected,
    ZeroConcentratedDP,
)

STEP = PoissonSampled(Gaussian(1.0), 0.01)
RUN = Repeated(STEP, 10_000)
NOTIONS = ("rdp", "zcdp", "basic", "advanced")


class TestComposition:
    def test_the_sampled_run_costs_what_each_notion_says(self):
        assert epsilon_by_notion(RUN, 1e-5, "exact") == pytest.approx(6.18772, abs=1e-4)
        assert epsilon_by_notion(RUN, 1e-5, "rdp") == pytest.approx(6.7127, abs=2e-3)

    def test_zcdp_converts_tightly(self):
        event = Repeated(Gaussian(10.0), 100)
        loose = 0.5 + 2 * math.sqrt(0.5 * math.log(1e6))
        assert epsilon_by_notion(event, 1e-6, "zcdp") == pytest.approx(5.2215, abs=1e-4)
        assert epsilon_by_notion(ZeroConcentratedDP(0.5), 1e-6, "zcdp") == pytest.approx(5.2215, abs=1e-4)
        assert epsilon_by_notion(event, 1e-6, "exact") == pytest.approx(4.88655, abs=1e-5)
        assert loose == pytest.approx(5.757, abs=1e-3)

    def test_advanced_composition_has_the_term_that_the_seed_forgets(self):
        # Seed 000: ε√(2k ln 1/δ') says 47.99 for a hundred responses at ε = 1 that exactly cost 79.84.
        event = Repeated(PureDP(1.0), 100)
        forgetful = math.sqrt(200 * math.log(1e5))
        assert forgetful == pytest.approx(47.99, abs=0.01)
        assert epsilon_by_notion(event, 1e-5, "exact") == pytest.approx(79.84, abs=0.01)
        assert epsilon_by_notion(event, 1e-5, "advanced") >= 79.84

    def test_advanced_composition_is_better_than_basic_where_the_seed_is_worse(self):
        # Seed 003: 2√(ln(1/δ₀)T)·ε + T(e^ε − 1) says 17.3 for 0.1 × 100, where adding up says 10.
        event = Repeated(PureDP(0.1), 100)
        clumsy = 2 * math.sqrt(math.log(1e5) * 100) * 0.1 + 100 * math.expm1(0.1)
        assert clumsy == pytest.approx(17.3, abs=0.1)
        advanced = epsilon_by_notion(event, 1e-5, "advanced")
        # δ' is half of δ here, so a little above the 5.2981 of δ' = 1e-5.
        assert 5.2981 * 0.98 < advanced < 5.6
        assert epsilon_by_notion(event, 1e-5, "basic") == pytest.approx(10.0, rel=1e-3)
        assert epsilon_by_notion(event, 1e-5, "exact") == pytest.approx(4.31, abs=0.01)

    def test_epsilon_over_the_root_of_the_rounds_does_not_keep_the_total(self):
        # Seed 003 spends ε/√T a round: 100 rounds at 0.1 are not 1.
        assert epsilon_by_notion(Repeated(PureDP(1 / math.sqrt(100)), 100), 1e-5, "exact") > 4

    def test_basic_splits_delta_evenly_and_adds_up(self):
        event = Repeated(Gaussian(10.0), 25)
        assert epsilon_by_notion(event, 1e-5, "basic") == pytest.approx(25 * gaussian_epsilon(0.1, 4e-7), rel=1e-9)

    def test_advanced_spends_half_of_delta_on_the_releases_and_half_on_composing(self):
        single = gaussian_epsilon(0.01, 1e-5 / 2000)
        spread = single * math.sqrt(2 * 1000 * math.log(2e5))
        drift = 1000 * single * math.expm1(single) / (math.exp(single) + 1)
        assert spread + drift < 1000 * single
        assert epsilon_by_notion(Repeated(Gaussian(100.0), 1000), 1e-5, "advanced") == pytest.approx(
            spread + drift, rel=1e-9
        )

    def test_advanced_of_unlike_releases_is_that_of_like_ones_when_they_are_alike(self):
        alike = epsilon_by_notion(Repeated(PureDP(0.1), 100), 1e-5, "advanced")
        nearly = Composed([Repeated(PureDP(0.1), 50), Repeated(PureDP(0.1 * (1 + 1e-12)), 50)])
        assert epsilon_by_notion(nearly, 1e-5, "advanced") == pytest.approx(alike, rel=1e-9)

    def test_a_single_release_costs_the_same_by_basic_and_exact(self):
        assert epsilon_by_notion(Gaussian(3.0), 1e-5, "basic") == pytest.approx(epsilon(Gaussian(3.0), 1e-5))

    def test_without_delta_pure_releases_add_up_in_every_notion_that_can_say_so(self):
        event = Repeated(PureDP(0.1), 10)
        for notion in ("pure", "basic", "advanced", "exact"):
            assert epsilon_by_notion(event, 0.0, notion) == pytest.approx(1.0, rel=1e-9)

    @settings(max_examples=15)
    @given(
        sigma=st.floats(2.0, 50.0),
        scale=st.floats(2.0, 50.0),
        counts=st.tuples(st.integers(1, 50), st.integers(1, 50)),
        delta=st.sampled_from([1e-3, 1e-5, 1e-8]),
    )
    def test_no_notion_is_below_the_exact_cost(self, sigma, scale, counts, delta):
        event = Composed([Repeated(Gaussian(sigma), counts[0]), Repeated(Laplace(scale), counts[1])])
        exact = epsilon(event, delta)
        for notion in NOTIONS:
            assert epsilon_by_notion(event, delta, notion) >= exact * (1 - 1e-3) - 1e-9

    def test_the_question_and_the_notion_are_one(self):
        for notion in NOTIONS:
            event = Repeated(Gaussian(10.0), 10)
            assert epsilon(event, 1e-5, notion=notion) == epsilon_by_notion(event, 1e-5, notion)


class TestSums:
    @pytest.mark.parametrize(
        ("event", "rho"),
        [
            (Gaussian(2.0), 0.125),
            (Repeated(Gaussian(10.0), 100), 0.5),
            (Laplace(2.0), 0.125),
            (PureDP(0.5), 0.125),
            (Exponential(1.0), 0.125),
            (ZeroConcentratedDP(0.3), 0.3),
            (DiscreteGaussian(4.0, sensitivity=2, dimension=7), 0.125),
            (DiscreteLaplace(2.0), 0.125),
            (PoissonSampled(Gaussian(2.0), 1.0), 0.125),
            (Composed([Gaussian(2.0), PureDP(1.0)]), 0.625),
        ],
        ids=str,
    )
    def test_rho_adds_up(self, event, rho):
        assert zcdp_rho(event) == pytest.approx(rho, rel=1e-12)
        assert zcdp_rho(event) >= rho * (1 - 1e-15)

    @pytest.mark.parametrize(
        ("event", "factor"), [(Gaussian(2.0), 4), (Laplace(2.0), 4), (DiscreteGaussian(2.0), 4)], ids=str
    )
    def test_replace_one_doubles_the_shift(self, event, factor):
        assert zcdp_rho(event, "replace_one") == pytest.approx(factor * zcdp_rho(event), rel=1e-12)

    @pytest.mark.parametrize(
        ("event", "total"),
        [
            (Laplace(2.0), 0.5),
            (Repeated(Laplace(2.0), 6), 3.0),
            (DiscreteLaplace(4.0, sensitivity=2), 0.5),
            (ApproximateDP(0.5, 0.0), 0.5),
            (PoissonSampled(PureDP(1.0), 0.1), math.log1p(0.1 * math.expm1(1.0))),
        ],
        ids=str,
    )
    def test_pure_epsilons_add_up(self, event, total):
        assert pure_epsilon(event) == pytest.approx(total, rel=1e-12)

    def test_pure_sampling_is_not_below_the_exact_cost(self):
        event = PoissonSampled(Laplace(0.7), 0.2)
        assert pure_epsilon(event) >= epsilon(event, 0.0) * (1 - 1e-12)

    @pytest.mark.parametrize(
        "event",
        [
            STEP,
            SampledWithoutReplacement(Gaussian(1.0), 10, 100),
            RenyiDP((2.0, 4.0), (0.1, 0.2)),
            ApproximateDP(0.1, 1e-6),
        ],
        ids=str,
    )
    def test_what_has_no_zcdp_says_so(self, event):
        with pytest.raises(UnsupportedEvent, match="zCDP has no statement"):
            zcdp_rho(event)

    @pytest.mark.parametrize("event", [Gaussian(1.0), STEP, ZeroConcentratedDP(0.1), ApproximateDP(0.1, 1e-6)], ids=str)
    def test_what_has_no_pure_epsilon_says_so(self, event):
        with pytest.raises(UnsupportedEvent, match="no pure ε"):
            pure_epsilon(event)

    @pytest.mark.parametrize("event", [PureDP(1.0), Exponential(1.0), ZeroConcentratedDP(1.0)], ids=str)
    def test_a_statement_for_the_other_adjacency_is_refused(self, event):
        with pytest.raises(AdjacencyMismatch):
            zcdp_rho(event, "replace_one")

    def test_no_noise_is_infinite_in_every_notion(self):
        for notion in (*NOTIONS, "exact", "pure"):
            assert epsilon_by_notion(Unprotected(), 1e-5, notion) == math.inf


class TestTable:
    def test_the_table_has_a_row_for_every_notion_of_the_seed(self):
        rows = {row.notion: row for row in compare(RUN, 1e-5)}
        assert list(rows) == ["exact", "rdp", "zcdp", "advanced", "basic", "pure", "local", "shuffle", "bayesian"]
        for row in rows.values():
            assert all((row.title, row.composition, row.tightness, row.trust, row.use, row.remark))

    def test_a_notion_without_a_statement_says_why_and_gives_no_number(self):
        rows = {row.notion: row for row in compare(RUN, 1e-5)}
        assert rows["zcdp"].epsilon is None
        assert "sampling" in rows["zcdp"].remark
        assert rows["pure"].epsilon is None
        assert rows["bayesian"].epsilon is None
        assert "diagnostic" in rows["bayesian"].remark

    def test_the_rows_are_the_single_answers(self):
        event = Repeated(Gaussian(10.0), 100)
        for row in compare(event, 1e-6):
            if row.epsilon is not None:
                assert row.epsilon == epsilon_by_notion(event, 1e-6, row.notion)

    def test_local_privacy_gets_nothing_from_sampling_and_pays_for_replacing(self):
        rows = {row.notion: row for row in compare(Repeated(PoissonSampled(Gaussian(10.0), 0.1), 100), 1e-6)}
        assert rows["local"].epsilon == pytest.approx(gaussian_epsilon(2.0, 1e-6), rel=1e-9)
        assert rows["local"].epsilon > 10 * rows["exact"].epsilon

    def test_a_randomized_response_is_local_and_pure(self):
        event = Repeated(RandomizedResponse(0.1), 100)
        rows = {row.notion: row for row in compare(event, 1e-5, "replace_one")}
        assert rows["pure"].epsilon == pytest.approx(10.0, rel=1e-9)
        assert rows["local"].epsilon == rows["exact"].epsilon == pytest.approx(4.31, abs=0.01)

    def test_a_table_under_the_wrong_adjacency_is_refused(self):
        with pytest.raises(AdjacencyMismatch):
            compare(RandomizedResponse(1.0), 1e-5)

    def test_local_privacy_of_an_add_remove_statement_is_not_claimed(self):
        rows = {row.notion: row for row in compare(PureDP(1.0), 1e-5)}
        assert rows["local"].epsilon is None
        assert rows["pure"].epsilon == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("delta", "notion", "adjacency", "name"),
    [
        (1.0, "rdp", "add_remove", "delta"),
        (-0.1, "basic", "add_remove", "delta"),
        (math.nan, "zcdp", "add_remove", "delta"),
        (1e-5, "gdp", "add_remove", "notion"),
        (1e-5, "bayesian", "add_remove", "notion"),
        (1e-5, "rdp", "swap", "adjacency"),
    ],
)
def test_a_bad_argument_is_named(delta, notion, adjacency, name):
    with pytest.raises(InvalidArgument) as refusal:
        epsilon_by_notion(Gaussian(1.0), delta, notion, adjacency)
    assert refusal.value.argument == name


def test_users_of_a_run_that_is_shuffled_already_are_its_own():
    reports = Repeated(Shuffled(RandomizedResponse(1.0, 10), 1000), 3)
    with pytest.raises(InvalidArgument, match="shuffled among 1000 users already"):
        compare(reports, 1e-6, "replace_one", users=50)
    assert compare(reports, 1e-6, "replace_one", users=1000) == compare(reports, 1e-6, "replace_one")
