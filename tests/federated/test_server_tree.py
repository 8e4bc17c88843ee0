"""DP-FTRL on the server: one event for all rounds, a pattern that is kept, and a new charge after a crash."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from dpfed.accounting.queries import epsilon
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.events import Repeated, TreeAggregation
from dpfed.federated.results import BUDGET_EXHAUSTED, FINISHED
from dpfed.federated.server_tree import ServerTree
from dpfed.guarantee import Guarantee
from dpfed.mechanisms.tree import TreeMechanism
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.fits import fit_budget
from dpfed.plan.plan import ClientPlan, Plan
from dpfed.plan.tree import RoundTree
from dpfed.randomness import SeededSource
from studies import Crash, SilentSource, Study, a_plan, committed, crash_at

SIX = {f"site-{number}": 10 for number in range(6)}
EVENT = TreeAggregation(5.0, 8, 2, 3)


def options(**others):
    client = ClientPlan(clip_norm=1.0, noise_multiplier=5.0, tree=RoundTree(min_separation=3))
    return {"rounds": 8, "cohort": FixedCohort(3), "client": client, "max_participations": 2, **others}


# --- the plan ---


def test_all_rounds_are_one_event_that_is_charged_once():
    plan = a_plan("user", SIX, **options())
    assert plan.client_event == EVENT
    assert plan.client_charges == 1
    assert plan.client_epsilon(1e-5) == epsilon(Repeated(EVENT, 1), 1e-5)


def test_spare_rounds_pay_for_new_trees():
    plan = a_plan("user", SIX, **options(spare_rounds=2))
    assert plan.client_charges == 3
    assert plan.client_epsilon(1e-5) == epsilon(Repeated(EVENT, 3), 1e-5)


def test_a_client_takes_part_once_unless_more_is_declared():
    plan = a_plan("user", SIX, **options(max_participations=None))
    assert plan.participations == 1
    assert plan.client_event == TreeAggregation(5.0, 8, 1, 3)


def test_everyone_in_every_round_must_be_declared():
    client = ClientPlan(clip_norm=1.0, noise_multiplier=5.0, tree=RoundTree())
    with pytest.raises(InvalidArgument, match="declare max_participations=8 with min_separation=1"):
        a_plan("user", SIX, **options(cohort=All(), client=client, max_participations=None))
    with pytest.raises(InvalidArgument, match="declare max_participations=8"):
        a_plan("user", SIX, **options(cohort=All(), max_participations=8))
    plan = a_plan("user", SIX, **options(cohort=All(), client=client, max_participations=8))
    assert plan.client_event == TreeAggregation(5.0, 8, 8, 1)


@pytest.mark.parametrize("cohort", [PoissonCohort(0.5, secret=True), FixedCohort(3, secret=True)])
def test_a_secret_cohort_is_refused(cohort):
    with pytest.raises(InvalidArgument, match="gains nothing from a secret cohort"):
        a_plan("user", SIX, **options(cohort=cohort, max_participations=8))


def test_what_does_not_fit_is_refused():
    with pytest.raises(InvalidArgument, match="leave adaptive clipping out"):
        ClientPlan(clip_norm=1.0, tree=RoundTree(), adaptive=AdaptiveClip(0.5, 0.2, 10.0))
    with pytest.raises(InvalidArgument, match="must be a RoundTree"):
        ClientPlan(clip_norm=1.0, tree=True)
    with pytest.raises(InvalidArgument, match="restarts must be below"):
        a_plan("user", SIX, **options(client=ClientPlan(clip_norm=1.0, noise_multiplier=5.0, tree=RoundTree(1, 8))))
    with pytest.raises(InvalidArgument, match=r"ask for Plan\.client_event"):
        _ = ClientPlan(clip_norm=1.0, noise_multiplier=5.0, tree=RoundTree()).event
    with pytest.raises(InvalidArgument, match="min_separation"):
        RoundTree(min_separation=0)


def test_the_noise_is_calibrated_for_the_tree_and_its_spare_ones():
    client = ClientPlan(clip_norm=1.0, tree=RoundTree(min_separation=3, restarts=1))
    plan = a_plan("user", SIX, **options(client=client, spare_rounds=1))
    promise = Guarantee(4.0, 1e-5, "client")
    found = plan.calibrated(promise)
    event = TreeAggregation(found.client.noise, 8, 2, 3, 1)
    assert 3.999 < epsilon(Repeated(event, 2), 1e-5) == found.client_epsilon(1e-5) <= 4.0
    assert fit_budget(found, promise).rounds == 8
    assert fit_budget(found, Guarantee(2.0, 1e-5, "client")).rounds == 0


def test_the_plan_is_written_read_and_told():
    plan = a_plan("user", SIX, **options(spare_rounds=2))
    assert Plan.from_json(plan.to_json()) == plan
    assert "charged as one before the first round, and anew after a crash, 2 times at most" in plan.explain()
    assert (
        "every node of a tree of partial sums over the rounds (each client asked at most 2 times, 3 rounds apart)"
        in (plan.explain())
    )


# --- the tree of a run ---


def an_open_tree(event=EVENT):
    tree = ServerTree(event)
    tree.open(TreeMechanism(event, 1.0))
    return tree


def take(tree, *clients):
    with tree.step(clients) as mechanism:
        mechanism.add_noise(0.0)


def test_a_client_is_admitted_as_often_and_as_soon_as_declared():
    tree = an_open_tree()
    seen = []
    for step in range(8):
        if tree.admits("a"):
            seen.append(step)
            take(tree, "a")
        else:
            with pytest.raises(PrivacyError, match="a would take part sooner than declared"):
                take(tree, "a")
            take(tree)
    assert seen == [0, 3]


def test_a_step_that_fails_loses_the_tree():
    tree = an_open_tree()
    with pytest.raises(Crash), tree.step(["a"]):
        raise Crash
    assert not tree.is_open
    assert tree.admits("a")
    with pytest.raises(PrivacyError, match="no tree is paid for"):
        take(tree)


# --- a run ---


def rounds_of(study):
    """In which rounds each client trained, from the diary: a line of the server's noise, or of a mark, ends a round."""
    federation = study.federation()
    found: dict[str, list[int]] = {}
    for number in range(study.plan.rounds):
        before = study.diary.trained()
        next(federation)
        for name in study.diary.trained() - before:
            found.setdefault(name, []).append(number)
    assert list(federation) == []
    return federation, found


