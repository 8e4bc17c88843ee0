"""What everyone may see of a round holds constants of the plan, released values and facts of the ledger only."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest

from dpfed.federated.metrics import Score
from dpfed.federated.results import RUNNING, Participation, RoundResult
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.randomness import SeededSource
from dpfed.runs.directory import sequence
from studies import Crash, crash_at

GUARANTEE = {"epsilon": float, "delta": float, "unit": str, "adjacency": str}
SHAREABLE = {
    "round": int,
    "status": str,
    "cost": [GUARANTEE],
    "spent": [GUARANTEE],
    "worst_client": (str, type(None)),
    "metrics": {"accuracy": {"value": float, "mark": str}},
    "head": (str, type(None)),
}
SCORES = (Score("accuracy", 0.5, is_public=True), Score("mse", 0.125), Score("loss", 0.25))
COHORTS = {
    "all": All(),
    "poisson": PoissonCohort(0.5),
    "poisson, secret": PoissonCohort(0.5, secret=True),
    "fixed": FixedCohort(2),
    "fixed, secret": FixedCohort(2, secret=True),
}


def require_only(value, allowed) -> None:
    """Refuses any key that is not on the list, at any depth."""
    if isinstance(allowed, dict):
        assert isinstance(value, dict)
        assert set(value) == set(allowed)
        for key, inner in value.items():
            require_only(inner, allowed[key])
    elif isinstance(allowed, list):
        assert isinstance(value, list)
        for each in value:
            require_only(each, allowed[0])
    else:
        assert isinstance(value, allowed), (value, allowed)


def with_trouble(study):
    """Clients of which one fails in every round and one sends what is refused."""
    study.clients[1].train = lambda *_: int("not a number")
    study.clients[2].train = lambda *_: np.full(3, np.nan)
    return study


@pytest.mark.parametrize("style", ["none", "sample", "user", "hybrid"])
@pytest.mark.parametrize("cohort", COHORTS.values(), ids=COHORTS)
def test_what_everyone_may_see_of_a_round_is_on_the_list_and_nothing_else(open_study, style, cohort):
    study = with_trouble(open_study(style, cohort=cohort, weighting="equal"))
    results = list(study.federation(evaluate=lambda weights: SCORES))
    assert len(results) == 4
    for facts in [result.facts() for result in results] + study.directory().rounds():
        require_only(facts, SHAREABLE)
    text = (study.folder / "run" / "rounds.jsonl").read_text()
    private = ("mse", '"value": 0.125', "loss", '"value": 0.25', "failed", "refused", "not_finite", "seconds")
    assert not any(word in text for word in (*private, "contributed", "exhausted"))


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
@pytest.mark.parametrize("kind", ["poisson, secret", "fixed, secret"])
def test_of_a_secret_cohort_nothing_can_be_told_from_what_everyone_may_see(tmp_path, open_study, style, kind):
    """The same plan with other cohorts is written down the same, but for the digest of a head."""
    seen, drawn = [], set()
    for seed in range(4):
        (tmp_path / str(seed)).mkdir()
        study = open_study(style, cohort=COHORTS[kind], folder=tmp_path / str(seed))
        list(study.federation(source=SeededSource(seed)))
        records = study.directory().rounds()
        for record in records:
            record["head"] = record["head"] and sequence(record["head"])
        seen.append(records)
        drawn.add(tuple(sorted(study.diary.trained().items())))
    assert len(drawn) > 1
    assert all(records == seen[0] for records in seen)


def test_the_owner_is_told_who_took_part_and_why_not(open_study):
    study = with_trouble(open_study())
    (first, *_) = study.federation()
    expected = Participation(contributed=("north",), failed=("west",), refused={"harbour": "not_finite"})
    assert first.participation == expected
    (record, *_) = study.directory().owner_rounds()
    groups = {"contributed", "reused", "exhausted", "failed", "refused", "errors"}
    assert set(record) == {"round", "seconds", "metrics"} | groups
    assert (record["contributed"], record["failed"], record["refused"]) == (
        ["north"],
        ["west"],
        {"harbour": "not_finite"},
    )
    assert isinstance(first.participation.errors["west"], ValueError)
    assert record["errors"] == {"west": "ValueError"}


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_all_but_the_plan_and_the_rounds_is_for_the_owner_alone(open_study, style):
    study = open_study(style)
    before = os.umask(0)
    try:
        federation = study.federation()
        next(federation)
        with crash_at({"sample": 3, "user": 4, "hybrid": 5}[style], is_after=False), pytest.raises(Crash):
            next(federation)  # what was released is stored, and the round not written yet
    finally:
        os.umask(before)
    run = study.folder / "run"
    assert list((run / "released").iterdir())
    modes = {path.relative_to(run): stat.S_IMODE(path.stat().st_mode) for path in run.rglob("*")}
    shown = {"plan.json", "rounds.jsonl"}
    for path, mode in modes.items():
        if str(path) not in shown:
            assert mode == (0o700 if (run / path).is_dir() else 0o600), path


def test_a_result_says_what_it_is_without_its_numbers():
    result = RoundResult(1, RUNNING, np.zeros(1000), (), (), None, "3:ab", participation=Participation(("north",)))
    assert "north" not in repr(result)
    assert "0." not in repr(result)
