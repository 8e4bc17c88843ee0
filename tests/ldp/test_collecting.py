from __future__ import annotations

import numpy as np
import pytest

from dpfed.errors import BudgetExceeded, InvalidArgument
from dpfed.ldp import KaryResponse, LocalHashing, Rappor
from dpfed.ldp.collecting import STEP, Terms, collect
from dpfed.ldp.files import Kept
from dpfed.randomness import SeededSource

PERSONS = [f"person {number}" for number in range(400)]
VALUES = np.arange(400) % 4
WARDS = ("a", "b", "c", "d")


def terms(mechanism=None, column="ward", person_column="patient"):
    return Terms(column, person_column, WARDS, mechanism or KaryResponse(1.0, 4))


def test_the_same_terms_send_the_same_reports_again_whatever_the_values_are_now():
    first = collect(Kept.new(), PERSONS, VALUES, terms())
    again = collect(first.kept, PERSONS[::-1], np.zeros(400, dtype=int), terms())
    assert again.reports.tolist() == first.reports.tolist()[::-1]
    assert (first.drawn, again.drawn) == (400, 0)
    assert first.epsilon == again.epsilon == KaryResponse(1.0, 4).epsilon


def test_new_persons_draw_and_the_others_do_not():
    first = collect(Kept.new(), PERSONS[:300], VALUES[:300], terms())
    second = collect(first.kept, PERSONS, VALUES, terms())
    assert second.drawn == 100
    assert second.reports[:300].tolist() == first.reports.tolist()
    assert len(second.kept.collections) == 1


@pytest.mark.parametrize("other", [terms(KaryResponse(2.0, 4)), terms(LocalHashing(1.0, 4)), terms(column="diagnosis")])
def test_other_terms_are_refused_for_whoever_has_reported_and_add_up_if_asked_for(other):
    first = collect(Kept.new(), PERSONS, VALUES, terms())
    with pytest.raises(BudgetExceeded, match="--again"):
        collect(first.kept, PERSONS, VALUES, other)
    second = collect(first.kept, PERSONS, VALUES, other, again=True)
    assert second.epsilon == pytest.approx(first.epsilon + other.mechanism.epsilon)
    assert second.epsilon >= first.epsilon + other.mechanism.epsilon
    assert second.collections == 2


def test_again_on_the_same_terms_draws_anew_and_adds_up():
    first = collect(Kept.new(), PERSONS, VALUES, terms())
    second = collect(first.kept, PERSONS, VALUES, terms(), again=True)
    assert second.reports.tolist() != first.reports.tolist()
    assert second.epsilon == 2 * first.epsilon
    assert collect(second.kept, PERSONS, VALUES, terms()).reports.tolist() == second.reports.tolist()


def test_whoever_has_not_reported_may_be_asked_anything():
    first = collect(Kept.new(), PERSONS[:10], VALUES[:10], terms())
    second = collect(first.kept, PERSONS[10:], VALUES[10:], terms(KaryResponse(2.0, 4)))
    assert second.epsilon == KaryResponse(2.0, 4).epsilon


def test_a_person_new_on_these_terms_but_not_on_others_is_refused():
    """Ann answered the first question, both answered the second: Ben's answer to the first would add up."""
    first = collect(Kept.new(), ["ann"], [0], terms())
    second = collect(first.kept, ["ann", "ben"], [0, 1], terms(KaryResponse(2.0, 4)), again=True)
    assert collect(second.kept, ["ann"], [0], terms()).drawn == 0
    with pytest.raises(BudgetExceeded):
        collect(second.kept, ["ann", "ben"], [0, 1], terms())


def test_the_epsilon_is_that_of_who_has_spent_most():
    kept = collect(Kept.new(), ["ann"], [0], terms(KaryResponse(3.0, 4))).kept
    found = collect(kept, ["ann", "ben"], [0, 1], terms(), again=True)
    assert found.epsilon == pytest.approx(4.0)


def test_rows_and_persons_of_one_file_are_taken_to_be_the_same():
    kept = collect(Kept.new(), ["row 0"], [0], terms(person_column=None)).kept
    with pytest.raises(BudgetExceeded):
        collect(kept, ["ann"], [0], terms())
    assert collect(kept, ["ann"], [0], terms(), again=True).epsilon == pytest.approx(2.0)


def test_a_new_row_may_be_an_old_one_that_has_moved():
    """A row came in at the top: the last one is new by its number, and has reported already."""
    rows, by_row = ["row 0", "row 1", "row 2"], terms(person_column=None)
    kept = collect(Kept.new(), rows[:2], [0, 1], by_row).kept
    assert collect(kept, rows[:2], [2, 0], by_row).drawn == 0
    assert collect(kept, rows[:1], [2], by_row).drawn == 0
    with pytest.raises(BudgetExceeded, match="ε = 2 in all"):
        collect(kept, rows, [2, 0, 1], by_row)
    assert collect(kept, rows, [2, 0, 1], by_row, again=True).epsilon == pytest.approx(2.0)
    assert collect(kept, ["row 7"], [1], by_row, again=True).epsilon == pytest.approx(2.0)


def test_persons_named_by_another_column_are_taken_to_be_the_same():
    kept = collect(Kept.new(), ["p1"], [0], terms()).kept
    by_mail = terms(person_column="email")
    with pytest.raises(BudgetExceeded, match="--person-column"):
        collect(kept, ["ann@example.org"], [0], by_mail)
    assert collect(kept, ["ann@example.org"], [0], by_mail, again=True).epsilon == pytest.approx(2.0)


def test_rappor_keeps_the_permanent_response_and_sends_new_reports_of_it():
    rappor = terms(Rappor(0.5, 0.25, 0.75, bits=16, cohorts=4))
    texts = np.array(WARDS)[VALUES]
    first = collect(Kept.new(), PERSONS, texts, rappor, source=SeededSource(1))
    second = collect(first.kept, PERSONS, texts, rappor, source=SeededSource(2))
    (before,), (after,) = first.kept.collections, second.kept.collections
    assert before.responses.tobytes() == after.responses.tobytes()
    assert first.reports.tobytes() != second.reports.tobytes()
    assert np.array_equal(first.reports["cohort"], second.reports["cohort"])
    assert second.epsilon == rappor.mechanism.epsilon


def test_a_person_has_one_value():
    for persons, values in ((["ann", "ann"], [0, 1]), (["ann"], [0, 1])):
        with pytest.raises(InvalidArgument, match="one value each"):
            collect(Kept.new(), persons, values, terms())


def test_progress_counts_every_person_once():
    seen = []
    persons = [str(number) for number in range(STEP + 5)]
    kept = collect(Kept.new(), persons[:3], [0, 1, 2], terms()).kept
    collect(kept, persons, np.zeros(STEP + 5, dtype=int), terms(), progress=seen.append)
    assert seen == [3, STEP, 2]
