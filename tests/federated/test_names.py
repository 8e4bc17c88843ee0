"""Clients whose names are hard to tell apart are told apart, whatever crashes there were."""

from __future__ import annotations

from contextlib import suppress

import pytest

from dpfed.plan.plan import FixedCohort
from studies import Crash, Study, crash_at

OPTIONS = {"cohort": FixedCohort(2), "max_participations": 2, "rounds": 4}


@pytest.mark.parametrize("number", [5, 6, 7, 9, 10, 11])
@pytest.mark.parametrize("is_after", [False, True])
def test_nobody_takes_part_more_often_than_is_charged_under_a_name_that_ends_in_zero(tmp_path, number, is_after):
    for place in range(2):  # the second goes on where the first crashed
        study = Study(tmp_path, "user", OPTIONS, {"a": 20, "a\0": 20, "b": 20})
        with suppress(Crash), crash_at(99 if place else number, is_after=is_after):
            list(study.federation())
        if place:
            study.require_nothing_free()
        study.ledger.close()
