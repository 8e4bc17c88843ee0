"""A run goes on after any stop; what it cannot pay for it does not do, and what it shows is charged."""

from __future__ import annotations

import shutil
import signal
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from dpfed import events as ev
from dpfed.accounting.queries import epsilon
from dpfed.errors import InvalidArgument, LeaseHeld, LeaseLost, LedgerRolledBack, PrivacyError
from dpfed.federated.messages import Update
from dpfed.federated.metrics import Score
from dpfed.federated.results import BUDGET_EXHAUSTED, FINISHED, RUNNING
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.state.unfinished import UnfinishedRound
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.plan import AdaptiveClip, ClientPlan, Released
from dpfed.randomness import SeededSource
from dpfed.runs.directory import sequence
from studies import SIZES, Crash, SilentSource, Study, crash_at
from worlds import fork

NAMES = tuple(SIZES)
STYLES = ("sample", "user", "hybrid")
EVERYONE = PoissonCohort(1 - 1e-12, secret=True)


class CrashingRunner(LocalRunner):
    """Ends in round 2 when the second client's update is drawn and not yet stored."""

    lost = None

    def train(self, task, cohort):
        for number, outcome in enumerate(super().train(task, cohort)):
            if task.round == 2 and number == 1:
                type(self).lost = outcome
                raise Crash
            yield outcome


def crashed(study: Study, monkeypatch, source=None):
    """The update that was drawn and lost; the one before it is stored."""
    monkeypatch.setattr("dpfed.federated.state.unfinished.group_by_time.__defaults__", (0.0,))
    with pytest.raises(Crash):
        list(study.federation(study.runner(CrashingRunner, source)))
    study.ledger.close()
    return CrashingRunner.lost


@pytest.mark.parametrize("style", STYLES)
def test_an_uninterrupted_run_charges_every_round_once_and_everyone_contributes(open_study, style):
    study = open_study(style)
    results = list(study.federation())
    assert [result.number for result in results] == [1, 2, 3, 4]
    assert [result.status for result in results] == [RUNNING, RUNNING, RUNNING, FINISHED]
    assert all(result.participation.contributed == NAMES for result in results)
    assert study.committed() == dict.fromkeys(NAMES, 0 if style == "user" else 4)
    assert study.committed_releases() == (0 if style == "sample" else 4)
    study.require_nothing_free()
    study.require_done()


def test_the_model_moves_by_the_mean_with_public_weights(open_study, silent):
    study = open_study("none")
    (first, *_) = study.federation(source=silent)
    np.testing.assert_allclose(first.weights, 0.6 * 0 / 2 + 0.3 * 1 / 2 + 0.1 * 2 / 2)


def test_the_server_clips_each_update_and_divides_by_the_expected_cohort(open_study, silent):
    study = open_study("user", weighting="equal", client=ClientPlan(clip_norm=0.1, noise_multiplier=5.0))
    (first, *_) = study.federation(source=silent)
    np.testing.assert_allclose(np.linalg.norm(first.weights), 2 / 3 * 0.1, rtol=1e-6)  # north has nothing to say


@pytest.mark.parametrize("style", STYLES)
def test_a_stopped_run_goes_on_and_costs_what_an_uninterrupted_one_costs(open_study, style):
    federation = open_study(style).federation()
    next(federation), next(federation)
    other = open_study(style)
    results = list(other.federation())
    assert [result.number for result in results] == [3, 4]
    assert other.committed() == dict.fromkeys(NAMES, 0 if style == "user" else 4)
    assert other.committed_releases() == (0 if style == "sample" else 4)
    other.require_nothing_free()
    other.require_done()


def test_a_crash_costs_a_client_what_was_drawn_and_lost_and_then_it_contributes_zero(study, again, monkeypatch):
    crashed(study, monkeypatch)
    other = again()
    results = {result.number: result.participation for result in other.federation()}
    assert (results[2].contributed, results[2].reused) == (NAMES, ("north",))
    assert (results[4].contributed, results[4].exhausted) == (("north",), ("west", "harbour"))
    assert other.committed() == dict.fromkeys(NAMES, 4)  # never more than was reserved
    other.require_nothing_free()
    other.require_done()


