"""The exact accountant: every path against plain truths, at the ends of every range, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import oracle
import pytest
from mpmath import mp, mpf

from dpfed import events as ev
from dpfed.accounting import delta as delta_of
from dpfed.accounting import epsilon, epsilon_bounds
from dpfed.accounting.composed import Composition
from dpfed.errors import AdjacencyMismatch, InvalidArgument, UnknownEvent, UnsupportedEvent

ADD, REPLACE = "add_remove", "replace_one"
G, L, P, R, C = ev.Gaussian, ev.Laplace, ev.PoissonSampled, ev.Repeated, ev.Composed
Parts = list[tuple[oracle.Release, int]]


def truth(parts: Parts, near: float, *, is_mirrored: bool) -> Callable[[float], float]:
    sides = [parts] if is_mirrored else [parts, [(release.mirrored(), count) for release, count in parts]]
    inverted = [oracle.contour(side, near) for side in sides]
    return lambda at: max(one(at) for one in inverted)


def assert_bracketed(
    run: ev.Event, parts: Parts, delta: float, adjacency: str = ADD, *, is_mirrored: bool = False
) -> None:
    low, high = epsilon_bounds(run, delta, adjacency=adjacency)
    true = truth(parts, high, is_mirrored=is_mirrored)
    assert true(high) <= delta * (1 + 1e-7)
    assert true(epsilon(run, delta, adjacency=adjacency)) <= delta * (1 + 1e-7)
    assert true(low) >= delta * (1 - 1e-7) or low == 0
    assert high - low <= 1e-3 * max(high, 1.0)
    assert delta_of(run, high, adjacency=adjacency) >= true(high) * (1 - 1e-7)


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
@pytest.mark.parametrize(
    ("sigma", "rate", "steps"),
    [(1.0, 0.01, 1000), (0.8, 0.02, 300), (0.7, 0.3, 40), (5.0, 0.9, 49), (2.0, 0.1, 7), (12.0, 0.3, 3000)],
)
def test_sampled_gaussians_agree_with_the_oracle(sigma: float, rate: float, steps: int, delta: float) -> None:
    assert_bracketed(R(P(G(sigma), rate), steps), [(oracle.gaussian(sigma).sampled(rate), steps)], delta)


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.05, 200), (3.0, 0.7, 20)])
def test_replaced_gaussians_agree_with_the_oracle(sigma: float, rate: float, steps: int) -> None:
    parts = [(oracle.replaced_gaussian(sigma, rate), steps)]
    assert_bracketed(R(P(G(sigma), rate), steps), parts, 1e-5, REPLACE, is_mirrored=True)


def test_mixed_runs_agree_with_the_oracle() -> None:
    run = C([R(P(G(0.8), 0.02), 150), R(L(4.0), 10), R(G(3.0), 5)])
    parts = [(oracle.gaussian(0.8).sampled(0.02), 150), (oracle.laplace(4.0), 10), (oracle.gaussian(3.0), 5)]
    assert_bracketed(run, parts, 1e-6)


def test_random_runs_agree_with_the_oracle(campaign_scale: int) -> None:
    draw = np.random.default_rng(11)

    def between(low: float, high: float) -> float:
        return float(np.exp(draw.uniform(np.log(low), np.log(high))))

    for _ in range(12 * campaign_scale):
        kinds = [(between(1, 8), between(0.02, 0.9), int(between(40, 400))) for _ in range(draw.integers(1, 4))]
        run = C([R(P(G(sigma), rate), steps) for sigma, rate, steps in kinds])
        parts = [(oracle.gaussian(sigma).sampled(rate), steps) for sigma, rate, steps in kinds]
        delta = between(1e-10, 1e-3)
        high = epsilon(run, delta)
        assert high < 0.01 or truth(parts, high, is_mirrored=False)(high) <= delta * (1 + 1e-7), (kinds, delta)


def two_way(size: float, rate: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The answers of a sampled randomized response: with the unit, and without it."""
    true = 1 / (1 + math.exp(-size))
    absent = (1 - true, true)
    return ((1 - rate) * absent[0] + rate * true, (1 - rate) * absent[1] + rate * (1 - true)), absent


