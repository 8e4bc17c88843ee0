"""Shuffled reports: known answers, the truth for a few users, and every rounding on the safe side."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed.accounting.exact import privacy_loss, shuffled
from dpfed.accounting.exact.privacy_loss import DiscreteLaw
from dpfed.accounting.search import find_crossing, log_excess

CASES = json.loads((Path(__file__).parents[2] / "reference" / "shuffle.json").read_text(encoding="utf-8"))
Histogram = Mapping[tuple[int, ...], float]


def cases(group: str) -> list[Any]:
    return [pytest.param(case["inputs"], case, id=case["id"]) for case in CASES if case["group"] == group]


def epsilon_of(law: DiscreteLaw, delta: float) -> float:
    return find_crossing(lambda at: log_excess(privacy_loss.delta(law, at), delta), 0.0, law.maximum)


def excess(p: Histogram, q: Histogram, epsilon: float) -> float:
    return math.fsum(max(0.0, p[each] - math.exp(epsilon) * q.get(each, 0.0)) for each in p)


def truth_of(reports: Sequence[Sequence[float]]) -> Histogram:
    """The distribution of how many of the independent reports have each value: all that a shuffler leaves."""
    found: dict[tuple[int, ...], float] = {(0,) * len(reports[0]): 1.0}
    for report in reports:
        after: dict[tuple[int, ...], float] = defaultdict(float)
        for counts, mass in found.items():
            for value, chance in enumerate(report):
                after[tuple(n + (place == value) for place, n in enumerate(counts))] += mass * chance
        found = after
    return found


def respond(epsilon: float, buckets: int, value: int) -> list[float]:
    other = 1 / (math.exp(epsilon) + buckets - 1)
    return [math.exp(epsilon) * other if bucket == value else other for bucket in range(buckets)]


def count_two_values(epsilon: float, buckets: int, users: int) -> tuple[Histogram, Histogram]:
    """The pair that counts the two values in question alone, which is no bound for more than two buckets."""
    p = 1 / (math.exp(epsilon) + buckets - 1)
    other, own, swapped = [p, p, 1 - 2 * p], respond(epsilon, buckets, 0), respond(epsilon, buckets, 1)
    first, second = ([*report[:2], 1 - sum(report[:2])] for report in (own, swapped))
    others = [other] * (users - 1)
    return truth_of([first, *others]), truth_of([second, *others])


@pytest.mark.parametrize(("given", "case"), cases("shuffle_clones_2021"))
def test_the_known_epsilon_of_any_randomizer_is_found(given: Any, case: Any) -> None:
    found = epsilon_of(shuffled.clones(given["eps0"], given["n"]), given["delta"])
    assert found == pytest.approx(case["expected"], rel=case["tol"])


@pytest.mark.parametrize(("given", "case"), cases("shuffle_delta_clones"))
def test_the_known_delta_of_any_randomizer_is_found(given: Any, case: Any) -> None:
    found = privacy_loss.delta(shuffled.clones(given["eps0"], given["n"]), given["eps"])
    assert found == pytest.approx(case["expected"], rel=case["tol"])


@pytest.mark.parametrize(("given", "case"), cases("shuffle_delta"))
def test_the_known_delta_of_randomized_response_is_found(given: Any, case: Any) -> None:
    found = privacy_loss.delta(shuffled.randomized_response(given["eps0"], given["k"], given["n"]), given["eps"])
    assert found == pytest.approx(case["expected"], rel=case["tol"])


@pytest.mark.parametrize(("given", "case"), cases("shuffle_kRR_exact"))
def test_k_ary_response_costs_a_little_more_than_the_figure_that_is_no_bound(given: Any, case: Any) -> None:
    """The figures count two values of k alone; the next test refutes that. Ours is above, by less than 2 in 10⁴."""
    found = epsilon_of(shuffled.randomized_response(given["eps0"], given["k"], given["n"]), given["delta"])
    assert case["expected"] * (1 - case["tol"]) <= found <= case["expected"] * (1 + 2e-4)


def test_counting_two_of_three_values_is_refuted_by_two_users() -> None:
    """Lemma 3.5 of Feldman, McMillan and Talwar (2023): by the authors' errata it is wrong for p < 1/(e^ε₀ + 1)."""
    claimed = excess(*count_two_values(1.0, 3, 2), 0.8)
    true = excess(truth_of([respond(1.0, 3, 0)] * 2), truth_of([respond(1.0, 3, 1), respond(1.0, 3, 0)]), 0.8)
    assert claimed == pytest.approx(0.02725, abs=1e-5)
    assert true == pytest.approx(0.06017, abs=1e-5)
    assert privacy_loss.delta(shuffled.randomized_response(1.0, 3, 2), 0.8) >= true


