"""Centred clipping and noised groups at the server in whole runs: weights, schedules, adaptive clips, kept state."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.aggregation.robust_rules import CenteredClipping, FixedGroups, TrimmedMean
from dpfed.federated.algorithms.feddyn import FedDyn
from dpfed.federated.algorithms.fedopt import FedOpt
from dpfed.federated.algorithms.scaffold import Scaffold
from dpfed.federated.state.unfinished import UnfinishedRound
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.plan import ClientPlan, FixedCohort, PoissonCohort
from studies import DIMENSION, SilentSource, Study

ROUND = 3  # in which neighbours differ: by then there is a centre, a clip norm that was adapted, and states
SIZES = {"north": 60, "west": 30, "harbour": 10, "south": 20}
CASES = {
    "declared weights, a schedule": ({"noise_schedule": (1.0, 2.0, 0.5, 1.0)}, None),
    "scaffold": ({"weighting": "equal"}, Scaffold()),
    "a secret poisson cohort, feddyn": (
        {"cohort": PoissonCohort(0.9, secret=True), "weighting": "equal"},
        FedDyn(alpha=0.1),
    ),
    "a secret fixed cohort, momentum": ({"cohort": FixedCohort(3, secret=True), "weighting": "equal"}, FedOpt()),
}
OTHERWISE = {"turned around": -1e3, "gone": np.nan}


def release_all(folder, monkeypatch, options, algorithm, factor):
    """What a run releases in each round without noise, with its clip norm; north sends `factor` times its update."""
    folder.mkdir()
    client = ClientPlan(clip_norm=1.0, noise_multiplier=5.0, adaptive=AdaptiveClip(0.3, 0.2, 10.0))
    study = Study(folder, "user", {**options, "client": client, "aggregation": CenteredClipping(max_faulty=1)}, SIZES)
    for place, each in enumerate(study.clients):
        each.train = make_training(place, factor if each.name == "north" else 1.0)
    federation, released = study.federation(source=SilentSource(), algorithm=algorithm), []
    write = UnfinishedRound.write_release

    def kept(self, number, value, *rest, **more):
        released.append((value, federation._checkpoint.clip_norm))
        write(self, number, value, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(UnfinishedRound, "write_release", kept)
        facts = [{**result.facts(), "head": None} for result in federation]
    study.ledger.close()
    return released, facts, float(study.plan.in_round(1).server.largest_weight())


def make_training(place, factor):
    """A client whose updates are of very different lengths, and which in one round sends another."""
    asked = []

    def train(local, objective, source):
        asked.append(place)
        chance = np.random.default_rng([place, len(asked)])
        update = chance.normal(size=DIMENSION) * 10 ** chance.uniform(-2, 3)
        return update * factor if len(asked) == ROUND else update

    return train


@pytest.mark.parametrize("case", CASES)
def test_neighbouring_runs_of_centred_clipping_differ_by_what_is_charged(tmp_path, monkeypatch, case):
    """Without noise, with the same draws: until then alike, and then apart by a clip norm of that round at most."""
    options, algorithm = CASES[case]
    runs = {"as it is": 1.0, **OTHERWISE}
    found = {name: release_all(tmp_path / name, monkeypatch, options, algorithm, runs[name]) for name in runs}
    ours, facts, weight = found["as it is"]
    for name in OTHERWISE:
        theirs, their_facts, _ = found[name]
        assert facts == their_facts
        assert [each[0].average.tolist() for each in ours[: ROUND - 1]] == [
            each[0].average.tolist() for each in theirs[: ROUND - 1]
        ]
        (one, clip_norm), (other, same) = ours[ROUND - 1], theirs[ROUND - 1]
        assert clip_norm == same != 1.0
        times = 1 if name == "gone" else 2
        assert 0 < np.linalg.norm(one.average - other.average) <= times * clip_norm * weight * (1 + 1e-12)
        assert abs(one.noisy_count - other.noisy_count) <= times / 2


def test_what_a_client_keeps_follows_from_its_update_as_the_server_uses_it(tmp_path):
    """Around the last release, and not around zero: else control variates and the server's would drift apart."""
    client = ClientPlan(clip_norm=1.0, noise_multiplier=5.0)
    options = {"client": client, "aggregation": CenteredClipping(max_faulty=1), "weighting": "equal"}
    study = Study(tmp_path, "user", options, dict.fromkeys(("north", "west", "harbour"), 10))
    for each in study.clients:
        each.train = lambda local, objective, source: np.full(DIMENSION, 5.0)
    federation = study.federation(source=SilentSource(), algorithm=FedDyn(alpha=0.5))
    next(federation)
    centre = federation._checkpoint.centre
    next(federation)
    apart = np.full(DIMENSION, 5.0) - centre
    used = centre + apart / np.linalg.norm(apart)
    kept = federation.runner._states.read("north", 2)["gradient"]
    assert kept == pytest.approx(-0.5 * (centre + used))
    study.ledger.close()


def test_a_run_with_noised_groups_bears_a_hostile_client_and_is_charged_as_a_mean(tmp_path):
    client = ClientPlan(clip_norm=1.0, noise_multiplier=5.0)
    rule = TrimmedMean(max_faulty=1, before=FixedGroups(3))
    options = {"client": client, "aggregation": rule, "weighting": "equal", "rounds": 2}
    study = Study(tmp_path, "user", options, dict.fromkeys(("north", "west", "harbour"), 10))
    for each in study.clients:
        each.train = lambda local, objective, source, name=each.name: np.full(
            DIMENSION, -9.0 if name == "west" else 0.1
        )
    federation = study.federation(source=SilentSource())
    list(federation)
    assert federation.weights == pytest.approx(np.full(DIMENSION, 0.2), abs=1e-6)  # 0.1 in each of two rounds
    assert study.committed_releases() == 2
    study.require_nothing_free()
    study.ledger.close()