def test_spare_rounds_pay_for_what_a_crash_lost(open_study, monkeypatch):
    crashed(open_study(spare_rounds=1), monkeypatch)
    other = open_study(spare_rounds=1)
    assert all(result.participation.contributed == NAMES for result in other.federation())
    assert other.committed() == {"north": 4, "west": 5, "harbour": 5}
    other.require_nothing_free()


def test_noise_after_a_crash_is_fresh_even_from_the_same_seed(study, again, monkeypatch):
    lost = crashed(study, monkeypatch, SeededSource(1))
    other = again()
    drawn = []

    class Watching(LocalRunner):
        def train(self, task, cohort):
            for outcome in super().train(task, cohort):
                drawn.append(outcome)
                yield outcome

    next(other.federation(other.runner(Watching, SeededSource(1))))
    (redrawn,) = (update for update in drawn if update.client == lost.client)
    assert np.all(redrawn.value != lost.value)


class Named(SeededSource):
    """Writes down by which names noise is drawn at the server."""

    def __init__(self, names):
        super().__init__(1)
        self.names = names

    def once(self, name):
        self.names += [name] if name.startswith("noise") else []
        return super().once(name)


@pytest.mark.parametrize("cohort", [All(), PoissonCohort(0.7), PoissonCohort(0.7, secret=True)], ids=str)
@pytest.mark.parametrize("number", range(3, 9))
def test_the_servers_noise_is_never_drawn_again_from_the_same_seed(open_study, cohort, number):
    names = []
    study = open_study("user", rounds=2, spare_rounds=1, cohort=cohort)
    with crash_at(number, is_after=False), suppress(Crash):
        list(study.federation(source=Named(names)))
    study.ledger.close()
    list(open_study("user", rounds=2, spare_rounds=1, cohort=cohort).federation(source=Named(names)))
    assert len(names) >= 2
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("style", ["user", "hybrid"])
def test_a_release_that_was_stored_is_used_again_bit_by_bit_and_costs_nothing(open_study, style):
    study = open_study(style)
    federation = study.federation()
    with crash_at(4 if style == "user" else 5, is_after=True), pytest.raises(Crash):
        next(federation)  # commit(s), mark and the release's file are written
    released, *_ = UnfinishedRound(study.directory()).release(1)
    charged = study.committed(), study.committed_releases()
    study.ledger.close()
    other = open_study(style)
    first = next(other.federation())
    np.testing.assert_array_equal(first.weights, released.average)
    assert (other.committed(), other.committed_releases()) == charged
    other.require_nothing_free()


def test_what_is_stored_of_a_round_is_what_is_released_with_its_noise(tmp_path):
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    first = next(Study(tmp_path / "whole", "user").federation(source=SeededSource(3)))
    study = Study(tmp_path / "stopped", "user")
    federation = study.federation(source=SeededSource(3))
    with crash_at(4, is_after=True), pytest.raises(Crash):
        next(federation)
    released, *_ = UnfinishedRound(study.directory()).release(1)
    np.testing.assert_array_equal(released.average, first.weights)


@pytest.mark.parametrize("style", ["user", "hybrid"])
@pytest.mark.parametrize("writes", range(1, 8))
def test_where_the_server_adds_the_noise_no_update_is_ever_stored(open_study, style, writes):
    study = open_study(style)
    federation = study.federation()
    with crash_at(writes, is_after=True), suppress(Crash):
        next(federation)
    assert UnfinishedRound(study.directory()).updates(1) == {}


# What is put back, rolled back or mixed up.


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("cohort", [PoissonCohort(0.5), PoissonCohort(0.5, secret=True), FixedCohort(1)], ids=str)
def test_an_old_copy_of_the_directory_is_charged_for_what_it_does_again(open_study, tmp_path, style, cohort):
    options = {"cohort": cohort, "rounds": 4, "spare_rounds": 4}
    study = open_study(style, **options)
    federation = study.federation()
    next(federation), next(federation)
    shutil.copytree(tmp_path / "run", tmp_path / "old")
    next(federation), next(federation)
    shutil.rmtree(tmp_path / "run")
    shutil.move(tmp_path / "old", tmp_path / "run")
    other = open_study(style, **options)
    spent = [result.spent for result in other.federation()]
    other.require_nothing_free()
    for statement in spent[-1]:
        assert statement.epsilon >= true_epsilon(other, statement)