def enumerated(first: tuple[float, float], second: tuple[float, float], count: int, epsilon: float) -> float:
    """δ(ε) of so many releases, by all of their outcomes."""
    ones = np.arange(count + 1)
    p, q = (chances[0] ** ones * chances[1] ** (count - ones) for chances in (first, second))
    return float(sum(math.comb(count, k) * max(0.0, p[k] - math.exp(epsilon) * q[k]) for k in ones))


@pytest.mark.parametrize(
    ("size", "rate", "count", "delta"),
    [(1.0, 0.7, 2, 0.3), (1.0, 0.5, 2, 0.2), (0.5, 0.7, 5, 0.03)],  # the unit that is absent decides
)
def test_the_dearer_direction_counts_also_where_it_is_that_of_the_absent_unit(size, rate, count, delta):
    with_unit, without = two_way(size, rate)
    cost = epsilon(R(P(ev.PureDP(size), rate), count), delta)
    added, removed = enumerated(without, with_unit, count, cost), enumerated(with_unit, without, count, cost)
    assert added == pytest.approx(delta, rel=1e-6)
    assert added <= delta
    assert removed < 0.9 * delta


def test_releases_of_one_draw_cost_more_than_of_two() -> None:
    one = R(P(C([G(1.5), G(1.5)]), 0.1), 200)
    two = R(C([P(G(1.5), 0.1), P(G(1.5), 0.1)]), 200)
    assert epsilon(one, 1e-5) == pytest.approx(8.949, abs=1e-3)
    assert epsilon(two, 1e-5) == pytest.approx(7.379, abs=1e-3)


def test_different_noises_of_one_draw_agree_with_the_oracle() -> None:
    release = oracle.gaussian(2.0).beside(oracle.laplace(2.0, 24)).sampled(0.3)
    low, high = epsilon_bounds(R(P(C([G(2.0), L(2.0)]), 0.3), 40), 1e-5)
    true = truth([(release, 40)], high, is_mirrored=False)
    assert true(high) <= 1e-5 * (1 + 1e-6)
    assert true(low) >= 1e-5 * (1 - 1e-6)
    assert high - low < 0.02 * high


# Where δ at the ε of a δ was up to 500,000 times that δ: few releases, next to their largest loss or of tiny rates.
@pytest.mark.parametrize(
    ("run", "adjacency", "delta"),
    [
        (R(L(4.822), 2), ADD, 2.995e-12),
        (R(L(33.72), 5), ADD, 1.181e-9),
        (R(L(24.88), 2), REPLACE, 1.065e-12),
        (C([ev.DiscreteLaplace(8.058, 2), R(L(3.327), 5)]), ADD, 5.698e-12),
        (C([R(ev.RandomizedResponse(0.2507, 3, ADD), 2), R(ev.PureDP(1.939), 2)]), ADD, 7.284e-10),
        (C([R(ev.PureDP(1.696), 5), R(P(G(14.88), 0.000136), 2)]), ADD, 3.353e-9),
        (C([R(ev.ApproximateDP(0.02034, 1.303e-12), 5), R(ev.PureDP(0.01422), 5)]), ADD, 2.574e-11),
        (R(P(G(36.98), 0.0001332), 2), REPLACE, 1.881e-9),
        (R(P(G(15.54), 0.0004874), 2), ADD, 2.507e-12),
        (R(P(G(1.382), 0.0002149), 374), ADD, 4.174e-11),
        (R(P(L(7.092), 0.01829), 2), ADD, 1.234e-6),
    ],
    ids=str,
)
def test_delta_at_the_epsilon_of_a_delta_is_no_more_than_it(run: ev.Event, adjacency: str, delta: float) -> None:
    assert delta_of(run, epsilon(run, delta, adjacency=adjacency), adjacency=adjacency) <= delta * 1.01


COINS = [
    ([(0.5, 0.0, 3)], 1e-9),
    ([(1.939, 0.0, 2), (0.25, 0.0, 3)], 7e-10),
    ([(1.678, 0.0, 1), (0.1373, 0.0, 5)], 1.5e-9),
    ([(0.235, 9e-12, 1), (0.01171, 3e-12, 2)], 5e-8),
    ([(0.02, 1e-12, 5), (0.014, 0.0, 5)], 2.5e-11),
    ([(0.3, 1e-9, 12)], 1e-5),
    ([(0.3, 1e-3, 4)], 4e-3),
]


