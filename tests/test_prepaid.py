"""Steps that are paid for before they are taken: counted in one process, on an account that fits."""

from __future__ import annotations

import copy
import pickle

import pytest

import dpfed
from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InvalidArgument, PrivacyError
from dpfed.events import Gaussian
from dpfed.prepaid import PaidSteps, reserve

STEP = Gaussian(4.0)


@pytest.fixture
def icu(tmp_path):
    with dpfed.Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        yield ledger.open("icu", epsilon=20.0, delta=1e-5)


def test_no_more_steps_than_the_plan_has_are_taken():
    steps = PaidSteps(STEP, left=2, ahead=5)
    assert [steps.take(), steps.take()] == [1, 0]
    with pytest.raises(BudgetExceeded, match="all steps"):
        steps.take()


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, pickle.dumps])
def test_paid_steps_are_not_copied(twin):
    with pytest.raises(PrivacyError, match="copied or pickled"):
        twin(PaidSteps(STEP, left=2))


def test_steps_are_committed_a_block_at_a_time_and_the_rest_is_returned(icu):
    held = reserve({STEP: 5}, icu, "r", "add_remove", "record")
    steps = PaidSteps(STEP, left=5, held=held, ahead=2)
    steps.take()
    assert held.left(STEP) == 3
    steps.release()
    assert held.left(STEP) == 0


def test_nothing_is_reserved_without_an_account():
    assert reserve({STEP: 5}, None, None, "add_remove") is None


def test_an_account_needs_the_name_of_a_run_and_a_run_an_account(icu):
    for account, run in ((icu, None), (None, "r")):
        with pytest.raises(InvalidArgument, match="go together"):
            reserve({STEP: 5}, account, run, "add_remove")


def test_an_account_for_another_unit_or_adjacency_is_refused(icu):
    with pytest.raises(InvalidArgument, match="never added up"):
        reserve({STEP: 5}, icu, "r", "add_remove", "client")
    with pytest.raises(AdjacencyMismatch, match="same adjacency"):
        reserve({STEP: 5}, icu, "r", "replace_one", "record")
