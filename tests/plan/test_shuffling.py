"""A shuffler in the plan: the second statement, what it rests on, and where it is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dpfed import events as ev
from dpfed.accounting import epsilon
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan import ClientPlan, FixedCohort, LocalPlan, Plan, PoissonCohort
from dpfed.plan.rules import require_stateful
from dpfed.plan.shuffling import combine_reports, find_shuffled

DELTA = 1e-5
NAMES = [f"phone-{place}" for place in range(200)]
UNEQUAL = {name: LocalPlan(size=8 + place % 2, batch_size=8, steps=1) for place, name in enumerate(NAMES)}


def a_plan(users: int | None = 150, *, client: dict[str, Any] | None = None, **others: Any) -> Plan:
    noised = ClientPlan(
        **{"clip_norm": 1.0, "noise_multiplier": 2.0, "norm": "l1", "shuffle_users": users, **(client or {})}
    )
    local = dict.fromkeys(NAMES, LocalPlan(size=8, batch_size=8, steps=1))
    values = {"rounds": 3, "local": local, "style": "local", "client": noised, "weighting": "equal", **others}
    return Plan("survey", **values)


def charged(*events: ev.Event, delta: float = DELTA) -> float:
    return epsilon(ev.Composed(events), delta, adjacency="replace_one")


def test_every_charge_that_there_may_be_is_shuffled_among_the_declared_users() -> None:
    found = find_shuffled(a_plan(spare_rounds=2), DELTA)
    shuffled = ev.Shuffled(ev.Laplace(2.0), 150)
    assert found == Guarantee(charged(ev.Repeated(shuffled, 5)), DELTA, "client", "replace_one")
    assert found.epsilon < a_plan(spare_rounds=2).client_epsilon(DELTA)


def test_the_clients_own_statement_stays_what_it_is_and_is_what_accounts_pay() -> None:
    plan = a_plan()
    assert plan.client_epsilon(DELTA) == a_plan(None).client_epsilon(DELTA)
    assert plan.local_charges(NAMES[0]) == {ev.Laplace(2.0): 3}


@pytest.mark.parametrize("cohort", [PoissonCohort(0.9), FixedCohort(160), FixedCohort(160, secret=True)], ids=repr)
def test_no_cohort_amplifies_it_further(cohort: Any) -> None:
    plan = a_plan(cohort=cohort, max_participations=3)
    assert find_shuffled(plan, DELTA).epsilon == find_shuffled(a_plan(), DELTA).epsilon


def test_rounds_with_noise_of_their_own_are_charged_by_it() -> None:
    found = find_shuffled(a_plan(noise_schedule=(1.0, 2.0, 2.0)), DELTA)
    first, others = ev.Shuffled(ev.Laplace(2.0), 150), ev.Shuffled(ev.Laplace(4.0), 150)
    assert found.epsilon == pytest.approx(charged(first, ev.Repeated(others, 2)), rel=1e-9)


def test_it_is_never_more_than_each_client_keeps_alone() -> None:
    plan = a_plan(1, client_guarantee=Guarantee(9.0, DELTA, "client", "replace_one"))
    assert find_shuffled(plan, DELTA).epsilon == plan.client_epsilon(DELTA)
    assert "nothing is gained" in plan.explain()


def test_without_a_shuffler_there_is_no_second_statement() -> None:
    plan = a_plan(None, client_guarantee=Guarantee(9.0, DELTA, "client", "replace_one"))
    assert find_shuffled(plan, DELTA) is None
    assert "huffle" not in plan.explain()


def test_a_plan_says_both_statements_and_on_whom_the_second_rests() -> None:
    text = a_plan(client_guarantee=Guarantee(9.0, DELTA, "client", "replace_one")).explain()
    alone = a_plan().client_epsilon(DELTA)
    assert f"beside the {alone:.5f}"[:14] in text
    assert "Shuffled: for one client ε ≤" in text
    assert "but not from the shuffler" in text
    assert "at least 150 clients of each round" in text


def test_the_file_of_a_plan_keeps_it_and_older_plans_are_written_as_ever() -> None:
    plan = a_plan()
    assert Plan.from_json(plan.to_json()) == plan
    assert "shuffle_users" not in json.loads(a_plan(None).to_json())["client"]
    assert Plan.from_json(a_plan(None).to_json()) == a_plan(None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"client": {"norm": "l2"}}, "ε₀-DP each"),
        ({"style": "user", "client": {"norm": "l2"}}, "not private by themselves"),
        ({"users": 201}, "at most 200"),
        ({"users": 100, "cohort": FixedCohort(99)}, "at most 99"),
        ({"users": 0}, "shuffle_users"),
        (
            {"weighting": "declared", "local": UNEQUAL},
            "cannot be weighted",
        ),
    ],
    ids=["gaussian", "user", "population", "cohort", "nobody", "weights"],
)  # fmt: skip
def test_a_shuffler_is_refused_where_its_gain_is_not_proved(options: dict[str, Any], words: str) -> None:
    users = options.pop("users", 150)
    with pytest.raises(InvalidArgument, match=words):
        a_plan(users, **options)


def test_clients_that_keep_state_have_the_local_statement_alone() -> None:
    with pytest.raises(InvalidArgument, match="keeps state"):
        require_stateful(a_plan())
    require_stateful(a_plan(None))


def test_reports_without_names_are_averaged_over_the_expected_cohort() -> None:
    plan = a_plan(users=100, cohort=PoissonCohort(0.75))
    reports = [np.full(2, float(place)) for place in range(4)]
    assert combine_reports(plan, reports, 2) == pytest.approx([6 / 150, 6 / 150])
    assert combine_reports(plan, [], 2) == pytest.approx([0.0, 0.0])