@pytest.mark.parametrize(("coins", "delta"), COINS)
def test_delta_of_a_few_coins_is_at_least_the_enumerated_one_and_hardly_more(
    coins: list[tuple[float, float, int]], delta: float
) -> None:
    """The worst release of (ε, δ)-DP: it tells all with probability δ and is a biased coin otherwise."""
    with mp.workdps(40):
        run = C([R(ev.ApproximateDP(each, given) if given else ev.PureDP(each), count) for each, given, count in coins])
        steps = []
        for each, given, count in coins:
            heads = (1 - mpf(given)) / (1 + mp.exp(-mpf(each)))
            steps.append(({mpf(each): heads, -mpf(each): 1 - mpf(given) - heads, mpf(1e9): mpf(given)}, count))
        found = epsilon(run, delta)
        assert oracle.discrete_delta(steps, mp.exp, mpf(found)) <= delta
        for at in (found, found * 0.999, found * 0.9, found / 2):
            true = oracle.discrete_delta(steps, mp.exp, mpf(at))
            assert true <= delta_of(run, at) <= max(true, delta) * 1.01


@pytest.mark.parametrize(("sigma", "rate", "delta"), [(15.54, 0.0004874, 2.5e-12), (2.588, 0.0004564, 1e-9)])
def test_delta_of_two_releases_at_a_tiny_rate_is_that_of_one_integral(sigma: float, rate: float, delta: float) -> None:
    run = R(P(G(sigma), rate), 2)
    release = oracle.gaussian(sigma, fineness=8).sampled(rate)
    found = epsilon(run, delta)
    true = max(
        oracle.two_fold_delta(release, oracle.gaussian_hockey_stick(sigma, rate), found),
        oracle.two_fold_delta(release.mirrored(), oracle.absent_gaussian_hockey_stick(sigma, rate), found),
    )
    assert true * (1 - 1e-6) <= delta_of(run, found) <= delta * 1.01
    assert true == pytest.approx(delta, rel=0.02)


def test_no_delta_but_the_mass_at_infinity_is_left_at_the_largest_loss() -> None:
    assert delta_of(R(ev.PureDP(0.5), 3), 1.5 * (1 + 1e-14)) == 0.0
    run = R(ev.ApproximateDP(0.5, 1e-9), 3)
    assert delta_of(run, 1.6) == pytest.approx(3e-9, rel=1e-8)
    assert epsilon(run, 3e-9) == pytest.approx(1.5, rel=1e-12)
    assert epsilon(run, 2.9e-9) == math.inf


@pytest.mark.parametrize("other", [L(1.0), ev.PureDP(1.0), ev.DiscreteLaplace(2.0)])
def test_a_draw_with_hardly_any_noise_is_not_cheap(other: ev.Event) -> None:
    """Nearly all mass of the absent side has no counterpart in so bare a release; the mixture keeps it."""
    bare = P(G(0.05), 0.1)
    with_more = P(C([G(0.05), other]), 0.1)
    for steps in (1, 20):
        assert epsilon(R(with_more, steps), 1e-5) >= epsilon_bounds(R(bare, steps), 1e-5)[0]


def test_a_sampled_discrete_gaussian_of_large_sensitivity_is_not_cheap() -> None:
    discrete, continuous = (R(P(one, 0.1), 20) for one in (ev.DiscreteGaussian(1.0, 30), G(1 / 30)))
    assert epsilon(discrete, 1e-5) == pytest.approx(epsilon(continuous, 1e-5), rel=0.01)


def test_a_revealed_share_counts_when_sampled() -> None:
    # With probability q·δ₀ = 0.01 a step reveals all: twenty of them leave 1 − 0.99²⁰ = 0.182.
    run = R(P(ev.ApproximateDP(0.0, 0.1), 0.1), 20)
    assert epsilon(run, 0.18) == math.inf
    at = 0.3
    # Else it has loss log 0.9 with probability 0.09 and none with probability 0.9, which only lower δ.
    assert delta_of(run, at) == pytest.approx(1 - 0.99**20, rel=1e-3)