@pytest.mark.parametrize("buckets", [2, 3, 4, 5])
@pytest.mark.parametrize("users", [1, 2, 3, 4])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.5])
def test_no_values_of_the_others_make_shuffled_responses_less_private(buckets: int, users: int, epsilon: float) -> None:
    law, any_law = shuffled.randomized_response(epsilon, buckets, users), shuffled.clones(epsilon, users)
    for others in itertools.combinations_with_replacement(range(min(buckets, 4)), users - 1):
        rest = [respond(epsilon, buckets, value) for value in others]
        p = truth_of([respond(epsilon, buckets, 0), *rest])
        q = truth_of([respond(epsilon, buckets, 1), *rest])
        for at in (0.0, 0.3 * epsilon, 0.7 * epsilon, 0.95 * epsilon):
            for true in (excess(p, q, at), excess(q, p, at)):
                assert privacy_loss.delta(law, at) >= true - 1e-15
                assert privacy_loss.delta(any_law, at) >= true - 1e-15


def test_no_randomizer_found_at_random_is_less_private_than_the_clones(campaign_scale: int) -> None:
    generator = np.random.default_rng(7)
    for _ in range(20 * campaign_scale):
        epsilon, users, outputs = generator.uniform(0.2, 2.5), int(generator.integers(2, 5)), 3
        base = generator.dirichlet(np.ones(outputs))
        # Every report is within e^±ε/2 of one distribution before it is normalised, so within e^±ε of every other.
        shares = base * np.exp(generator.uniform(-epsilon / 4, epsilon / 4, (users + 1, outputs)))
        reports = (shares / shares.sum(axis=1, keepdims=True)).tolist()
        p, q = truth_of(reports[1:]), truth_of([reports[0], *reports[2:]])
        law = shuffled.clones(epsilon, users)
        for at in (0.0, 0.1 * epsilon, 0.5 * epsilon):
            assert privacy_loss.delta(law, at) >= excess(p, q, at) - 1e-15


@pytest.mark.parametrize("law", [shuffled.clones(1.0, 40), shuffled.randomized_response(2.0, 5, 60)], ids=["any", "k"])
def test_the_pair_is_its_own_mirror_image(law: DiscreteLaw) -> None:
    for low, high in itertools.pairwise(np.linspace(0.05, 1.9, 7)):
        (p,), (q,) = law.masses(np.array([low, high]))
        (mirrored_q,), (mirrored_p,) = (
            each[::-1] for each in law.masses(np.array([np.nextafter(-high, 9), np.nextafter(-low, 9)]))
        )
        assert (p, q) == pytest.approx((mirrored_p, mirrored_q), rel=1e-9, abs=1e-30)


@pytest.mark.parametrize(
    "law",
    [shuffled.clones(1.0, 5000), shuffled.randomized_response(1.0, 10, 3000), shuffled.clones(3.0, 10**6)],
    ids=["any", "k", "many"],
)
def test_both_sides_have_all_of_their_mass(law: DiscreteLaw) -> None:
    (p,), (q,) = law.masses(np.array([-np.inf, np.inf]))
    assert (p, q) == pytest.approx((1.0, 1.0), abs=1e-8)


def test_counts_in_buckets_are_rounded_down_which_costs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = epsilon_of(shuffled.clones(1.0, 2000), 1e-6), epsilon_of(shuffled.randomized_response(1.0, 4, 800), 1e-6)
    monkeypatch.setattr(shuffled, "_SHARE", 0.02)
    coarse = epsilon_of(shuffled.clones(1.0, 2000), 1e-6), epsilon_of(shuffled.randomized_response(1.0, 4, 800), 1e-6)
    for one, other in zip(exact, coarse, strict=True):
        assert 1.001 * one < other < 1.02 * one


