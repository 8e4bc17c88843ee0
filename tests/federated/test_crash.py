"""A run may end at any point, by any means, and go on: every noise that was ever drawn was charged.

Fifteen kills at random moments (150 in a campaign), and a crash before and after every durable write.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress

import numpy as np
import pytest

from dpfed.federated.results import BUDGET_EXHAUSTED, FINISHED
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.plan import ClientPlan
from dpfed.plan.tree import RoundTree
from studies import BORN, Crash, Study, crash_at
from worlds import fork, told

FIVE = {"north": 60, "west": 30, "harbour": 10, "east": 10, "south": 40}
COHORTS = {
    "all": All(),
    "poisson": PoissonCohort(0.6),
    "poisson, secret": PoissonCohort(0.6, secret=True),
    "fixed": FixedCohort(2),
    "fixed, secret": FixedCohort(2, secret=True),
}
TREE = {
    "cohort": FixedCohort(2),
    "client": ClientPlan(clip_norm=1.0, noise_multiplier=5.0, tree=RoundTree(min_separation=2)),
    "max_participations": 3,
}
STYLES = ("sample", "user", "hybrid", "local")
every_kind = pytest.mark.parametrize("cohort", COHORTS.values(), ids=COHORTS)
every_style = pytest.mark.parametrize("style", STYLES)


def run_to_the_end(study: Study) -> None:
    federation = study.federation()
    list(federation)
    assert federation.status == FINISHED


@every_style
@every_kind
def test_kill_9_at_random_moments_makes_nothing_free_and_no_round_twice(tmp_path, style, cohort, campaign_scale):
    kills = campaign_scale
    options = {"cohort": cohort, "rounds": 3, "spare_rounds": 2 * kills}
    Study(tmp_path, style, options, FIVE).ledger.close()
    moments = np.random.default_rng(11 if campaign_scale == 1 else None)

    def work(say) -> None:
        study = Study(tmp_path, style, options, FIVE)
        say("ready")
        run_to_the_end(study)

    for _ in range(kills):
        child = fork(work)
        child.hear()
        time.sleep(moments.uniform(0.0, 0.12))
        child.kill()
        child.end()
        study = Study(tmp_path, style, options, FIVE)
        study.require_nothing_free()
        study.ledger.close()
    told(work)
    study = Study(tmp_path, style, options, FIVE)
    study.require_nothing_free()
    study.require_done()
    study.ledger.close()


@pytest.mark.parametrize(
    ("style", "kind"),
    [
        ("sample", "poisson"),
        ("user", "poisson"),
        ("user", "poisson, secret"),
        ("user", "tree"),
        ("hybrid", "all"),
        ("hybrid", "fixed"),
    ],
)
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_crash_at_each_durable_write_makes_nothing_free_and_loses_no_round(tmp_path, style, kind, is_after):
    options = {"rounds": 2, "spare_rounds": 1}
    options |= {**TREE, "max_participations": 2} if kind == "tree" else {"cohort": COHORTS[kind]}
    number, is_over = 0, False
    while not is_over:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        study = Study(folder, style, options)
        with crash_at(number, is_after=is_after):
            is_over = came_to_its_end(study)
        study.require_nothing_free()
        study.ledger.close()
        other = Study(folder, style, options)
        run_to_the_end(other)
        other.require_nothing_free()
        other.require_done()
        other.ledger.close()
    assert number > 10  # there are that many writes at least


def came_to_its_end(study: Study) -> bool:
    with suppress(Crash):
        list(study.federation())
        return True
    return False


ACTS = ("step", "step", "crash", "keep", "put back")


@every_kind
@pytest.mark.parametrize("style", ["user", "hybrid"])
def test_charges_cover_whoever_took_part_most_whatever_crashes_and_old_copies_there_were(
    tmp_path, style, cohort, campaign_scale
):
    options = {"cohort": cohort, "rounds": 6, "spare_rounds": 3}
    if not cohort.secret:
        options["max_participations"] = 5
    draws = np.random.default_rng(5 if campaign_scale == 1 else None)
    for number in range(campaign_scale):
        folder = tmp_path / str(number)
        folder.mkdir()
        live(Study(folder, style, options, FIVE), draws)


def test_a_tree_is_charged_before_its_noise_whatever_crashes_and_old_copies_there_were(tmp_path, campaign_scale):
    draws = np.random.default_rng(6 if campaign_scale == 1 else None)
    for number in range(2 * campaign_scale):
        folder = tmp_path / str(number)
        folder.mkdir()
        live(Study(folder, "user", {**TREE, "rounds": 6, "spare_rounds": 3}, FIVE), draws)


def live(study: Study, draws: np.random.Generator) -> None:
    """A run that steps, crashes, has its directory copied and the copy put back, and then runs to its end."""
    run, copy = study.folder / "run", study.folder / "copy"
    federation = study.federation()
    for act in ("step", "keep", *draws.choice(ACTS, size=8), "put back"):
        if act == "step":
            next(federation, None)
        elif act == "keep":
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(run, copy)
        else:
            if act == "crash":
                with crash_at(int(draws.integers(1, 9)), is_after=bool(draws.integers(2))), suppress(Crash):
                    next(federation, None)
            else:
                shutil.rmtree(run)
                shutil.copytree(copy, run)
            study.diary.say(BORN)
            federation = study.federation()
    list(federation)
    assert federation.status in (FINISHED, BUDGET_EXHAUSTED)
    study.require_nothing_free()
    study.ledger.close()