@pytest.mark.parametrize("angle", [math.pi, 2.5, math.pi / 2, 0.5])
@pytest.mark.parametrize(("sigma", "rate", "at"), [(1.0, 0.3, 0.5), (0.6, 0.1, 0.2), (2.0, 0.8, 0.3)])
def test_the_opposite_record_is_the_dearest_replacement(sigma: float, rate: float, at: float, angle: float) -> None:
    in_the_plane = oracle.replaced_delta_in_the_plane(sigma, rate, angle, at)
    ours = delta_of(P(G(sigma), rate), at, adjacency=REPLACE)
    if angle == math.pi:
        assert ours == pytest.approx(in_the_plane, rel=1e-4)
    else:
        assert in_the_plane < ours * (1 - 1e-3)


# --- composition ---

EVERY = [
    (G(2.0), ADD),
    (L(2.0), REPLACE),
    (P(G(1.0), 0.1), ADD),
    (P(G(1.0), 0.1), REPLACE),
    (P(L(1.0), 0.1), ADD),
    (P(C([G(2.0), L(1.0)]), 0.1), ADD),
    (ev.DiscreteGaussian(2.0), ADD),
    (ev.DiscreteLaplace(2.0), ADD),
    (ev.RandomizedResponse(0.3, 4), REPLACE),
    (ev.PureDP(0.3), ADD),
    (ev.Exponential(0.3), ADD),
    (ev.ApproximateDP(0.3, 1e-8), ADD),
    (ev.ZeroConcentratedDP(0.1), ADD),
    (ev.RenyiDP((2.0, 8.0), (0.1, 0.4)), ADD),
    (ev.SampledWithoutReplacement(G(2.0), 1, 10), REPLACE),
]


@pytest.mark.parametrize(("event", "adjacency"), EVERY, ids=repr)
def test_one_by_one_is_all_at_once(event: ev.Event, adjacency: str) -> None:
    singly, at_once = Composition(adjacency), Composition(adjacency)
    for _ in range(40):
        singly.add(event)
    at_once.add(event, 40)
    assert singly.events == at_once.events
    assert singly.epsilon(1e-5) == pytest.approx(at_once.epsilon(1e-5), rel=1e-6)
    assert epsilon(R(event, 40), 1e-5, adjacency=adjacency) == pytest.approx(at_once.epsilon(1e-5), rel=1e-9)
    assert at_once.epsilon(1e-5) > epsilon(event, 1e-5, adjacency=adjacency)


@pytest.mark.parametrize(("event", "adjacency"), EVERY, ids=repr)
def test_copies_are_independent(event: ev.Event, adjacency: str) -> None:
    one = Composition(adjacency)
    one.add(event, 30)
    before = one.epsilon(1e-5)
    twin = one.copy()
    twin.add(event, 60)
    assert twin.epsilon(1e-5) > before
    assert one.epsilon(1e-5) == pytest.approx(before, rel=1e-9)
    one.add(event, 60)
    assert one.epsilon(1e-5) == pytest.approx(twin.epsilon(1e-5), rel=1e-6)


def test_a_question_in_between_changes_nothing() -> None:
    asked, silent = Composition(), Composition()
    for sigma in np.linspace(0.8, 1.5, 25):
        for run in (asked, silent):
            run.add(P(G(float(sigma)), 0.05), 30)
        asked.epsilon(1e-5)
        asked.delta(1.0)
    assert asked.epsilon(1e-5) == pytest.approx(silent.epsilon(1e-5), rel=1e-5)
    low, high = silent.epsilon_bounds(1e-5)
    assert low <= asked.epsilon(1e-5) * (1 + 1e-12)
    assert high <= asked.epsilon(1e-5) * (1 + 1e-5)


# --- the ends ---

SILENT = [ev.PureDP(0.0), ev.Exponential(0.0), ev.ApproximateDP(0.0, 0.0), ev.ZeroConcentratedDP(0.0)]


@pytest.mark.parametrize("event", [*SILENT, ev.RandomizedResponse(0.0, 3, ADD), P(C(SILENT[:2]), 0.1)], ids=repr)
@pytest.mark.parametrize("count", [1, 2, 30])
def test_nothing_costs_nothing(event: ev.Event, count: int) -> None:
    assert epsilon(R(event, count), 1e-5) == 0.0
    assert delta_of(R(event, count), 0.1) < 1e-12


