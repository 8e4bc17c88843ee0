"""The shuffler: a uniform order, no names, nothing below the minimum; and whole runs with it."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from dpfed import events as ev
from dpfed.aggregation.robust_rules import Bucketing, CoordinateMedian
from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.feddyn import FedDyn
from dpfed.federated.algorithms.fedopt import FedOpt
from dpfed.federated.messages import Update
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.shuffler import Shuffler
from dpfed.plan import ClientPlan
from dpfed.randomness import SeededSource
from studies import DIMENSION, SIZES, Crash, crash_at

FALSE_ALARM = 1e-6
NAMES = tuple(SIZES)


def a_client():
    users = len(SIZES)
    return ClientPlan(clip_norm=1.0, noise_multiplier=4.0, norm="l1", shuffle_users=users)


def test_every_order_is_equally_likely():
    """χ² over all 24 orders of four reports, 6,000 rounds, false alarm 1e-6."""
    source, seen = SeededSource(5), Counter()
    reports = [np.full(1, place) for place in range(4)]
    for _ in range(6_000):
        seen[tuple(int(each[0]) for each in Shuffler(4, source).hand_on(reports))] += 1
    counts = [seen[order] for order in itertools.permutations(range(4))]
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_what_is_handed_on_are_copies_of_plain_numbers():
    class Named(np.ndarray):
        owner = "north"

    report = np.ones(3).view(Named)
    (handed,) = Shuffler(1, SeededSource(1)).hand_on([report])
    assert type(handed) is np.ndarray
    assert not np.shares_memory(handed, report)


@pytest.mark.parametrize(("came", "handed"), [(0, 0), (2, 0), (3, 3), (5, 5)])
def test_with_fewer_reports_than_declared_nothing_is_handed_on(came, handed):
    assert len(Shuffler(3, SeededSource(1)).hand_on([np.zeros(1)] * came)) == handed


def test_a_run_moves_the_model_by_the_mean_of_the_clients_reports(open_study):
    study = open_study("local", rounds=2, client=a_client(), weighting="equal")
    sent = []

    class Watched(LocalRunner):
        def train(self, task, cohort):
            for outcome in super().train(task, cohort):
                sent.append(outcome)
                yield outcome

    federation = study.federation(study.runner(Watched))
    results = list(federation)
    updates = [each.value for each in sent if isinstance(each, Update)]
    assert len(updates) == 2 * len(SIZES)
    assert federation.weights == pytest.approx(np.sum(updates, axis=0) / len(SIZES))
    assert results[0].participation.contributed == NAMES
    study.require_nothing_free()
    assert set(study.committed().values()) == {2}


def test_no_file_of_the_run_has_a_report_with_a_name(open_study):
    """Of a round under way the mean alone is stored: after a crash no single report is found, by name or without."""
    study = open_study("local", rounds=2, client=a_client(), weighting="equal", spare_rounds=1)
    federation = study.federation()
    next(federation)
    stored = []
    write = federation._stored.write_release

    def kept(number, released, head, asked, contributed=(), breakdown=""):
        write(number, released, head, asked, contributed, breakdown)
        stored.extend(federation.run.folder("released").glob("*.npz"))
        assert (*asked, *contributed) == ()

    federation._stored.write_release = kept
    next(federation)
    assert [path.name for path in stored] == ["round-000002.npz"]


@pytest.mark.parametrize("write", range(1, 30, 4))
@pytest.mark.parametrize("is_after", [False, True])
def test_a_crash_costs_the_round_again_and_nothing_is_free(open_study, write, is_after):
    options = {"rounds": 2, "client": a_client(), "weighting": "equal", "spare_rounds": 2}
    try:
        with crash_at(write, is_after=is_after):
            list(open_study("local", **options).federation())
    except Crash:
        pass
    study = open_study("local", **options)
    list(study.federation())
    study.require_nothing_free()
    study.require_done()


def test_a_round_with_too_few_reports_moves_nothing_and_is_charged(open_study):
    study = open_study("local", rounds=1, client=a_client(), weighting="equal")

    class Lost(LocalRunner):
        def train(self, task, cohort):
            yield from itertools.islice(super().train(task, cohort), len(SIZES) - 1)

    federation = study.federation(study.runner(Lost))
    (result,) = federation
    assert federation.weights == pytest.approx(np.zeros(DIMENSION))
    assert result.participation.contributed == ()


def test_a_second_report_of_a_client_and_one_of_a_stranger_do_not_count(open_study):
    study = open_study("local", rounds=1, client=a_client(), weighting="equal")

    class Doubling(LocalRunner):
        def train(self, task, cohort):
            found = list(super().train(task, cohort))
            stranger = Update("stranger", task.round, found[0].value, found[0].head)
            yield from (*found[:-1], found[0], stranger)

    federation = study.federation(study.runner(Doubling))
    (result,) = federation
    assert federation.weights == pytest.approx(np.zeros(DIMENSION))
    assert set(result.participation.refused) == {NAMES[0], "stranger"}


def test_a_report_that_is_refused_for_its_numbers_is_refused_under_no_name(open_study):
    study = open_study("local", rounds=1, client=a_client(), weighting="equal")

    class Broken(LocalRunner):
        def train(self, task, cohort):
            for place, each in enumerate(super().train(task, cohort)):
                value = np.full(DIMENSION, np.nan) if place == 0 else each.value
                yield Update(each.client, each.round, value, each.head)

    federation = study.federation(study.runner(Broken))
    (result,) = federation
    assert np.isfinite(federation.weights).all()
    assert result.participation.contributed == NAMES
    assert not set(result.participation.refused) & set(NAMES)
    assert len(result.participation.refused) == 1


def test_an_algorithm_with_state_at_the_clients_is_refused_a_shuffler(open_study):
    study = open_study("local", rounds=1, client=a_client(), weighting="equal")
    with pytest.raises(InvalidArgument, match="keeps state"):
        study.federation(algorithm=FedDyn(alpha=0.1))


def test_the_charge_is_the_local_event_of_every_client(open_study):
    study = open_study("local", rounds=1, client=a_client(), weighting="equal")
    assert study.plan.local_charges(NAMES[0]) == {ev.Laplace(4.0): 1}


def test_reports_without_names_go_through_the_rule_of_the_plan(open_study):
    """Buckets are drawn, and too few usable reports leave the model as it is: a stop would tell of a client."""
    rule = CoordinateMedian(max_faulty=1, before=Bucketing(1))
    study = open_study("local", rounds=2, client=a_client(), weighting="equal", aggregation=rule)

    class BrokenLater(LocalRunner):
        def train(self, task, cohort):
            for place, each in enumerate(super().train(task, cohort)):
                value = np.full(DIMENSION, np.nan) if place == 0 and task.round == 1 else each.value
                yield Update(each.client, each.round, value, each.head)

    first, second = study.federation(study.runner(BrokenLater))
    assert first.participation.breakdown.startswith("coordinate_median needs 3 updates")
    assert not np.any(first.weights)
    assert np.all(second.weights)
    assert not second.participation.breakdown
    study.require_nothing_free()


class BrokenInTheSecond(LocalRunner):
    """Sends a report without numbers in round 2, so that a median of three breaks down."""

    def train(self, task, cohort):
        for place, each in enumerate(super().train(task, cohort)):
            value = np.full(DIMENSION, np.nan) if place == 0 and task.round == 2 else each.value
            yield Update(each.client, each.round, value, each.head)


def open_momentum(study):
    """The same run as a new process would open it, with momentum that moves the model by itself."""
    return study.federation(study.runner(BrokenInTheSecond), algorithm=FedOpt())


@pytest.mark.parametrize("is_after", [False, True])
def test_a_round_that_broke_down_leaves_the_model_wherever_the_process_dies(open_study, tmp_path, is_after):
    """What is stored of it says so: resumed without its mark, the momentum of round 1 would move the model."""
    options = {"rounds": 3, "client": a_client(), "weighting": "equal", "spare_rounds": 2}
    options["aggregation"] = CoordinateMedian(max_faulty=1)
    for write in itertools.count(1):
        folder = tmp_path / str(write)
        folder.mkdir()
        federation = open_momentum(open_study("local", folder=folder, **options))
        first, has_crashed = next(federation).weights, False
        try:
            with crash_at(write, is_after=is_after):
                next(federation)
        except Crash:
            has_crashed = True
        del federation
        later = {each.number: each for each in open_momentum(open_study("local", folder=folder, **options))}
        if not has_crashed:
            break
        assert 2 not in later or np.array_equal(first, later[2].weights)
        assert not np.array_equal(first, later[3].weights)
    assert write > 3


def test_no_reports_at_all_break_a_robust_rule_and_leave_the_model(open_study):
    rule = CoordinateMedian(max_faulty=1)
    study = open_study("local", rounds=2, client=a_client(), weighting="equal", aggregation=rule)

    class LostLater(LocalRunner):
        def train(self, task, cohort):
            yield from itertools.islice(super().train(task, cohort), len(SIZES) - (task.round == 2))

    first, second = study.federation(study.runner(LostLater), algorithm=FedOpt())
    assert second.participation.breakdown
    assert np.array_equal(first.weights, second.weights)
