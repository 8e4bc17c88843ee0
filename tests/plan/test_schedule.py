"""A public noise schedule: what each round does, what is reserved for it, and that no history costs more than that."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from dpfed import accounting
from dpfed import events as ev
from dpfed.errors import InfeasibleTarget, InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.by_round import allows_attempt, choose_payment, compose, count_left, cover_local, cover_release
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.costs import compute_spent, find_charges_until
from dpfed.plan.fits import fit_budget
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan, Population
from dpfed.plan.schedule import list_covering, make_geometric, multiply, reserve_rounds, take_costliest
from dpfed.plan.tree import RoundTree, TreeNoise

DELTA = 1e-5
PART = LocalPlan(size=100, batch_size=10, steps=2, clip_norm=1.0, noise_multiplier=1.5)
WHOLE = LocalPlan(size=10, batch_size=10, steps=1, clip_norm=1.0, noise_multiplier=1.0)  # no sampling: one Gaussian
SERVER = ClientPlan(clip_norm=1.0, noise_multiplier=2.0)
SCHEDULE = (2.0, 0.5, 1.0, 1.0)


def a_plan(style="sample", schedule=SCHEDULE, part=PART, client=SERVER, **options):
    local = replace(part, noise_multiplier=None) if style == "user" else part
    given = {} if style == "sample" else {"client": client}
    names = options.pop("names", ("a", "b", "c"))
    return Plan(
        "study",
        len(schedule),
        dict.fromkeys(names, local),
        style=style,
        noise_schedule=schedule,
        **given,
        **options,
    )


def gaussians(**counts):
    return {ev.Gaussian(float(noise.removeprefix("z").replace("_", "."))): times for noise, times in counts.items()}


# ---- what a round does ----


@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_a_round_has_the_clients_noise_times_its_factor(style):
    plan = a_plan(style)
    for number, factor in enumerate(SCHEDULE, 1):
        part = plan.in_round(number).local["b"]
        assert part == replace(PART, noise_multiplier=1.5 * factor)
        assert part.event == ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.5 * factor), part.sample_rate), 2)


@pytest.mark.parametrize("style", ["user", "hybrid"])
def test_a_round_has_the_servers_noise_times_its_factor(style):
    plan = a_plan(style)
    for number, factor in enumerate(SCHEDULE, 1):
        assert plan.in_round(number).server.client == replace(SERVER, noise_multiplier=2 * factor)
        assert plan.in_round(number).client_event == ev.Gaussian(2 * factor)


def test_there_is_no_one_event_and_no_one_release_of_a_plan_whose_rounds_differ():
    for what in ("client_event", "server"):
        with pytest.raises(InvalidArgument, match=rf"in_round\(number\).{what}"):
            getattr(a_plan("user"), what)
    assert a_plan("user").sensitivity == a_plan("user").in_round(1).sensitivity


def test_without_a_schedule_every_round_is_the_plan_itself():
    plan = replace(a_plan("hybrid"), noise_schedule=None)
    assert plan.in_round(3) is plan
    assert plan.factor(3) == 1


def test_a_geometric_schedule_goes_from_the_first_factor_to_the_last():
    assert make_geometric(2.0, 0.5, 1) == (2.0,)
    assert make_geometric(2.0, 0.5, 2) == (2.0, 0.5)
    found = make_geometric(3.0, 0.1, 40)
    assert (found[0], found[-1], len(found)) == (3.0, 0.1, 40)
    assert np.allclose(np.diff(np.log(found)), math.log(0.1 / 3) / 39)


# ---- what is reserved ----


def test_where_all_take_part_each_round_is_reserved_as_itself():
    plan = a_plan("hybrid", part=WHOLE)
    assert plan.local_charges("a") == gaussians(z2=1, z0_5=1, z1=2)
    assert plan.study_charges() == gaussians(z4=1, z1=1, z2=2)


def test_a_client_that_takes_part_less_often_is_reserved_the_rounds_of_least_noise():
    plan = a_plan(part=WHOLE, cohort=FixedCohort(1), max_participations=2)
    assert plan.local_charges("a") == gaussians(z0_5=1, z1=1)


def test_every_spare_round_is_reserved_at_the_least_noise_of_all():
    assert a_plan(part=WHOLE, spare_rounds=3).local_charges("a") == gaussians(z2=1, z0_5=4, z1=2)
    capped = a_plan("hybrid", part=WHOLE, cohort=FixedCohort(1), max_participations=1, spare_rounds=2)
    assert capped.local_charges("a") == gaussians(z0_5=3)


@pytest.mark.parametrize("cohort", [All(), FixedCohort(1), PoissonCohort(0.3)], ids=str)
def test_the_study_pays_for_every_round_where_a_count_of_rounds_would_not_order_them(cohort):
    plan = a_plan("user", cohort=cohort, spare_rounds=1)
    assert plan.study_charges() == gaussians(z4=1, z1=2, z2=2)
    assert plan.client_commits({"a": 0}, ["a"], committed=3) == 1
    assert plan.client_commits({}, [], committed=0) == 1


@pytest.mark.parametrize("cohort", [PoissonCohort(0.3, secret=True), FixedCohort(1, secret=True)], ids=str)
def test_a_secret_cohort_pays_for_every_round_as_a_sample_of_its_own_noise(cohort):
    plan = a_plan("user", cohort=cohort)
    assert plan.study_charges() == {cohort.event(ev.Gaussian(2 * f), 3): SCHEDULE.count(f) for f in set(SCHEDULE)}


def test_a_round_whose_event_rounds_to_that_of_another_is_counted_too():
    twins = (1.9, math.nextafter(1.9, 2.0))
    noise = next(n for n in np.linspace(1, 2, 10**4) if n * twins[0] == n * twins[1])
    plan = a_plan(schedule=twins, part=replace(WHOLE, noise_multiplier=float(noise)))
    same = ev.Gaussian(float(noise) * 1.9)
    assert plan.local_charges("a") == {same: 2}
    assert cover_local(plan, "a", 2) == (same,)
    assert count_left(plan, "a", 2, {same: 1}) == 1


def test_a_population_has_a_schedule_at_the_server():
    phones = Population(1000, LocalPlan(size=20, batch_size=10, steps=1))
    plan = Plan("phones", 2, phones, style="user", client=SERVER, cohort=FixedCohort(5), noise_schedule=(1.0, 3.0))
    assert plan.study_charges() == gaussians(z2=1, z6=1)
    assert plan.in_round(2).local is phones
    assert Plan.from_json(plan.to_json()) == plan


# ---- no history costs more ----


def random_history(draws, rounds, most, spare):
    """Rounds that one client is in: some, in order, of which some are done again after a crash; and more, if it may."""
    chosen = sorted(draws.choice(rounds, size=draws.integers(0, min(rounds, most + spare) + 1), replace=False) + 1)
    again = min(spare, most + spare - len(chosen))
    extra = list(draws.choice(chosen, size=draws.integers(0, again + 1))) if len(chosen) else []
    return sorted(map(int, [*chosen, *extra]))


@pytest.mark.parametrize("seed", range(300))
def test_every_round_of_any_history_is_paid_by_a_reserved_event_of_no_more_noise(seed):
    draws = np.random.default_rng(seed)
    rounds, spare = int(draws.integers(1, 9)), int(draws.integers(0, 4))
    schedule = tuple(map(float, draws.choice([0.25, 0.5, 1.0, 1.3, 2.0, 4.0], size=rounds)))
    cap = int(draws.integers(1, rounds + 1))
    plan = a_plan(schedule=schedule, part=WHOLE, cohort=FixedCohort(1), max_participations=cap, spare_rounds=spare)
    reserved = plan.local_charges("a")
    left, spent = dict(reserved), Counter()
    assert sum(reserved.values()) == plan.record_charges
    for number in random_history(draws, rounds, cap, spare):
        covering = cover_local(plan, "a", number)
        assert sum(left[event] for event in covering) == count_left(plan, "a", number, spent) > 0
        event = choose_payment(covering, left)
        own = plan.in_round(number).local["a"].event
        assert event == own or (event.noise_multiplier < own.noise_multiplier and not left.get(own))
        left[event] -= 1
        spent[event] += 1
    assert min(left.values()) >= 0


@pytest.mark.parametrize("seed", range(12))
def test_no_history_has_a_larger_epsilon_than_the_plan_says(seed):
    draws = np.random.default_rng(1000 + seed)
    rounds, spare = int(draws.integers(2, 6)), int(draws.integers(0, 3))
    schedule = tuple(map(float, draws.uniform(0.4, 3.0, size=rounds).round(1)))
    cap = int(draws.integers(1, rounds + 1))
    part = replace(PART, norm="l1") if seed % 4 == 3 else PART
    plan = a_plan(schedule=schedule, part=part, cohort=PoissonCohort(0.5), max_participations=cap, spare_rounds=spare)
    stated = plan.epsilon("a", DELTA)
    for _ in range(6):
        history = random_history(draws, rounds, cap, spare)
        if history:
            events = Counter(plan.in_round(number).local["a"].event for number in history)
            assert accounting.epsilon(compose(events), DELTA) <= stated


def test_with_all_crashes_in_the_round_of_least_noise_the_statement_still_holds_and_is_met():
    plan = a_plan(part=WHOLE, cohort=FixedCohort(1), max_participations=1, spare_rounds=3)
    worst = ev.Repeated(plan.in_round(2).local["a"].event, 4)
    assert accounting.epsilon(worst, DELTA) == plan.epsilon("a", DELTA) == plan.record_epsilon(DELTA)


def test_with_no_more_than_the_spare_rounds_done_again_everybody_can_pay():
    plan = a_plan("hybrid", cohort=FixedCohort(1, secret=True), spare_rounds=1)
    assert [allows_attempt(plan, 2, begun) for begun in (1, 2, 3)] == [True, True, False]


def test_a_round_whose_own_event_is_spent_takes_the_next_costlier_and_never_a_cheaper():
    plan = a_plan("user")
    assert cover_release(plan, 1) == tuple(gaussians(z4=1, z2=1, z1=1))
    assert cover_release(plan, 3) == tuple(gaussians(z2=1, z1=1))
    assert cover_release(plan, 2) == tuple(gaussians(z1=1))
    assert choose_payment(cover_release(plan, 1), gaussians(z4=0, z2=1, z1=1)) == ev.Gaussian(2.0)


def test_the_pure_arithmetic_of_factors():
    assert reserve_rounds(None, 3, 2) == {1.0: 5}
    assert reserve_rounds((3.0, 1.0, 2.0), 2, 2) == {1.0: 3, 2.0: 1}
    assert list_covering((1.0, 2.0, 4.0), 2.0) == [2.0, 1.0]
    assert take_costliest({2.0: 2, 1.0: 1}, 2) == {1.0: 1, 2.0: 1}
    assert multiply({1.0: 2, 0.5: 1}, 3) == {1.0: 6, 0.5: 3}


# ---- what it costs ----


def by_dp_accounting(charges) -> float:
    accountant = PLDAccountant(value_discretization_interval=5e-4)
    for event, count in charges.items():
        noise = dpa.GaussianDpEvent(event.event.event.noise_multiplier)
        accountant.compose(dpa.PoissonSampledDpEvent(event.event.sample_rate, noise), event.count * count)
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize("options", [{}, {"cohort": FixedCohort(1), "max_participations": 2, "spare_rounds": 1}])
def test_the_statement_is_the_accountants_for_all_that_is_reserved(options):
    plan = a_plan(**options)
    charges = plan.local_charges("a")
    assert len(charges) == (2 if options else 3)
    assert plan.epsilon("a", DELTA) == plan.record_epsilon(DELTA) == accounting.epsilon(compose(charges), DELTA)
    assert plan.epsilon("a", DELTA) == pytest.approx(by_dp_accounting(charges), rel=1e-3)
    (statement,) = plan.statements(DELTA)
    assert statement.epsilon == plan.record_epsilon(DELTA)


def test_unequal_sites_together_cost_what_their_rounds_do():
    plan = replace(a_plan(names=("a", "b")), max_sites_per_person=2)
    both = ev.Composed([compose(plan.local_charges(name)) for name in ("a", "b")])
    assert plan.record_epsilon(DELTA) == pytest.approx(accounting.epsilon(both, DELTA), rel=1e-9)


CALIBRATED = {
    "sample": a_plan(),
    "sample, capped": a_plan(cohort=FixedCohort(1), max_participations=2, spare_rounds=1),
    "laplace": a_plan(part=replace(PART, norm="l1")),
    "adaptive": a_plan(part=replace(PART, adaptive=AdaptiveClip(0.5, 0.2, 50.0))),
    "two sites": a_plan(max_sites_per_person=2),
    "user": a_plan("user"),
    "user, secret": a_plan("user", cohort=PoissonCohort(0.2, secret=True), spare_rounds=1),
    "user, adaptive": a_plan("user", client=replace(SERVER, adaptive=AdaptiveClip(0.5, 0.2, 50.0))),
}


@pytest.mark.parametrize("plan", CALIBRATED.values(), ids=CALIBRATED)
def test_calibrated_noise_is_the_least_that_keeps_the_promise(plan):
    unit = plan.units[0]
    promise = Guarantee(3.0, DELTA, unit)
    found = plan.calibrated(promise)
    (kept,) = found.statements()
    assert 3.0 * 0.995 < kept.epsilon <= 3.0
    noise = found.client.noise if unit == "client" else found.local["a"].noise
    assert noise != (2.0 if unit == "client" else 1.5)
    assert found.noise_schedule == SCHEDULE


@pytest.mark.parametrize("noise", ["own", "shared"])
def test_unequal_sites_are_calibrated_over_the_schedule(noise):
    plan = replace(a_plan(), local={"a": PART, "b": replace(PART, size=500)})
    found = plan.calibrated(Guarantee(3.0, DELTA), noise=noise)
    assert 2.98 < found.record_epsilon(DELTA) <= 3.0
    assert (found.local["a"].noise == found.local["b"].noise) == (noise == "shared")


def test_the_event_of_a_round_with_adaptive_clipping_is_that_of_its_sum_and_its_count():
    adaptive = AdaptiveClip(0.5, 0.2, count_noise=10.0)
    plan = a_plan("user", client=replace(SERVER, adaptive=adaptive))
    for number, factor in enumerate(SCHEDULE, 1):
        server = plan.in_round(number).server
        both = (ev.Gaussian(server.client.sum_noise), ev.Gaussian(20.0))
        assert plan.in_round(number).client_event == ev.Composed(both)
        precision = server.client.sum_noise**-2 + 20.0**-2
        assert precision**-0.5 == pytest.approx(2 * factor)


def test_a_count_with_too_little_noise_for_one_of_the_rounds_is_refused():
    adaptive = AdaptiveClip(0.5, 0.2, count_noise=1.5)  # enough for noise below 3, and the first round has 4
    with pytest.raises(InvalidArgument, match="count_noise must be above 2"):
        a_plan("user", client=replace(SERVER, adaptive=adaptive))
    bare = a_plan("user", client=ClientPlan(clip_norm=1.0, adaptive=adaptive))
    with pytest.raises(InfeasibleTarget, match="count_noise well above"):
        bare.calibrated(Guarantee(1.0, DELTA, "client"))


def test_after_each_round_the_rounds_that_ran_are_counted():
    plan = a_plan("hybrid", part=WHOLE)
    local, releases = find_charges_until(plan, 2)
    assert local["a"] == gaussians(z2=1, z0_5=1)
    assert releases == gaussians(z4=1, z1=1)
    spent = compute_spent(plan, {"record": DELTA, "client": DELTA}, *find_charges_until(plan, 4))
    assert spent.statements == plan.statements(DELTA)
    capped = a_plan(part=WHOLE, cohort=FixedCohort(1), max_participations=1)
    assert find_charges_until(capped, 1)[0]["a"] == gaussians(z0_5=1)


def test_fewer_rounds_of_a_schedule_are_its_first():
    plan = a_plan(schedule=(4.0, 4.0, 4.0, 0.3), part=WHOLE)
    three = a_plan(schedule=(4.0, 4.0, 4.0), part=WHOLE).record_epsilon(DELTA)
    assert fit_budget(plan, Guarantee(three, DELTA)).rounds == 3
    assert fit_budget(plan, Guarantee(three * 0.99, DELTA)).rounds == 2
    assert fit_budget(plan, Guarantee(1000.0, DELTA)).rounds == 4
    noise = fit_budget(plan, Guarantee(1.0, DELTA)).noise_multiplier
    assert a_plan(schedule=plan.noise_schedule, part=replace(WHOLE, noise_multiplier=noise)).record_epsilon(DELTA) <= 1


# ---- what is refused ----


@pytest.mark.parametrize("bad", [(1.0, 0.0), (1.0, -1.0), (1.0, math.nan), (1.0, math.inf), (1.0, True), (1.0, "2")])
def test_a_factor_that_is_no_positive_number_is_refused(bad):
    with pytest.raises(InvalidArgument, match="noise_schedule must be a positive finite number"):
        a_plan(schedule=bad)


def test_factors_that_can_be_read_once_only_are_kept():
    assert replace(a_plan(), noise_schedule=iter(SCHEDULE)).noise_schedule == SCHEDULE


@pytest.mark.parametrize("bad", ["12", 2.0, {1: 1.0, 2: 2.0}])
def test_what_is_no_list_is_refused(bad):
    with pytest.raises(InvalidArgument, match="give a list such as"):
        replace(a_plan(), noise_schedule=bad)


def test_a_schedule_of_another_length_than_the_rounds_is_refused():
    with pytest.raises(InvalidArgument, match="a factor for each of the 3 rounds, got 4"):
        replace(a_plan(), rounds=3)


def test_a_tree_is_refused():
    with pytest.raises(InvalidArgument, match="a tree is proved for one noise"):
        a_plan(part=replace(PART, tree=TreeNoise(1), steps=5))
    tree = replace(SERVER, tree=RoundTree())
    with pytest.raises(InvalidArgument, match="a tree is proved for one noise"):
        a_plan("user", client=tree, max_participations=4)


def test_a_style_without_noise_is_refused():
    with pytest.raises(InvalidArgument, match="adds no noise"):
        Plan("study", 2, {"a": replace(PART, noise_multiplier=None)}, style="none", noise_schedule=(1.0, 2.0))


def test_noise_beyond_every_number_is_refused_when_the_plan_is_made():
    with pytest.raises(InvalidArgument, match="noise_multiplier"):
        a_plan(schedule=(1.0, 1e308), part=replace(PART, noise_multiplier=100.0))


def test_a_promise_that_the_scheduled_noise_does_not_keep_is_refused():
    kept = a_plan().record_epsilon(DELTA)
    replace(a_plan(), guarantee=Guarantee(kept, DELTA))
    with pytest.raises(InvalidArgument, match="all rounds cost a"):
        replace(a_plan(), guarantee=Guarantee(kept * 0.999, DELTA))


# ---- words and files ----


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_the_file_of_a_plan_has_its_schedule(style):
    plan = a_plan(style)
    assert json.loads(plan.to_json())["noise_schedule"] == list(SCHEDULE)
    assert Plan.from_json(plan.to_json()) == plan


def test_the_file_of_a_plan_without_a_schedule_is_as_it_always_was():
    plan = replace(a_plan("hybrid"), noise_schedule=None)
    assert "noise_schedule" not in plan.to_json()
    assert Plan.from_json(plan.to_json()) == plan


def test_the_words_of_a_plan_say_each_rounds_noise_and_what_is_reserved():
    text = a_plan(cohort=FixedCohort(1), max_participations=2, spare_rounds=1).explain()
    assert "noise multiplied by 0.5 to 2 by round" in text
    assert "times 2 in round 1, 0.5 in round 2, 1 in rounds 3 to 4" in text
    assert "the 2 rounds of least noise, and the least noise 1 time more" in text
    long = a_plan(schedule=make_geometric(1.0, 0.1, 50)).explain()
    assert "…, 0.1 in round 50" in long