def test_nothing_beside_something_adds_nothing() -> None:
    run = R(P(G(1.0), 0.1), 100)
    assert epsilon(C([run, R(ev.PureDP(0.0), 5)]), 1e-5) == pytest.approx(epsilon(run, 1e-5), rel=1e-6)


@pytest.mark.parametrize(
    "run", [R(L(2.0), 3), R(ev.PureDP(0.5), 3), R(ev.RandomizedResponse(0.5, 5, ADD), 3)], ids=repr
)
def test_pure_privacy_has_its_sum_at_delta_zero_and_never_more(run: ev.Event) -> None:
    assert epsilon(run, 0.0) == pytest.approx(1.5, rel=1e-12)
    assert epsilon(run, 1e-300) <= 1.5 * (1 + 1e-12)


def test_no_pure_privacy_without_a_largest_loss() -> None:
    for event in (
        G(1.0),
        P(G(1.0), 0.1),
        ev.ApproximateDP(0.1, 1e-300),
        ev.DiscreteGaussian(1.0),
        ev.RenyiDP((2.0,), (0.0,)),
    ):
        assert epsilon(event, 0.0) == math.inf


@pytest.mark.parametrize(
    "event", [P(G(1.0), 0.1), P(L(1.0), 0.1), L(1.0), ev.PureDP(700.0), ev.DiscreteGaussian(1.0)], ids=repr
)
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("delta", [1e-300, 1e-40, 1 - 1e-9])
def test_extreme_deltas_are_answered_in_order(event: ev.Event, steps: int, delta: float) -> None:
    low, high = epsilon_bounds(R(event, steps), delta)
    assert 0 <= low <= high
    assert high <= epsilon_bounds(R(event, steps), min(delta, 0.9) * 1e-5)[1] * (1 + 1e-9)


def test_the_far_tail_of_a_discrete_gaussian_is_not_lost() -> None:
    """Its pair is cut off at twelve deviations, its curve is not: at δ = 1e-100 nearly the continuous 21.6."""
    continuous = epsilon(G(1.0), 1e-100)
    assert 0.98 * continuous <= epsilon(ev.DiscreteGaussian(1.0), 1e-100) <= 1.05 * continuous


@pytest.mark.parametrize("rate", [1 - 1e-12, 1 - 2.0**-53])
@pytest.mark.parametrize("steps", [1, 2, 30, 500])
def test_sampling_nearly_everyone_costs_what_everyone_does(rate: float, steps: int) -> None:
    low, high = epsilon_bounds(R(P(G(4.0), rate), steps), 1e-5)
    assert low <= epsilon(R(G(4.0), steps), 1e-5) * (1 + 1e-9) <= high * (1 + 1e-8)
    assert epsilon(R(P(G(4.0), 1.0), steps), 1e-5) == epsilon(R(G(4.0), steps), 1e-5)


@pytest.mark.parametrize("sigma", [1e-3, 0.05, 1e4])
@pytest.mark.parametrize("steps", [1, 2, 100, 10**7])
def test_extreme_noise_is_never_cheaper_than_its_lower_bound(sigma: float, steps: int) -> None:
    run = R(P(G(sigma), 0.1), steps)
    low, high = epsilon_bounds(run, 1e-5)
    assert low <= high
    assert high <= epsilon(R(G(sigma), steps), 1e-5) * (1 + 1e-6) or high == math.inf


def test_a_lower_bound_of_one_release_is_below_the_truth() -> None:
    # δ is a difference of two nearly equal masses: the answer is rounded up by 1e-5 of itself, not by 1e-10.
    low, high = epsilon_bounds(P(G(1.0), 1e-10), 1e-12)
    true = oracle.smallest_epsilon(
        lambda e: 1e-10 * oracle.gaussian_delta(1.0, math.log1p(math.expm1(e) / 1e-10)), 1e-12
    )
    assert low <= true * (1 + 1e-9)
    assert true <= high * (1 + 1e-9)


def test_more_delta_in_the_events_than_asked_for_is_infinite() -> None:
    event = ev.ApproximateDP(0.1, 1e-6)
    assert epsilon(R(event, 10), 1e-5) < math.inf
    assert epsilon(R(event, 11), 1e-5) == math.inf
    assert epsilon(C([R(event, 11), R(P(G(1.0), 0.1), 100)]), 1e-5) == math.inf


