"""Lone attackers are put aside within three rounds; honest clients are not, and colluders cannot have them so."""

from __future__ import annotations

import json

import numpy as np
import pytest

from digit_clients import LOCAL, SIZE, make_clients
from dpfed.aggregation import quarantine
from dpfed.aggregation.adversaries import ATTACKS
from dpfed.aggregation.quarantine import Quarantine, Standing, score_updates
from dpfed.aggregation.rules import choose_rule
from dpfed.errors import InvalidArgument
from dpfed.randomness import SeededSource
from dpfed.training.objective import LocalObjective

FAULTY = {5: 1, 8: 2, 10: 2, 20: 4}
CRUDE = ("strong_sign_flip", "scaling", "gaussian", "nan")


def follow(count, rounds, attack=None, attackers=1, seed=0, watch=None):
    """Return the standings after rounds in which the first clients attack, and every decision."""
    clients, faulty = make_clients(count, 0.5, seed, momentum=0.0), FAULTY[count]
    rule, watch, weights = choose_rule("none", faulty), watch or Quarantine(), np.zeros(SIZE)
    standings, entries = {}, []
    for number in range(1, rounds + 1):
        objective = LocalObjective(weights)
        sent = {client.name: client.train(LOCAL, objective, None) for client in clients}
        names, refused = list(sent)[:attackers], {}
        if attack is not None:
            honest = np.array(list(sent.values())[attackers:])
            sent |= dict(zip(names, attack(honest, attackers, SeededSource(number)), strict=True))
            refused = {name: "not_finite" for name in names if not np.isfinite(sent[name]).all()}
        passed = {name: update for name, update in sent.items() if name not in refused}
        counted = {name: update for name, update in passed.items() if not standings.get(name, Standing()).is_aside}
        aggregate = rule.combined(counted, SIZE)
        standings, decisions = watch.judge(number, standings, passed, refused, aggregate, most=faulty)
        weights, entries = weights + aggregate, [*entries, *decisions]
    return standings, entries


def aside(standings):
    return {name for name, standing in standings.items() if standing.is_aside}


@pytest.mark.parametrize("count", FAULTY)
@pytest.mark.parametrize("attack", CRUDE)
def test_a_lone_crude_attacker_is_put_aside_within_three_rounds(count, attack):
    standings, entries = follow(count, 3, ATTACKS[attack])
    assert aside(standings) == {"c00"}
    assert [entry.kind for entry in entries if entry.client == "c00"] == ["strike", "strike", "quarantined"]


@pytest.mark.parametrize("count", FAULTY)
def test_no_honest_client_of_unlike_data_is_put_aside(count, campaign_scale):
    """Dirichlet 0.5, twenty rounds here and two hundred in a campaign."""
    standings, _ = follow(count, 20 * campaign_scale)
    assert aside(standings) == set()


def beside(honest, count, source):
    """Return copies of the middle, so that whoever is unlike the others looks more unlike still."""
    return [np.median(honest, axis=0)] * count


def against_the_farthest(honest, count, source):
    """Return the mirror image of the honest update that is farthest out, to draw the aggregate away from it."""
    middle = honest.mean(axis=0)
    farthest = honest[np.linalg.norm(honest - middle, axis=1).argmax()]
    return [2 * middle - farthest] * count


@pytest.mark.parametrize("count", FAULTY)
@pytest.mark.parametrize("attack", [beside, against_the_farthest, ATTACKS["mimic"], ATTACKS["alie"]])
def test_as_many_colluders_as_a_rule_bears_cannot_have_an_honest_client_put_aside(count, attack, campaign_scale):
    standings, _ = follow(count, 15 * campaign_scale, attack, attackers=FAULTY[count])
    colluders = {f"c{place:02d}" for place in range(FAULTY[count])}
    assert aside(standings) <= colluders


def test_no_more_are_put_aside_than_may_be_faulty():
    standings, entries = follow(10, 5, ATTACKS["scaling"], attackers=4)
    assert len(aside(standings)) <= 2
    assert sum(entry.kind == "quarantined" for entry in entries) <= 2


def steady(scores, watch):
    """Return the standing after each of these scores of one client."""
    standing, found = Standing(), []
    for score in scores:
        standing, kind = watch._move(standing, score, has_room=True)
        found.append((standing.is_aside, kind))
    return found