@pytest.mark.parametrize("cohort", [FixedCohort(3), PoissonCohort(0.7)])
def test_the_engine_keeps_the_pattern(tmp_path, cohort):
    study = Study(tmp_path, "user", options(cohort=cohort), SIX)
    federation, found = rounds_of(study)
    assert federation.status == FINISHED
    for when in found.values():
        assert len(when) <= 2
        assert all(later - earlier >= 3 for earlier, later in itertools.pairwise(when))
    assert max(map(len, found.values())) == 2
    assert committed(study.ledger)["study"] == {EVENT: 1}
    assert study.diary.noised() == 1
    study.ledger.verify()


def test_what_a_round_says_is_spent_is_the_whole_tree(tmp_path):
    study = Study(tmp_path, "user", options(), SIX)
    result = next(study.federation())
    (spent,) = result.spent
    assert spent.epsilon == epsilon(EVENT, 1e-5)


def test_without_noise_the_rounds_are_the_clipped_means(tmp_path):
    """Everything but the noise is as without a tree."""
    everyone = {"cohort": All(), "max_participations": 8}
    tree = ClientPlan(clip_norm=1.0, noise_multiplier=5.0, tree=RoundTree())
    models = []
    for number, client in enumerate([tree, ClientPlan(clip_norm=1.0, noise_multiplier=5.0)]):
        (tmp_path / str(number)).mkdir()
        study = Study(tmp_path / str(number), "user", options(client=client, **everyone), SIX)
        models.append([result.weights for result in study.federation(source=SilentSource())])
    assert np.array(models[0]) == pytest.approx(np.array(models[1]), abs=1e-7)


def test_the_noise_of_the_model_is_that_of_few_nodes(tmp_path):
    """Sites that send nothing: 32 runs of 8 rounds, the model is noise of one node of level 3, of variance 8/15.

    96 numbers; false alarm 1e-6. Noise of its own in every round would have variance 8, and half of it 2/15.
    """
    client = ClientPlan(clip_norm=0.5, noise_multiplier=12.0, tree=RoundTree())
    last = []
    for number in range(32):
        (tmp_path / str(number)).mkdir()
        study = Study(tmp_path / str(number), "user", options(client=client, cohort=PoissonCohort(1e-9)), SIX)
        *_, result = study.federation(source=SeededSource(number))
        last.append(result.weights * float(study.plan.cohort.expected(6)) / 6.0)
    low, high = stats.chi2(96).ppf([5e-7, 1 - 5e-7])
    assert low < float(np.sum(np.square(last))) / (8 / 15) < high


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("number", range(1, 24, 2))
def test_after_a_crash_at_any_write_a_new_tree_is_charged_before_its_noise(tmp_path, number, is_after):
    study = Study(tmp_path, "user", options(spare_rounds=1), SIX)
    with crash_at(number, is_after=is_after), pytest.raises(Crash):
        list(study.federation())
    study.ledger.close()
    other = Study(tmp_path, "user", options(spare_rounds=1), SIX)
    federation = other.federation()
    list(federation)
    assert federation.status == FINISHED
    assert other.diary.noised() <= other.committed_releases() <= 2
    other.ledger.verify()


def test_without_a_spare_charge_a_run_that_lost_its_tree_ends(tmp_path):
    study = Study(tmp_path, "user", options(), SIX)
    next(study.federation())
    study.ledger.close()
    other = Study(tmp_path, "user", options(), SIX)
    federation = other.federation()
    assert list(federation) == []
    assert federation.status == BUDGET_EXHAUSTED
    assert other.committed_releases() == other.diary.noised() == 1


def test_a_round_that_is_done_again_in_the_same_process_has_a_new_tree(tmp_path):
    study = Study(tmp_path, "user", options(spare_rounds=1), SIX)
    federation = study.federation()
    next(federation)
    with crash_at(2, is_after=False), pytest.raises(Crash):
        next(federation)
    assert len(list(federation)) == 7
    assert study.committed_releases() == study.diary.noised() == 2


def test_hybrid_runs_have_two_statements(tmp_path):
    study = Study(tmp_path, "hybrid", options(cohort=FixedCohort(1)), SIX)
    federation, _ = rounds_of(study)
    assert federation.status == FINISHED
    assert committed(study.ledger)["study"] == {EVENT: 1}
    assert {name: times for name, times in study.committed().items() if times} == study.diary.trained()
    study.ledger.verify()