def true_epsilon(study: Study, statement) -> float:
    """The ε of every noise in the diary, stored or not."""
    plan = study.plan
    if statement.unit == "record":
        times = {name: count for name, count in study.diary.trained().items() if count}
        spent = (epsilon(ev.Repeated(plan.local[name].event, count), statement.delta) for name, count in times.items())
        return max(spent, default=0.0)  # nobody was drawn in any round
    is_secret = plan.is_secret
    count = study.diary.noised() if is_secret else max(study.diary.participations().values(), default=0)
    return epsilon(ev.Repeated(plan.client_event, count), statement.delta) if count else 0.0


@pytest.mark.parametrize("style", STYLES)
def test_a_ledger_that_was_rolled_back_is_refused(open_study, tmp_path, style):
    options = {"cohort": FixedCohort(1), "rounds": 6}
    study = open_study(style, **options)
    next(study.federation())
    study.ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "old.db")
    other = open_study(style, **options)
    next(other.federation())
    other.ledger.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    shutil.copy(tmp_path / "old.db", tmp_path / "ledger.db")
    with pytest.raises(LedgerRolledBack):
        open_study(style, **options).federation()


def test_a_stored_update_whose_charge_the_ledger_lacks_is_refused(study, again, tmp_path, monkeypatch):
    next(study.federation())
    study.ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "old.db")
    crashed(again(), monkeypatch)  # round 2: north is charged and stored, then the process ends
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    shutil.copy(tmp_path / "old.db", tmp_path / "ledger.db")
    with pytest.raises(LedgerRolledBack):
        again().federation()


def test_a_deleted_ledger_is_refused(study, again, tmp_path):
    next(study.federation())
    study.ledger.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    with pytest.raises(LedgerRolledBack):
        again().federation()


def test_a_directory_of_another_plan_is_refused_and_nothing_is_charged(open_study):
    study = open_study()
    next(study.federation())
    with pytest.raises(InvalidArgument, match="another plan"):
        open_study(rounds=3).federation()
    assert study.committed() == dict.fromkeys(NAMES, 1)


def test_a_new_directory_for_the_same_run_pays_for_all_it_does(open_study, tmp_path):
    study = open_study("user", cohort=FixedCohort(1), rounds=4, spare_rounds=8)
    list(zip(range(3), study.federation(), strict=False))
    shutil.rmtree(tmp_path / "run")
    other = open_study("user", cohort=FixedCohort(1), rounds=4, spare_rounds=8)
    list(other.federation())
    other.require_nothing_free()


@pytest.mark.parametrize("style", STYLES)
def test_an_old_copy_of_a_run_that_was_ended_does_nothing_that_is_not_paid(open_study, tmp_path, style):
    """What was returned is not what was committed."""
    options = {"cohort": FixedCohort(1), "rounds": 6, "spare_rounds": 6}
    study = open_study(style, **options)
    federation = study.federation()
    next(federation)
    shutil.copytree(tmp_path / "run", tmp_path / "old")
    next(federation), next(federation)
    federation.finish()
    shutil.rmtree(tmp_path / "run")
    shutil.move(tmp_path / "old", tmp_path / "run")
    other = open_study(style, **options)
    federation = other.federation()
    list(federation)
    assert federation.status == BUDGET_EXHAUSTED
    other.require_nothing_free()


def test_two_processes_do_not_run_the_same_run(study, again):
    study.ledger.close()

    def hold(say) -> None:
        federation = again().federation()
        next(federation)
        say("holds it")
        signal.pause()

    child = fork(hold)
    child.hear()
    with pytest.raises(LeaseHeld):
        again().federation()
    child.kill()
    child.end()
    assert [result.number for result in again().federation()] == [2, 3, 4]


@pytest.mark.parametrize("style", STYLES)
def test_a_process_whose_run_was_taken_over_draws_no_noise_any_more(open_study, style):
    """Also in a round that needs no charge: the other process does not know who takes part in it."""
    options = {"cohort": FixedCohort(1), "rounds": 6, "weighting": "equal"}
    first, second = open_study(style, **options), open_study(style, **options)
    stale = first.federation()
    for _ in range(3):
        next(stale)
    second.federation()  # the lease is the process's, which both have; the second took it last
    before = second.diary.noised(), second.diary.trained()
    with pytest.raises(LeaseLost):
        next(stale)
    assert second.diary.noised() == before[0]
    if style != "user":
        assert second.diary.trained() == before[1]


