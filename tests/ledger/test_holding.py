from __future__ import annotations

import pytest

from dpfed.errors import (
    InvalidArgument,
    LeaseLost,
    NotReserved,
)
from icu import STEP


def test_whoever_resumes_takes_the_run_from_the_one_before(ledger):
    first = ledger.reserve({"icu": {STEP: 5}}, run="r")
    first.commit({"icu": STEP})
    second = ledger.resume("r")
    third = ledger.resume("r")
    head = ledger.head()
    for old in (first, second):
        for verb in (lambda: old.commit({"icu": STEP}), old.release, lambda: old.extend({"icu": STEP})):  # noqa: B023
            with pytest.raises(LeaseLost):
                verb()
    assert ledger.head() == head
    assert third.left("icu", STEP) == 4
    assert third.events("icu") == {STEP: 5}
    third.commit({"icu": {STEP: 4}})


def test_a_run_that_was_released_by_name_is_lost_to_its_process(ledger):
    held = ledger.reserve({"icu": {STEP: 5}}, run="r")
    ledger.release("r", reason="it hangs")
    with pytest.raises(LeaseLost):
        held.commit({"icu": STEP})
    with pytest.raises(NotReserved):
        ledger.resume("r").commit({"icu": STEP})


def test_a_run_has_its_name_once(ledger):
    ledger.reserve({"icu": STEP}, run="r").release()
    head = ledger.head()
    with pytest.raises(InvalidArgument, match="already") as refusal:
        ledger.reserve({"icu": STEP}, run="r")
    assert refusal.value.argument == "run"
    assert ledger.head() == head