@pytest.mark.parametrize("users", [800, 802, 804])
def test_no_bucket_of_counts_makes_k_ary_response_cheaper(users: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = shuffled.randomized_response(0.1, 3, users)
    monkeypatch.setattr(shuffled, "_SHARE", 0.005)  # two or three counts s in a bucket, and sizes m in one of their own
    coarse = shuffled.randomized_response(0.1, 3, users)
    for epsilon in (0.0, 0.002, 0.003, 0.0041, 0.006, 0.02):
        assert privacy_loss.delta(coarse, epsilon) >= privacy_loss.delta(fine, epsilon)


def test_points_between_which_atoms_are_divided_cost_more_and_hardly_any(monkeypatch: pytest.MonkeyPatch) -> None:
    few = epsilon_of(shuffled.clones(1.0, 60), 1e-6)
    monkeypatch.setattr(shuffled, "_MOST_ATOMS", 0)
    assert few <= epsilon_of(shuffled.clones(1.0, 60), 1e-6) <= few * (1 + 1e-6)


def test_nodes_between_which_shares_are_divided_cost_more_and_hardly_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffled, "_FEW", 10**6)
    all_sizes = epsilon_of(shuffled.randomized_response(1.0, 6, 200), 1e-6)
    monkeypatch.setattr(shuffled, "_FEW", 2)
    monkeypatch.setattr(shuffled, "_APART", 0.05)
    assert all_sizes < epsilon_of(shuffled.randomized_response(1.0, 6, 200), 1e-6) < all_sizes * 1.01


@pytest.mark.parametrize("buckets", [0, 2, 3, 50])
def test_more_users_hide_better_and_one_hides_nothing(buckets: int) -> None:
    def law(users: int) -> DiscreteLaw:
        return shuffled.randomized_response(1.5, buckets, users) if buckets else shuffled.clones(1.5, users)

    found = [epsilon_of(law(users), 1e-4) for users in (1, 2, 5, 30, 300)]
    assert all(before > after for before, after in itertools.pairwise(found[1:]))
    alone = math.exp(1.5) / (math.exp(1.5) + (buckets or 2) - 1) * -math.expm1(1.2 - 1.5)
    assert privacy_loss.delta(law(1), 1.2) == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 40.0, 650.0, 5000.0])
@pytest.mark.parametrize("buckets", [0, 2, 3])
def test_no_epsilon_is_too_small_or_too_large(epsilon: float, buckets: int) -> None:
    law = shuffled.randomized_response(epsilon, buckets, 1000) if buckets else shuffled.clones(epsilon, 1000)
    assert law.maximum == epsilon
    assert np.isfinite(law.losses).all()
    assert privacy_loss.delta(law, epsilon) <= 1e-15
    if epsilon >= 40:
        assert privacy_loss.delta(law, 0.9 * epsilon) == pytest.approx(1.0, abs=0.03)


def test_more_users_than_are_counted_count_as_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffled, "MOST_USERS", 100)
    assert epsilon_of(shuffled.clones(1.0, 10**12), 1e-6) == epsilon_of(shuffled.clones(1.0, 100), 1e-6)


def test_a_million_users_need_few_atoms() -> None:
    law = shuffled.clones(1.0, 10**6)
    assert len(law.losses) < 200_000
    # The sum over all counts by scipy's binomial tails, without buckets or points.
    assert 0.004334519803 <= epsilon_of(law, 1e-6) <= 0.004334519803 * (1 + 5e-5)


def test_a_draw_of_all_is_no_draw() -> None:
    law = shuffled.clones(1.0, 200)
    for at in (0.0, 0.1, 0.5):
        assert privacy_loss.delta(shuffled.sampled(law, 1.0), at) == pytest.approx(
            privacy_loss.delta(law, at), rel=1e-9
        )


def test_a_draw_keeps_the_theorem_at_every_epsilon() -> None:
    law = shuffled.clones(1.0, 500)
    for at in (0.0, 0.05, 0.2, 0.6):
        amplified = math.log1p(0.1 * math.expm1(at))
        assert privacy_loss.delta(shuffled.sampled(law, 0.1), amplified) == pytest.approx(
            0.1 * privacy_loss.delta(law, at), rel=1e-9
        )


@pytest.mark.parametrize("others", [(0, 0, 0), (0, 1, 1), (1, 1, 1)])
def test_a_draw_of_two_of_four_users_is_no_less_private_than_claimed(others: tuple[int, ...]) -> None:
    def release(target: int) -> Histogram:
        values = (target, *others)
        total: dict[tuple[int, ...], float] = defaultdict(float)
        for drawn in itertools.combinations(range(4), 2):
            for counts, mass in truth_of([respond(1.0, 2, values[user]) for user in drawn]).items():
                total[counts] += mass / 6
        return total

    law = shuffled.sampled(shuffled.randomized_response(1.0, 2, 2), 0.5)
    for at in (0.0, 0.1, 0.3, 0.5):
        for p, q in itertools.permutations((release(0), release(1))):
            assert privacy_loss.delta(law, at) >= excess(p, q, at) - 1e-15
