"""A population is charged, drawn and written as a dict of as many equal clients, without being one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.cohort import AT_ONCE
from dpfed.plan.plan import All, ClientPlan, FixedCohort, LocalPlan, Plan, PoissonCohort, Population
from dpfed.plan.population import MOST, Names, names_of
from dpfed.plan.tree import RoundTree
from dpfed.randomness import SeededSource

FALSE_ALARM = 1e-6  # of each statistical test here, were its seed drawn anew
EACH = LocalPlan(size=20, batch_size=10, steps=2)
MANY = Population(1_000_000, EACH)
COHORTS = {
    "all": All(),
    "poisson": PoissonCohort(0.1),
    "poisson, secret": PoissonCohort(0.1, secret=True),
    "fixed": FixedCohort(7),
    "fixed, secret": FixedCohort(7, secret=True),
}
every_cohort = pytest.mark.parametrize("cohort", COHORTS.values(), ids=COHORTS)


class Accounts:
    """A client of a dict, for what accounts are charged."""

    account = ""

    def __init__(self, name) -> None:
        self.name = name


def a_plan(local, style="user", **options) -> Plan:
    client = {"client": ClientPlan(clip_norm=0.5, noise_multiplier=2.0)} if style == "user" else {}
    return Plan("study", 20, local, style=style, **{**client, **options})


def both(count=60, **options) -> tuple[Plan, Plan]:
    """The same plan over a population, and over a dict of as many equal clients."""
    population = Population(count, EACH)
    return a_plan(population, **options), a_plan(dict.fromkeys(population.names, EACH), **options)


# ---- names ----


def test_a_name_is_a_prefix_and_a_number():
    names = Population(12, EACH, prefix="phone-").names
    assert (len(names), names[0], names[-1], names[3:5]) == (12, "phone-0", "phone-11", ("phone-3", "phone-4"))
    assert list(names) == [f"phone-{number}" for number in range(12)]
    assert all(Population(12, EACH, prefix="phone-").number(name) == place for place, name in enumerate(names))
    with pytest.raises(IndexError):
        names[12]


@pytest.mark.parametrize(
    "name",
    [
        *("client-12", "client-03", "client-+3", "client--3", "client- 3", "client-1_0", "client-", "client", "3", ""),
        *("client-٣", "client-³", "client-3.0", "Client-3", "client-" + "9" * 5000, "client-3\n", 3, None),
    ],
)
def test_no_client_has_two_names_and_no_other_name_is_a_clients(name):
    population = Population(12, EACH)
    assert name not in population
    with pytest.raises((KeyError, TypeError)):
        population[name]


def test_no_plan_looks_at_each_client_of_a_population(monkeypatch):
    monkeypatch.setattr(Population, "__iter__", None)
    monkeypatch.setattr(Names, "__iter__", None, raising=False)
    plan = a_plan(MANY, cohort=PoissonCohort(1e-4, secret=True))
    assert (len(plan.local), plan.local["client-999999"], plan.kinds) == (1_000_000, EACH, (EACH,))
    assert plan.local == Population(1_000_000, EACH) != Population(1_000_000, EACH, prefix="c")
    assert plan.server.largest_weight() == 1 / (Fraction(1e-4) * 1_000_000)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((0, EACH), "count"),
        ((2.5, EACH), "count"),
        ((True, EACH), "count"),
        ((MOST + 1, EACH), "would not be exact"),
        ((5, {"a": EACH}), "a dict of LocalPlans"),
        ((5, EACH, 3), "prefix must be"),
        ((5, EACH, "a\nb"), "prefix must be"),
        ((5, EACH, "x" * 65), "prefix must be"),
    ],
)
def test_what_is_no_population_is_refused(arguments, why):
    with pytest.raises(InvalidArgument, match=why):
        Population(*arguments)


# ---- what is refused ----


@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_styles_that_charge_each_clients_account_are_refused(style):
    each = replace(EACH, clip_norm=1.0, noise_multiplier=2.0)
    client = {"client": ClientPlan(clip_norm=1.0, noise_multiplier=2.0)} if style == "hybrid" else {}
    with pytest.raises(InvalidArgument, match=r"have no accounts, and style .* choose style='user'"):
        Plan("study", 2, Population(5, each), style=style, **client)


def test_noise_at_the_clients_of_a_population_is_refused():
    with pytest.raises(InvalidArgument, match="adds no noise at the clients"):
        a_plan(Population(5, replace(EACH, clip_norm=1.0, noise_multiplier=2.0)))


def test_a_subclass_might_train_by_other_plans_than_are_charged():
    class Own(Population):
        pass

    with pytest.raises(InvalidArgument, match="got the subclass Own"):
        a_plan(Own(5, EACH))


def test_clients_with_accounts_are_refused():
    with pytest.raises(InvalidArgument, match=r"none are listed; got 1: give the runner ClientFactory"):
        a_plan(Population(1, EACH)).charges([Accounts("client-0")], "study")


# ---- the charge is that of a dict ----


@every_cohort
@pytest.mark.parametrize("more", [{}, {"spare_rounds": 3}, {"weighting": "equal"}], ids=["plain", "spare", "equal"])
def test_the_charge_is_that_of_a_dict_of_as_many_equal_clients(cohort, more):
    population, named = both(cohort=cohort, **more)
    assert population.charges([], "study") == named.charges(map(Accounts, named.local), "study")
    for value in ("client_event", "client_charges", "client_adjacency", "participations", "is_secret", "units"):
        assert getattr(population, value) == getattr(named, value)
    assert population.client_epsilon(1e-5) == named.client_epsilon(1e-5)
    assert population.statements(1e-5) == named.statements(1e-5)
    assert (population.sensitivity, population.weights) == (named.sensitivity, named.weights)
    assert population.largest_norm(9) == named.largest_norm(9)


@every_cohort
def test_the_noise_is_calibrated_as_that_of_a_dict(cohort):
    population, named = both(cohort=cohort)
    promise = Guarantee(3.0, 1e-5, "client", population.client_adjacency)
    assert population.calibrated(promise).client == named.calibrated(promise).client


def test_a_tree_over_the_rounds_is_charged_as_that_of_a_dict():
    tree = ClientPlan(clip_norm=0.5, noise_multiplier=2.0, tree=RoundTree(min_separation=3))
    population, named = both(cohort=FixedCohort(7), client=tree, max_participations=4)
    assert population.study_charges() == named.study_charges()
    assert population.client_epsilon(1e-5) == named.client_epsilon(1e-5)


def test_a_million_secret_draws_are_charged_at_their_rate():
    sampled = a_plan(MANY, cohort=PoissonCohort(1e-4, secret=True)).client_event
    assert sampled.sample_rate == np.ceil(Fraction(1e-4) * 2**53) / 2**53
    fixed = a_plan(MANY, cohort=FixedCohort(100, secret=True)).client_event
    assert (fixed.sample_size, fixed.population) == (100, 1_000_000)


# ---- draws ----


@every_cohort
def test_a_seed_draws_the_same_clients_of_a_population_as_of_a_dict(cohort):
    population, named = both(cohort=cohort)
    for seed in range(20):
        assert population.draw(SeededSource(seed)) == named.draw(SeededSource(seed))


def test_a_poisson_cohort_of_a_million_is_one_coin_of_53_bits_each_compared_as_whole_numbers():
    cohort, count = PoissonCohort(0.001), 3 * AT_ONCE + 17
    heads = int(Fraction(cohort.chance(count)) * 2**53)
    coins = SeededSource(5).words(count) >> np.uint64(11)
    drawn = Population(count, EACH)
    assert cohort.draw(drawn.names, SeededSource(5)) == tuple(drawn.names[n] for n in range(count) if coins[n] < heads)


@pytest.mark.parametrize("rate", [1e-4, 1 / 3, 0.1])
def test_a_coin_that_is_the_rate_itself_takes_nobody_and_the_next_one_below_takes_all(rate):
    class Coins(SeededSource):
        side = int(Fraction(PoissonCohort(rate).chance(1)) * 2**53)

        def coins(self, count):
            return np.full(count, self.side, dtype=np.uint64)

    class Below(Coins):
        side = Coins.side - 1

    names = Population(1_000, EACH).names
    assert PoissonCohort(rate).draw(names, Coins(1)) == ()
    assert PoissonCohort(rate).draw(names, Below(1)) == tuple(names)


def dense(size, names, source):
    """Fisher and Yates with the whole order in memory."""
    order = list(range(len(names)))
    for place in range(size):
        other = place + int(source.integers(len(names) - place))
        order[place], order[other] = order[other], order[place]
    return tuple(names[index] for index in sorted(order[:size]))


@pytest.mark.parametrize(("size", "count"), [(1, 1), (3, 3), (2, 3), (7, 10), (50, 60), (100, 100)])
def test_a_sparse_shuffle_is_the_dense_one(size, count):
    names = Population(count, EACH).names
    for seed in range(50):
        assert FixedCohort(size).draw(names, SeededSource(seed)) == dense(size, names, SeededSource(seed))


def numbers_of(plan: Plan, rounds: int, seed: int) -> list[list[int]]:
    source = SeededSource(seed)
    return [[plan.local.number(name) for name in plan.draw(source)] for _ in range(rounds)]


def test_each_of_a_population_is_in_a_poisson_cohort_at_its_rate():
    """Over many rounds of a few, and over a few rounds of a million, in a hundred blocks of neighbours."""
    rounds, rate = 4_000, 0.05
    few = np.bincount(
        np.concatenate(numbers_of(both(80, cohort=PoissonCohort(rate))[0], rounds, 8)).astype(int), minlength=80
    )
    score = ((few - rounds * rate) ** 2).sum() / (rounds * rate * (1 - rate))
    assert stats.chi2(80).sf(score) > FALSE_ALARM / 2
    drawn = np.concatenate(numbers_of(a_plan(MANY, cohort=PoissonCohort(0.001)), 40, 9))
    blocks = np.bincount(drawn // 10_000, minlength=100)
    expected, variance = 40 * 10_000 * 0.001, 40 * 10_000 * 0.001 * 0.999
    assert stats.chi2(100).sf(((blocks - expected) ** 2).sum() / variance) > FALSE_ALARM / 2


def test_every_client_of_a_million_and_every_pair_of_a_few_is_equally_likely_in_a_fixed_cohort():
    drawn = numbers_of(a_plan(MANY, cohort=FixedCohort(100)), 400, 10)
    assert all(len(set(each)) == 100 for each in drawn)
    flat = np.concatenate(drawn)
    # Without replacement counts vary less than the test assumes, by a part in ten thousand.
    assert stats.chisquare(np.bincount(flat // 10_000, minlength=100)).pvalue > FALSE_ALARM / 3
    assert stats.chisquare(np.bincount(flat % 97, minlength=97)).pvalue > FALSE_ALARM / 3
    pairs = numbers_of(both(7, cohort=FixedCohort(2))[0], 20_000, 11)
    seen = np.bincount([7 * one + two for one, two in pairs], minlength=49)
    assert (seen > 0).sum() == 21
    assert stats.chisquare(seen[seen > 0]).pvalue > FALSE_ALARM / 3


# ---- words and files ----


def test_a_plan_of_a_million_is_explained_in_a_few_lines():
    text = a_plan(MANY, cohort=PoissonCohort(1e-4, secret=True)).explain()
    assert "- 1000000 clients from client-0 to client-999999: 2 steps a round" in text
    assert len(text) < 2_000


@every_cohort
def test_a_population_comes_back_from_json(cohort):
    plan, named = both(cohort=cohort)
    found = Plan.from_json(plan.to_json())
    assert found == plan != named
    assert (type(found.local), found.to_json()) == (Population, plan.to_json())
    assert json.loads(plan.to_json())["local"] == {"count": 60, "prefix": "client-", "each": EACH.to_plain()}


def test_only_a_population_is_written_in_the_new_version():
    plan, named = both()
    assert [json.loads(each.to_json())["version"] for each in (plan, named)] == [7, 6]


def test_a_plan_over_a_dict_is_written_as_before_populations_even_with_clients_of_their_fields_names():
    local = {"count": EACH, "each": replace(EACH, size=30)}
    client = ClientPlan(clip_norm=1.0, noise_multiplier=2.0)
    plan = Plan("study", 3, local, style="user", client=client, cohort=PoissonCohort(0.5, secret=True))
    known = "11f71acd4793e0cf8977a44cf060c1340716a40f1314c4229272b5c93300c47b"  # by the version before
    assert hashlib.sha256(plan.to_json().replace('"version": 6', '"version": 4').encode()).hexdigest() == known
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    "change",
    [{"count": 0}, {"count": "9"}, {"prefix": 3}, {"each": {}}, {"more": 1}, {"each": None}],
    ids=str,
)
def test_a_damaged_population_is_refused(change):
    plain = json.loads(both()[0].to_json())
    plain["local"] |= change
    with pytest.raises(InvalidArgument):
        Plan.from_json(json.dumps(plain))


def test_a_population_under_another_version_is_refused():
    plain = json.loads(both()[0].to_json())
    with pytest.raises(InvalidArgument):
        Plan.from_json(json.dumps(plain | {"version": 4}))


def test_a_dict_has_its_names_in_their_order():
    assert names_of({"b": EACH, "a": EACH}) == ("b", "a")