# What does not fit, what fails.


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_a_round_that_does_not_fit_is_refused_before_anything_is_sent_and_the_model_is_kept(open_study, style):
    study = open_study(style, rounds=2)
    federation = study.federation()
    next(federation)
    with crash_at({"sample": 2, "user": 2, "hybrid": 3}[style], is_after=False), pytest.raises(Crash):
        next(federation)  # charged and drawn, and nothing stored
    study.ledger.close()
    other = open_study(style, rounds=2)
    federation = other.federation()
    before = federation.weights
    sent = other.diary.trained()
    assert list(federation) == []
    assert federation.status == other.directory().status == BUDGET_EXHAUSTED
    assert other.diary.trained() == sent
    np.testing.assert_array_equal(federation.weights, before)
    assert other.ledger.reservations() == ()
    other.require_nothing_free()
    assert list(open_study(style, rounds=2).federation()) == []


# A stop must not tell who was in a secret cohort.


SECRET = {"poisson": PoissonCohort(0.4, secret=True), "fixed": FixedCohort(1, secret=True)}
SEEDS = range(6)


def stopped(study, seed, trouble):
    """What is seen of a run that gets into trouble after its first round: its error, and what was done before."""
    federation = study.federation(source=SeededSource(seed))
    next(federation)
    before = study.diary.trained()
    trouble(study.ledger)
    with pytest.raises(PrivacyError) as error:
        next(federation)
    assert study.diary.trained() == before
    return type(error.value), str(error.value), len(study.directory().rounds()), study.diary.noised()


def frozen(ledger):
    ledger.freeze("account-west", reason="a question of the owner")


def overdrawn(ledger):
    ledger.record({"account-west": ev.Gaussian(noise_multiplier=0.023)}, reason="found later")


@pytest.mark.parametrize("trouble", [frozen, overdrawn])
@pytest.mark.parametrize("cohort", SECRET.values(), ids=SECRET)
@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_an_account_that_cannot_pay_stops_a_run_whoever_was_drawn(open_study, tmp_path, style, cohort, trouble):
    seen, drawn = set(), set()
    for seed in SEEDS:
        (tmp_path / str(seed)).mkdir()
        study = open_study(style, folder=tmp_path / str(seed), cohort=cohort, max_participations=4)
        seen.add(stopped(study, seed, trouble))
        drawn.add(tuple(study.diary.trained()))
    assert len(seen) == 1
    assert len(drawn) > 1  # the seeds do draw differently


def attempts_until_the_end(study, seed) -> int:
    """How often a run can be begun whose every attempt crashes when its clients have paid."""
    for number in range(20):
        federation = study.federation(source=SeededSource(1000 * seed + number))
        with crash_at(2, is_after=False), pytest.raises(Crash):
            next(federation)
        if federation.status == BUDGET_EXHAUSTED:  # the crash came while the end was written
            assert list(study.federation()) == []
            return number
    raise AssertionError("it never ends")


def test_crashes_end_a_run_with_a_secret_cohort_of_fixed_size_after_as_many_attempts_whoever_was_drawn(
    open_study, tmp_path
):
    seen, drawn = set(), set()
    for seed in SEEDS:
        (tmp_path / str(seed)).mkdir()
        options = {"cohort": FixedCohort(1, secret=True), "rounds": 2, "spare_rounds": 2}
        study = open_study("hybrid", folder=tmp_path / str(seed), **options)
        seen.add(attempts_until_the_end(study, seed))
        drawn.add(tuple(sorted(study.committed().values())))
        study.require_nothing_free()
    assert seen == {4}
    assert len(drawn) > 1


@pytest.mark.parametrize("style", ["user", "hybrid"])
def test_a_secret_cohort_that_breaks_down_releases_noise_around_zero(open_study, style):
    """Who knows that the others break down would see from an end that one client was not drawn."""
    study = open_study(style, cohort=EVERYONE)
    for client in study.clients:
        client.train = lambda *_: 1 / 0
    results = list(study.federation())
    assert [result.participation.failed for result in results] == [NAMES] * 4
    assert study.diary.noised() == 4
    study.require_nothing_free()