def test_an_unprotected_release_has_no_epsilon_wherever_it_hides() -> None:
    assert epsilon(C([G(1.0), ev.Unprotected()]), 0.9) == math.inf
    assert epsilon(P(ev.Unprotected(), 1.0), 1e-5) == math.inf
    drawn = ev.SampledWithoutReplacement(ev.Unprotected(), 1, 1000)
    assert epsilon(drawn, 1e-5, adjacency=REPLACE) == math.inf
    assert (
        epsilon(ev.SampledWithoutReplacement(ev.ApproximateDP(1.0, 1e-6, REPLACE), 1, 100), 1e-9, adjacency=REPLACE)
        == math.inf
    )
    with pytest.raises(UnsupportedEvent):
        epsilon(P(ev.Unprotected(), 0.1), 1e-5)


def test_an_empty_composition_costs_nothing() -> None:
    empty = Composition()
    assert (empty.epsilon(1e-5), empty.epsilon(0.0), empty.delta(0.0)) == (0.0, 0.0, 0.0)
    assert empty.epsilon_bounds(1e-5) == (0.0, 0.0)


def test_a_curve_puts_the_whole_composition_on_rdp() -> None:
    run = Composition()
    run.add(P(G(1.0), 0.1), 100)
    exact = run.epsilon(1e-5)
    assert run.is_exact
    run.add(ev.ZeroConcentratedDP(0.0))
    assert not run.is_exact
    assert exact < run.epsilon(1e-5) < 1.2 * exact
    assert run.epsilon_bounds(1e-5)[0] == 0.0


# --- refusals ---


@pytest.mark.parametrize("delta", [-0.1, 1.0, 2.0, math.nan, math.inf, "1e-5", None, True])
def test_a_delta_outside_zero_and_one_is_refused(delta: float) -> None:
    for ask in (epsilon, epsilon_bounds):
        with pytest.raises(InvalidArgument) as caught:
            ask(G(1.0), delta)
        assert caught.value.argument == "delta"


@pytest.mark.parametrize("at", [-0.1, math.nan, math.inf, "1"])
def test_an_epsilon_below_zero_is_refused(at: float) -> None:
    with pytest.raises(InvalidArgument) as caught:
        delta_of(G(1.0), at)
    assert caught.value.argument == "epsilon"


@pytest.mark.parametrize("count", [0, -1, 1.5, 2.0, math.nan, True, "3"])
def test_a_count_that_is_no_whole_number_is_refused(count: int) -> None:
    run = Composition()
    with pytest.raises(InvalidArgument) as caught:
        run.add(G(1.0), count)
    assert caught.value.argument == "count"
    assert run.events == {}


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: G(-1.0), "noise_multiplier"),
        (lambda: G(math.nan), "noise_multiplier"),
        (lambda: L(0.0), "noise_multiplier"),
        (lambda: P(G(1.0), 1.1), "sample_rate"),
        (lambda: P(G(1.0), 0.0), "sample_rate"),
        (lambda: R(G(1.0), 0), "count"),
        (lambda: C([]), "events"),
        (lambda: ev.PureDP(-0.1), "epsilon"),
        (lambda: ev.ApproximateDP(1.0, 1.0), "delta"),
        (lambda: Composition("swap"), "adjacency"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(make: Callable[[], object], argument: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert caught.value.argument == argument


def test_a_refused_event_leaves_the_composition_as_it_was() -> None:
    run = Composition()
    run.add(G(1.0))
    before = run.epsilon(1e-5)
    with pytest.raises(AdjacencyMismatch):
        run.add(C([G(1.0), ev.PureDP(1.0, REPLACE)]))
    with pytest.raises(UnknownEvent):
        run.add("Gaussian")  # type: ignore[arg-type]
    assert run.events == {G(1.0): 1}
    assert run.epsilon(1e-5) == before


def test_the_other_relation_is_refused_even_inside_a_draw() -> None:
    run = Composition(REPLACE)
    with pytest.raises(AdjacencyMismatch):
        run.add(ev.SampledWithoutReplacement(ev.PureDP(1.0, ADD), 1, 10))
    assert run.events == {}
