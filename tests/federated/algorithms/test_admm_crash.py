"""An ADMM that is killed at any point goes on: where no charge was lost it ends where it would have ended anyway."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from dpfed.federated.algorithms.feddyn import FedDyn
from dpfed.federated.algorithms.iadmm import Iadmm
from dpfed.federated.state.clients import ClientStates
from dpfed.plan.cohort import All, PoissonCohort
from dpfed.randomness import SeededSource
from studies import Crash, Study, crash_at

OPTIONS = {"rounds": 2, "spare_rounds": 2, "weighting": "equal"}
IADMM = Iadmm(rho=(1.0, 0.5))
CASES = [(IADMM, style, All()) for style in ("none", "sample", "user", "hybrid", "local")]
CASES += [(IADMM, "sample", PoissonCohort(0.7))]
FEDDYN = FedDyn(alpha=2.0)
DRAWN = [(FEDDYN, "user", PoissonCohort(0.7)), (FEDDYN, "hybrid", PoissonCohort(0.7, secret=True))]


def open_seeded(folder, style, cohort):
    study = Study(folder, style, {**OPTIONS, "cohort": cohort})
    study.plan = replace(study.plan, local={name: replace(part, steps=1) for name, part in study.plan.local.items()})
    return study


def begin(study, algorithm):
    return study.federation(study.runner(source=SeededSource(5)), algorithm=algorithm, source=SeededSource(6))


def finish(study, algorithm):
    """Run to the end; in every round the duals of the clients are those of the updates that the server used."""
    federation = begin(study, algorithm)
    spent = None
    for result in federation:
        spent = result.spent
        require_one_past(study, federation)
    return federation.weights, spent


def require_one_past(study, federation):
    """Where no noise is added at the server, it keeps the mean of the clients' duals: no state without its update."""
    found = federation._checkpoint
    if "dual" not in found.state:
        return
    states = ClientStates(study.folder / "run" / "clients", federation.runner.key(study.plan))
    if found.round < study.plan.rounds:
        kept = sum(states.read(*each)["dual"] for each in found.counted.items()) if found.counted else 0.0
        np.testing.assert_allclose(found.state["dual"], kept / len(study.plan.local), atol=1e-9)


def count_charges(study):
    return sum(study.committed().values()) + study.committed_releases() if study.plan.units else 0


@pytest.mark.parametrize(("algorithm", "style", "cohort"), CASES + DRAWN, ids=str)
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_crash_at_each_durable_write_changes_nothing_unless_a_charge_was_lost(
    tmp_path, algorithm, style, cohort, is_after
):
    whole = open_seeded(make(tmp_path, "whole"), style, cohort)
    end, spent = finish(whole, algorithm)
    charges = count_charges(whole)
    whole.ledger.close()
    number, is_over, same = 0, False, 0
    while not is_over:
        number += 1
        folder = make(tmp_path, str(number))
        study = open_seeded(folder, style, cohort)
        with crash_at(number, is_after=is_after), suppress(Crash):
            list(begin(study, algorithm))
            is_over = True
        study.ledger.close()
        again = open_seeded(folder, style, cohort)
        found, cost = finish(again, algorithm)
        again.require_nothing_free()
        same += require_same_or_charged(again, found, cost, end, spent, charges)
        again.ledger.close()
    assert number > 10
    assert same >= number / 3


def make(folder, name):
    made = folder / name
    made.mkdir()
    return made


def require_same_or_charged(study, found, cost, end, spent, charges):
    """Whether no charge was lost, and then the very same model; else more was charged, and no ε is lower."""
    if count_charges(study) == charges:
        assert found.tobytes() == end.tobytes()
        return True
    assert count_charges(study) > charges
    for now, before in zip(cost or (), spent or (), strict=False):
        assert now.epsilon >= before.epsilon
    return False