@pytest.mark.parametrize("style", ["sample", "user"])
def test_what_another_past_left_of_a_later_round_is_not_used(open_study, style):
    study = open_study(style)
    stored = UnfinishedRound(study.directory())
    stored.write_updates(3, [Update("north", 3, np.ones(3), "1:a")])
    stored.write_release(3, Released(np.ones(3)), "1:a", ["north"])
    assert [result.participation.contributed for result in study.federation()] == [tuple(SIZES)] * 4
    assert study.diary.trained()["north"] == 4
    study.require_nothing_free()


def test_whoever_has_taken_part_as_often_as_is_paid_is_not_asked_again(open_study):
    study = open_study("user", max_participations=1)
    contributed = [result.participation.contributed for result in study.federation()]
    assert contributed == [tuple(SIZES), (), (), ()]
    assert study.committed_releases() == 1


@pytest.mark.parametrize("style", ["sample", "user"])
def test_fewer_clients_than_the_minimum_do_nothing(open_study, style):
    # Draws of two clients or one come in 12 rounds but for 6e-8 of the runs.
    study = open_study(style, cohort=PoissonCohort(0.5), minimum_cohort=3, rounds=12, max_participations=12)
    assert {result.participation.contributed for result in study.federation()} <= {(), tuple(SIZES)}


@pytest.mark.parametrize("style", ["user", "hybrid"])
def test_no_checkpoint_and_no_stored_release_says_who_was_in_a_secret_cohort(open_study, style, monkeypatch):
    study = open_study(style, cohort=PoissonCohort(0.9, secret=True))
    monkeypatch.setattr(UnfinishedRound, "forget", lambda *_: None)
    list(study.federation())
    assert [UnfinishedRound(study.directory()).release(number)[2] for number in range(1, 5)] == [()] * 4
    files = (study.folder / "run" / "checkpoints").glob("*")
    assert not any(name.encode() in path.read_bytes() for path in files for name in SIZES)


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_the_heads_of_rounds_do_not_tell_how_many_were_in_a_secret_cohort(open_study, style):
    study = open_study(style, cohort=PoissonCohort(0.5, secret=True), rounds=12, max_participations=12)
    list(study.federation())
    heads = [record["head"] for record in study.directory().rounds()]
    if style == "user":  # one entry a round, whoever was drawn
        assert set(np.diff([sequence(head) for head in heads])) == {1}
    else:
        assert heads == [None] * 12


def record_epsilon(study, charges) -> float:
    return max(part.epsilon(1e-5, charges) for part in study.plan.local.values())


def test_a_round_done_again_counts_for_everybody_where_the_cohort_is_secret(open_study):
    study = open_study("hybrid", cohort=EVERYONE, spare_rounds=3)
    federation = study.federation()
    with crash_at(1, is_after=True), pytest.raises(Crash):  # the clients have paid, and nothing is released
        next(federation)
    study = open_study("hybrid", cohort=EVERYONE, spare_rounds=3)
    *_, last = study.federation()
    assert study.committed() == dict.fromkeys(SIZES, 5)
    assert last.spent[0].epsilon == record_epsilon(study, 5)


def test_an_old_copy_does_not_spend_less_than_is_in_the_ledger_where_the_cohort_is_secret(open_study, tmp_path):
    study = open_study("hybrid", cohort=EVERYONE, spare_rounds=3)
    federation = study.federation()
    shutil.copytree(study.folder / "run", tmp_path / "copy")
    for _ in range(3):
        next(federation)
    shutil.rmtree(study.folder / "run")
    shutil.copytree(tmp_path / "copy", study.folder / "run")
    first = next(open_study("hybrid", cohort=EVERYONE, spare_rounds=3).federation())
    assert study.committed() == dict.fromkeys(SIZES, 4)
    assert first.spent[0].epsilon >= record_epsilon(study, 4)


def test_a_round_is_clipped_at_the_norm_that_the_count_before_led_to(open_study, silent):
    # Without noise one update in three is short enough, and nine in ten are to be: the norm grows by exp(0.9 − 1/3).
    client = ClientPlan(clip_norm=0.1, noise_multiplier=5.0, adaptive=AdaptiveClip(0.9, 1.0, count_noise=9.0))
    study = open_study("user", client=client, rounds=2)
    first, second = (result.weights for result in study.federation(source=silent))
    assert np.linalg.norm(second - first) > 1.3 * np.linalg.norm(first)


