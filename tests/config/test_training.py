from __future__ import annotations

import pytest
from pydantic import ValidationError

from dpfed.config import RunConfig
from dpfed.config.training import Local, OwnAlgorithmBlock


@pytest.mark.parametrize("kind", ["fedavg", "fedprox", "fedopt", "scaffold", "feddyn", "own.module:Algorithm"])
def test_every_algorithm_has_its_own_settings(plain, kind):
    own = {"fedprox": {"proximal": 0.1}, "feddyn": {"alpha": 0.5}, "fedopt": {"optimizer": "yogi", "beta2": 0.9}}
    config = RunConfig.of(plain({"algorithm": {"kind": kind, **own.get(kind, {})}}))
    assert config.algorithm.kind == kind
    assert kind == "feddyn" or config.algorithm.server_learning_rate > 0


LOCAL = {"batch_size": 14, "learning_rate": 0.5}


def test_a_client_trains_for_steps_or_for_epochs_and_momentum_is_of_sgd():
    assert (Local(**LOCAL, steps=3).epochs, Local(**LOCAL, epochs=1.5).steps) == (None, None)
    for wrong in ({}, {"steps": 3, "epochs": 1.5}, {"steps": 3, "momentum": 0.9, "optimizer": "adam"}):
        with pytest.raises(ValidationError):
            Local(**LOCAL, **wrong)


def test_an_algorithm_of_ones_own_is_a_reference():
    assert OwnAlgorithmBlock(kind="clinic.rules:Mine").kind == "clinic.rules:Mine"
    with pytest.raises(ValidationError, match=r"must be package\.module:name"):
        OwnAlgorithmBlock(kind="mine")


@pytest.mark.parametrize("kind", ["admm", "iadmm", "iceadmm", "iiadmm"])
@pytest.mark.parametrize("rho", [2, [1, 2, "3e0", 4, 5]], ids=["a number", "by round"])
def test_every_admm_has_a_penalty_for_all_rounds_or_for_each(plain, kind, rho):
    found = RunConfig.of(plain({"algorithm": {"kind": kind, "rho": rho, "rho_factor": 1}})).algorithm
    assert (found.kind, found.rho_factor) == (kind, 1.0)
    assert found.rho == (2.0 if rho == 2 else [1.0, 2.0, 3.0, 4.0, 5.0])