def test_one_bad_round_is_no_proof_and_a_clean_one_takes_a_strike_back():
    watch = Quarantine(strikes=2)
    assert not any(is_aside for is_aside, _ in steady([10, 1, 10, 1, 10, 1], watch))
    assert [kind for _, kind in steady([10, 6, 6, 10], watch)] == ["strike", "", "", "quarantined"]


def test_whoever_behaves_comes_back_on_its_last_strike():
    watch = Quarantine(strikes=3, clean_rounds=2)
    found = steady([10, 10, 10, 1, 6, 1, 1, 10], watch)
    assert [is_aside for is_aside, _ in found] == [False, False, True, True, True, True, False, True]
    assert [kind for _, kind in found] == ["strike", "strike", "quarantined", "", "", "", "readmitted", "quarantined"]


def test_an_attacker_that_pauses_counts_in_fewer_rounds_than_one_that_behaves():
    watch = Quarantine(strikes=3, clean_rounds=10)
    scores = ([10] * 3 + [1] * 10) * 10
    bad = [number for number, score in enumerate(scores) if score > 9]
    counted = [number for number, (is_aside, _) in enumerate(steady(scores, watch)) if not is_aside]
    assert len(set(bad) & set(counted)) <= 2 + 9  # two strikes at first, then none but the one that puts it aside


def test_every_decision_has_its_round_its_client_and_its_reason():
    _, entries = follow(5, 3, ATTACKS["gaussian"])
    assert {entry.round for entry in entries} == {1, 2, 3}
    assert all(entry.client == "c00" and "deviations" in entry.reason and "strike" in entry.reason for entry in entries)


def test_scores_begin_with_four_updates():
    updates = {name: np.array([1.0, value]) for name, value in zip("abcd", (0.1, 0.0, -0.1, 0.05), strict=True)}
    assert score_updates(dict(list(updates.items())[:3]), set(), np.ones(2)) == {}
    assert score_updates(updates, set(), np.zeros(2)) == {}
    updates["d"] = np.array([-50.0, 0.0])
    scores = score_updates(updates, set(), np.array([1.0, 0.0]))
    assert scores["d"].value > 9 > 3 > max(scores[name].value for name in "abc")
    assert score_updates(updates, {"d"}, np.array([1.0, 0.0]))["d"].value > 9


def test_equal_updates_are_not_unusual():
    updates = dict.fromkeys("abcde", np.ones(3))
    assert all(score.value == 0 for score in score_updates(updates, set(), np.ones(3)).values())
    assert all(
        score.value < 5 for score in score_updates(dict.fromkeys("abcd", np.zeros(3)), set(), np.ones(3)).values()
    )


def test_standings_come_back_from_plain_values():
    standings = {"a": Standing(2), "b": Standing(3, is_aside=True, clean=4)}
    assert quarantine.from_plain(json.loads(json.dumps(quarantine.to_plain(standings)))) == standings


@pytest.mark.parametrize("bad", [{"strikes": -1}, {"is_aside": "no"}, {"clean": 0.5}])
def test_standings_that_something_else_wrote_are_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        quarantine.from_plain({"a": {"strikes": 0, "is_aside": False, "clean": 0, **bad}})


@pytest.mark.parametrize("bad", [{"strikes": 0}, {"clean_rounds": 0}, {"high": 0}, {"low": 20}, {"low": -1}])
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(InvalidArgument):
        Quarantine(**bad)


@pytest.mark.parametrize("scale", [0.0, 5e-324, 1e-200, 1e-160])
def test_nobody_is_struck_where_the_aggregate_has_no_direction(scale):
    """Squares of such small numbers vanish, and a score that is no number must not be a strike for everybody."""
    updates = {
        name: scale * (1 + row) for name, row in zip("abcdefgh", 0.1 * SeededSource(1).normal((8, 4)), strict=True)
    }
    aggregate = np.mean(list(updates.values()), axis=0)
    with np.errstate(all="ignore"):
        standings, decisions = Quarantine().judge(1, {}, updates, {}, aggregate, most=2)
    assert not decisions
    assert not any(standing.strikes for standing in standings.values())