def test_secret_poisson_draws_do_not_end_a_run_when_all_turns_are_used_up(open_study):
    # Whoever knows all other draws would see from the end of the run that the last client was drawn.
    study = open_study("hybrid", cohort=PoissonCohort(0.9, secret=True), rounds=12, max_participations=1)
    federation = study.federation()
    assert [result.number for result in federation] == list(range(1, 13))  # without it, 1e-9 of the runs go so far
    assert federation.status == "finished"
    assert (set(study.committed().values()), study.committed_releases()) == ({1}, 12)


@pytest.mark.parametrize("is_secret", [False, True])
def test_a_round_below_the_minimum_releases_noise_around_zero(open_study, is_secret):
    cohort = PoissonCohort(1e-9, secret=is_secret)  # nobody is ever drawn
    options = {"cohort": cohort, "minimum_cohort": 1 if is_secret else 2, "max_participations": 4}
    study = open_study("user", **options)
    results = list(study.federation())
    assert len(results) == 4
    assert all(np.any(result.weights != 0) for result in results)
    assert study.diary.trained() == {}
    assert study.diary.noised() == 4
    assert study.committed_releases() == (4 if is_secret else 0)  # where it is no secret, nobody took part
    study.require_nothing_free()


def test_below_the_minimum_nobody_is_asked_in_style_sample(open_study):
    study = open_study(cohort=PoissonCohort(1e-9), minimum_cohort=2, max_participations=4)
    results = list(study.federation())
    assert not np.any(results[-1].weights)
    assert study.committed() == dict.fromkeys(NAMES, 0)
    assert results[-1].spent[0].epsilon == 0.0


class Foreign(LocalRunner):
    """Lets the second client send whatever the test says."""

    sends = staticmethod(lambda update: [update])

    def train(self, task, cohort):
        for outcome in super().train(task, cohort):
            yield from self.sends(outcome) if outcome.client == "west" else [outcome]


BAD = {
    "not_finite": lambda update: [replace(update, value=np.full(3, np.nan))],
    "shape": lambda update: [replace(update, value=np.zeros(4))],
    "wrong_round": lambda update: [replace(update, round=7)],
    "dtype": lambda update: [replace(update, value=np.zeros(3, dtype=int))],
    "duplicate": lambda update: [update, update],
}


@pytest.mark.parametrize("style", ["none", *STYLES])
@pytest.mark.parametrize("reason", BAD)
def test_an_update_that_does_not_fit_is_refused_and_only_the_owner_is_told_why(open_study, style, reason, monkeypatch):
    monkeypatch.setattr(Foreign, "sends", staticmethod(BAD[reason]))
    study = open_study(style)
    results = list(study.federation(study.runner(Foreign)))
    assert len(results) == 4
    assert all(result.participation.refused == {"west": reason} for result in results)
    assert all(("west" in result.participation.contributed) == (reason == "duplicate") for result in results)
    assert np.isfinite(results[-1].weights).all()
    assert [record["refused"] for record in study.directory().owner_rounds()] == [{"west": reason}] * 4
    assert reason not in (study.folder / "run" / "rounds.jsonl").read_text()


@pytest.mark.parametrize("style", ["none", *STYLES])
def test_a_client_that_raises_does_not_stop_the_round_and_what_it_says_is_written_nowhere(open_study, tmp_path, style):
    study = open_study(style)

    def train(*_):
        raise ValueError("patient Zimmermann is ill")

    study.clients[1].train = train
    results = list(study.federation())
    assert all(result.participation.failed == ("west",) for result in results)
    assert all(result.participation.contributed == ("north", "harbour") for result in results)
    assert [record["failed"] for record in study.directory().owner_rounds()] == [["west"]] * 4
    study.ledger.close()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not any(b"Zimmermann" in path.read_bytes() for path in written)


def test_a_client_that_trains_in_place_fails_and_does_not_change_the_model(open_study, silent):
    study = open_study("user")

    def train(local, objective, source):
        weights = objective.start
        weights += 1000.0
        return weights

    study.clients[1].train = train
    (first, *_) = study.federation(source=silent)
    assert first.participation.failed == ("west",)
    assert np.abs(first.weights).max() < 1


