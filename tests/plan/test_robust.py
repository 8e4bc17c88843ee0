"""Every style with every rule: offered where noise is proved or nobody adds any behind it, refused with what is."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.aggregation.robust_rules import (
    Bucketing,
    CenteredClipping,
    FixedGroups,
    NearestNeighbourMixing,
    TrimmedMean,
)
from dpfed.aggregation.rules import RULES, Mean, choose_rule
from dpfed.errors import BreakdownError, InvalidArgument
from dpfed.plan.plan import ClientPlan, FixedCohort, LocalPlan, Plan, PoissonCohort, Quarantine
from dpfed.plan.population import Population
from dpfed.plan.robust import count_aside, describe_rule
from dpfed.plan.tree import RoundTree
from dpfed.randomness import SeededSource

STYLES = ("none", "sample", "user", "hybrid", "local")
SERVER = ("user", "hybrid")
NAMES = tuple("abcdefghijk")  # eleven: enough for Bulyan to bear two
SIZE = 4


def make_plan(style, rule=None, names=NAMES, **options):
    noise = 1.0 if style in ("sample", "hybrid") else None
    local = LocalPlan(size=9, batch_size=3, steps=1, clip_norm=1.0, noise_multiplier=noise)
    client = ClientPlan(clip_norm=1.0, noise_multiplier=1.0) if style in (*SERVER, "local") else None
    given_rule = {} if rule is None else {"aggregation": rule}
    options = {"weighting": "equal", "client": client, **options}
    return Plan("study", 2, dict.fromkeys(names, local), style=style, **given_rule, **options)


def make_rule(kind, style):
    if kind == "mean":
        return Mean()
    needs_clip = kind == "norm_bounded_mean" or (kind == "centered_clipping" and style not in SERVER)
    return RULES[kind](max_faulty=2, **({"clip_norm": 1.0} if needs_clip else {}))


OFFERED = {(style, kind) for style in STYLES for kind in RULES if style not in SERVER}
OFFERED |= {(style, kind) for style in SERVER for kind in ("mean", "centered_clipping")}


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("style", STYLES)
def test_each_style_takes_the_rules_that_are_proved_in_it(style, kind):
    rule = make_rule(kind, style)
    if (style, kind) in OFFERED:
        plan = make_plan(style, rule)
        assert Plan.from_json(plan.to_json()) == plan
        assert plan.aggregation == rule
        return
    with pytest.raises(InvalidArgument, match="centered_clipping with max_faulty 2") as refusal:
        make_plan(style, rule)
    reason = "the mean is a clipped one already" if kind == "norm_bounded_mean" else "moves .* by up to two clip norms"
    refusal.match(reason)


@pytest.mark.parametrize("before", [NearestNeighbourMixing(), Bucketing(2)])
@pytest.mark.parametrize("style", STYLES)
def test_mixing_goes_where_rules_are_post_processing(style, before):
    rule = CenteredClipping(max_faulty=2, before=before, clip_norm=None if style in SERVER else 1.0)
    if style in SERVER:
        with pytest.raises(InvalidArgument, match="proved without mixing"):
            make_plan(style, rule)
    else:
        assert make_plan(style, rule).aggregation.before == before


@pytest.mark.parametrize("style", SERVER)
@pytest.mark.parametrize(("options", "why"), [({"steps": 2}, "one step"), ({"clip_norm": 2.0}, "of its own")])
def test_centred_clipping_at_the_server_is_one_step_to_the_norm_that_the_noise_is_for(style, options, why):
    with pytest.raises(InvalidArgument, match=why):
        make_plan(style, CenteredClipping(max_faulty=1, **options))


@pytest.mark.parametrize("style", ["none", "sample", "local"])
def test_centred_clipping_elsewhere_needs_a_clip_norm(style):
    with pytest.raises(InvalidArgument, match="a clip_norm of its own"):
        make_plan(style, CenteredClipping(max_faulty=1))


def test_a_tree_over_the_rounds_is_not_offered_with_centred_clipping():
    client = ClientPlan(clip_norm=1.0, noise_multiplier=1.0, tree=RoundTree())
    with pytest.raises(InvalidArgument, match="leave tree out"):
        make_plan("user", CenteredClipping(max_faulty=1), client=client, max_participations=2)


@pytest.mark.parametrize("style", ["none", "sample", "local"])
def test_a_robust_rule_counts_every_client_once(style):
    with pytest.raises(InvalidArgument, match="weighting: equal"):
        make_plan(style, choose_rule(style, 2), weighting="declared")


def test_a_cohort_that_can_never_be_enough_is_refused_before_anything_is_spent():
    with pytest.raises(BreakdownError, match="bulyan needs 11 updates to bear 2 faulty ones, and 8 came"):
        make_plan("sample", RULES["bulyan"](max_faulty=2), NAMES[:8])
    with pytest.raises(BreakdownError):
        make_plan("sample", choose_rule("sample", 2), cohort=FixedCohort(4))
    with pytest.raises(BreakdownError):
        make_plan("user", choose_rule("user", 6))
    with pytest.raises(BreakdownError, match="krum needs 7"):
        make_plan("none", RULES["krum"](max_faulty=2, before=Bucketing(2)))
    assert make_plan("sample", choose_rule("sample", 2), cohort=PoissonCohort(0.5)).aggregation.max_faulty == 2


def row_of(seed, length):
    direction = SeededSource(seed).normal(SIZE)
    return length * direction / np.linalg.norm(direction)


@pytest.mark.parametrize("style", SERVER)
@given(seed=st.integers(0, 10**6), length=st.floats(0, 1e6), gone=st.sampled_from(NAMES), far=st.floats(0, 10))
def test_one_client_moves_one_step_of_centred_clipping_by_a_clip_norm_at_most(style, seed, length, gone, far):
    """At zero noise, exactly: what noise is added to, through the release of the plan."""
    plan = make_plan(style, CenteredClipping(max_faulty=2))
    updates = {name: row_of(seed + place, length) for place, name in enumerate(NAMES)}
    centre, other = row_of(seed + 99, far), {**updates, gone: row_of(seed + 77, 1e3)}
    rest = {name: update for name, update in updates.items() if name != gone}
    whole = plan.server.query(updates, SIZE, centre=centre)
    moved = [whole - plan.server.query(each, SIZE, centre=centre) for each in (rest, other)]
    squares = [sum(Fraction(x) ** 2 for x in each) for each in moved]
    assert squares[0] <= 1
    assert squares[1] <= 4


@pytest.mark.parametrize("style", SERVER)
def test_centred_clipping_has_the_noise_the_event_and_the_sensitivity_of_the_mean(style):
    robust, plain = make_plan(style, CenteredClipping(max_faulty=2)), make_plan(style)
    assert robust.client_event == plain.client_event
    assert robust.sensitivity == plain.sensitivity
    noise = [plan.server.release({}, SIZE, SeededSource(3)).average for plan in (robust, plain)]
    assert (noise[0] == noise[1]).all()


def test_a_release_is_around_the_last_one():
    plan = make_plan("user", CenteredClipping(max_faulty=2))
    centre, updates = np.full(SIZE, 5.0), {name: np.full(SIZE, 5.01) for name in NAMES}
    noise = plan.server.release({}, SIZE, SeededSource(3)).average
    released = plan.server.release(updates, SIZE, SeededSource(3), centre=centre).average
    assert np.allclose(released - noise, 5.01, atol=1e-6)
    assert np.allclose(plan.server.release({}, SIZE, SeededSource(3), centre=centre).average - noise, 5.0)


def test_a_mean_ignores_a_centre():
    plan = make_plan("user")
    updates = {name: np.full(SIZE, 0.1) for name in NAMES}
    assert (plan.server.query(updates, SIZE, centre=np.ones(SIZE)) == plan.server.query(updates, SIZE)).all()


@pytest.mark.parametrize("style", STYLES)
def test_quarantine_is_refused_where_it_would_change_the_sensitivity(style):
    if style in SERVER:
        with pytest.raises(InvalidArgument, match="must not depend on the updates of others"):
            make_plan(style, choose_rule(style, 2), quarantine=Quarantine())
    else:
        plan = make_plan(style, choose_rule(style, 2), quarantine=Quarantine(strikes=2))
        assert Plan.from_json(plan.to_json()) == plan
        assert count_aside(plan) == 2


def test_quarantine_needs_a_robust_rule_that_can_miss_somebody():
    with pytest.raises(InvalidArgument, match="name a robust rule"):
        make_plan("none", quarantine=Quarantine())
    with pytest.raises(InvalidArgument, match="nobody can be put aside"):
        make_plan("none", RULES["bulyan"](max_faulty=2), quarantine=Quarantine())
    with pytest.raises(InvalidArgument, match=r"must be a Quarantine\(\)"):
        make_plan("none", choose_rule("none", 2), quarantine="yes")


def test_quarantine_is_refused_where_a_shuffler_takes_names_away():
    shuffled = ClientPlan(clip_norm=1.0, noise_multiplier=1.0, norm="l1", shuffle_users=3)
    with pytest.raises(InvalidArgument, match="nobody knows whose report is whose"):
        make_plan("local", choose_rule("local", 2), client=shuffled, quarantine=Quarantine())


def test_a_rule_that_can_never_do_its_work_is_refused_before_anything_is_spent():
    with pytest.raises(BreakdownError, match="needs 12 updates"):
        make_plan("sample", RULES["multi_krum"](max_faulty=2, chosen=10))
    many = tuple(f"site-{number}" for number in range(24))
    with pytest.raises(InvalidArgument, match="subsets"):
        make_plan("sample", RULES["minimum_diameter"](max_faulty=9), names=many)


def test_a_plan_without_a_robust_rule_is_written_as_ever():
    assert "quarantine" not in make_plan("sample").to_json()
    assert '"aggregation": {\n    "kind": "mean"\n  }' in make_plan("sample").to_json()
    assert describe_rule(make_plan("sample")) == []


@pytest.mark.parametrize("style", STYLES)
def test_a_plan_says_its_rule_and_why_its_noise_holds(style):
    plan = make_plan(style, choose_rule(style, 2))
    text = plan.explain()
    assert f"combined by {plan.aggregation.kind}" in text
    assert {"user": "around the last release", "hybrid": "around the last release"}.get(style, "behind nnm") in text
    assert (
        "at most 2 clients at a time"
        in replace(make_plan("none", TrimmedMean(max_faulty=2)), quarantine=Quarantine()).explain()
    )


GROUPED = TrimmedMean(max_faulty=2, before=FixedGroups(5))


@pytest.mark.parametrize("style", STYLES)
def test_groups_are_offered_where_the_server_noises_and_refused_elsewhere(style):
    if style not in SERVER:
        with pytest.raises(InvalidArgument, match="adds no noise that groups could share: choose bucketing"):
            make_plan(style, GROUPED)
        return
    plan = make_plan(style, GROUPED)
    assert Plan.from_json(plan.to_json()) == plan
    plain = make_plan(style)
    assert plan.study_charges() == plain.study_charges()
    assert plan.client_epsilon(1e-5) == plain.client_epsilon(1e-5)
    (line,) = describe_rule(plan)
    assert "of 5 fixed groups of 2 or 3 clients, each with the noise above on its sum" in line


@pytest.mark.parametrize(
    ("rule", "options", "why"),
    [
        (GROUPED, {"weighting": "declared"}, "weighting: equal"),
        (TrimmedMean(max_faulty=2, before=FixedGroups(12)), {}, "at most the 11 clients"),
        (CenteredClipping(max_faulty=2, before=FixedGroups(5), clip_norm=1.0), {}, "needs no groups"),
        (
            GROUPED,
            {"client": ClientPlan(clip_norm=1.0, noise_multiplier=1.0, tree=RoundTree()), "max_participations": 2},
            "leave tree out",
        ),
    ],
)
def test_groups_that_are_not_proved_or_say_nothing_are_refused(rule, options, why):
    with pytest.raises(InvalidArgument, match=why):
        make_plan("user", rule, **options)


def test_groups_too_few_for_a_rule_are_refused_and_a_population_has_none():
    with pytest.raises(BreakdownError, match="trimmed_mean needs 5 updates to bear 2 faulty ones, and 4 came"):
        make_plan("user", TrimmedMean(max_faulty=2, before=FixedGroups(4)))
    local = Population(count=100, each=LocalPlan(size=9, batch_size=3, steps=1))
    client = ClientPlan(clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(InvalidArgument, match="those of a population are made when they are drawn"):
        Plan("study", 2, local, style="user", client=client, weighting="equal", aggregation=GROUPED)