def test_when_every_client_breaks_down_and_nobody_is_protected_the_error_is_raised(open_study):
    study = open_study("none")
    for client in study.clients:
        client.train = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        next(study.federation())
    assert study.directory().rounds() == []


@pytest.mark.parametrize("style", STYLES)
def test_when_every_client_breaks_down_a_run_goes_on_and_its_owner_is_told(open_study, style):
    study = open_study(style)
    for client in study.clients:
        client.train = lambda *_: 1 / 0
    results = list(study.federation())
    assert len(results) == 4
    assert study.diary.noised() == (0 if style == "sample" else 4)
    for result, record in zip(results, study.directory().owner_rounds(), strict=True):
        assert [type(error) for error in result.participation.errors.values()] == [ZeroDivisionError] * 3
        assert record["errors"] == dict.fromkeys(NAMES, "ZeroDivisionError")
    study.require_nothing_free()


@pytest.mark.parametrize("style", STYLES)
def test_a_cohort_of_one_that_breaks_down_does_not_stop_the_run(open_study, style):
    study = open_study(style, cohort=FixedCohort(1), max_participations=4)
    for client in study.clients:
        client.train = lambda *_: 1 / 0
    results = list(study.federation())
    assert [len(result.participation.failed) for result in results] == [1, 1, 1, 1]
    study.require_nothing_free()


def test_what_was_never_committed_is_returned_when_a_run_is_ended_early(study):
    federation = study.federation()
    next(federation)
    (held,) = study.ledger.reservations()
    assert held.left == 9
    federation.finish()
    assert study.ledger.reservations() == ()
    assert study.committed() == dict.fromkeys(NAMES, 1)


def test_a_finished_run_opened_again_does_nothing(study, again):
    last = list(study.federation())[-1]
    entries = study.ledger.head().sequence
    study.ledger.close()
    other = again()
    federation = other.federation()
    assert list(federation) == []
    np.testing.assert_array_equal(federation.weights, last.weights)
    assert other.ledger.head().sequence == entries


def test_a_clip_norm_that_adapts_goes_on_where_it_was(open_study):
    client = ClientPlan(clip_norm=0.1, noise_multiplier=5.0, adaptive=AdaptiveClip(0.5, 0.2, count_noise=9.0))
    study = open_study("user", client=client)
    federation = study.federation(source=SilentSource())
    next(federation)
    kept = federation._checkpoint.clip_norm
    assert kept != 0.1
    other = open_study("user", client=client)
    assert other.federation()._checkpoint.clip_norm == kept


def test_a_model_that_is_no_longer_finite_ends_the_run_and_the_one_before_is_kept(study):
    class Exploding:
        proximal = 0.0

        def start(self, size):
            return {}

        def step(self, weights, update, state):
            return weights + np.inf, state

    federation = study.federation(algorithm=Exploding())
    with pytest.raises(Exception, match="no longer finite"):
        next(federation)
    np.testing.assert_array_equal(federation.weights, np.zeros(3))


def test_a_metric_that_is_no_number_does_not_end_the_run(study):
    results = list(study.federation(evaluate=lambda weights: [Score("auc", float("nan"), is_public=True)]))
    assert len(results) == 4
    assert study.directory().rounds()[0]["metrics"] == {"auc": {"value": None, "mark": ""}}


def test_an_evaluation_that_raises_costs_nothing_when_the_round_is_tried_again(study):
    calls = []

    def evaluate(weights):
        calls.append(1)
        if len(calls) == 1:
            raise OSError("no disk")
        return []

    federation = study.federation(evaluate=evaluate)
    with pytest.raises(OSError, match="no disk"):
        next(federation)
    assert [result.number for result in federation] == [1, 2, 3, 4]
    assert study.committed() == dict.fromkeys(NAMES, 4)
    study.require_nothing_free()


def test_rounds_whose_noise_can_be_predicted_are_stamped(study, again):
    next(study.federation(study.runner(source=SeededSource(1))))
    next(again().federation())
    predicted, private = study.directory().rounds()
    assert predicted["noise"] == "NOT PRIVATE"
    assert "noise" not in private
