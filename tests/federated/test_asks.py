"""The book of asks: never less than a site can have charged, whatever got lost."""

from __future__ import annotations

from itertools import combinations

import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.asks import Ask, AskBook, Heard, count_at_most
from dpfed.plan.by_round import choose_payment, cover_local
from dpfed.plan.measure import Measurement
from dpfed.plan.plan import LocalPlan, Plan

KEY = b"a secret"


@pytest.fixture
def book(tmp_path):
    made = AskBook(tmp_path / "asks.jsonl", KEY)
    made.begin("study-1")
    return made


def reread(tmp_path) -> AskBook:
    return AskBook(tmp_path / "asks.jsonl", KEY)


def test_asks_and_answers_are_there_after_a_crash(book, tmp_path):
    book.ask([Ask("north", 1, 1), Ask("north", 2, 1)])
    book.hear("north", Heard(1, (1,), "4:ab", is_private=False))
    again = reread(tmp_path)
    assert (again.run, again.heard("north"), again.pending("north")) == ("study-1", book.heard("north"), (1,))
    assert again.next_number("north") == 3
    assert again.next_number("south") == 1


def test_a_line_that_a_crash_cut_off_is_dropped_and_the_book_goes_on(book, tmp_path):
    book.ask([Ask("north", 1, 1)])
    path = tmp_path / "asks.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'0123 {"ask": {"nu')
    reread(tmp_path).ask([Ask("north", 2, 2)])
    assert reread(tmp_path).pending("north") == (1, 2)


def test_a_line_that_was_changed_removed_or_sealed_by_another_is_refused(book, tmp_path):
    book.ask([Ask("north", 1, 1), Ask("north", 2, 1)])
    path = tmp_path / "asks.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for changed in (
        ["x" + lines[0][1:], *lines[1:]],
        [lines[0], lines[2]],
        [lines[0], lines[1].replace("north", "south")],
    ):
        path.write_text("".join(changed))
        with pytest.raises(InvalidArgument, match="it was changed, or the study's key is another"):
            reread(tmp_path)
    path.write_text("".join(lines))
    with pytest.raises(InvalidArgument, match="it was changed"):
        AskBook(path, b"another secret")


def test_the_higher_count_stays_when_a_site_says_less(book):
    book.hear("north", Heard(5, (3, 1), "9:ab"))
    book.hear("north", Heard(6, (2, 2), "4:cd"))
    assert book.heard("north") == Heard(6, (3, 2), "4:cd")


def test_a_run_that_did_not_begin_leaves_no_asks(book, tmp_path):
    book.ask([Ask("north", 1, 1)])
    book.drop()
    assert (reread(tmp_path).run, reread(tmp_path).pending("north")) == ("", ())


def test_a_book_is_for_its_owner_alone(book, tmp_path):
    assert (tmp_path / "asks.jsonl").stat().st_mode & 0o077 == 0


def pay(plan: Plan, rounds: tuple[int, ...]) -> dict:
    """Return what a site has paid after being charged for these rounds, as its ledger would."""
    left = dict(plan.local_charges("north"))
    for number in rounds:
        event = choose_payment(cover_local(plan, "north", number), left)
        left[event] -= left[event] > 0
    return {event: most - left[event] for event, most in plan.local_charges("north").items()}


@pytest.mark.parametrize("schedule", [None, (2.0, 1.0, 0.5), (0.5, 1.0, 2.0), (1.0, 0.5, 1.0)])
def test_whichever_asks_were_charged_the_count_is_at_least_as_costly(tmp_path, schedule):
    local = LocalPlan(size=9, batch_size=3, steps=1, clip_norm=1.0, noise_multiplier=2.0)
    plan = Plan("study", rounds=3, local={"north": local}, spare_rounds=1, noise_schedule=schedule)
    asked = (1, 1, 2, 2, 3)
    book = AskBook(tmp_path / "asks.jsonl", KEY)
    book.begin("study-1")
    book.ask([Ask("north", number, round_) for number, round_ in enumerate(asked, start=1)])
    counted = count_at_most(plan, book, "north")
    costliest = list(reversed(_by_noise(plan)))
    for size in range(len(asked) + 1):
        for charged in combinations(asked, size):
            paid = pay(plan, charged)
            for place in range(len(costliest)):  # of the events of least noise together, never fewer
                least = costliest[: place + 1]
                assert sum(counted[event] for event in least) >= sum(paid[event] for event in least)


def _by_noise(plan: Plan) -> list:
    """Return the plan's events from most noise to least."""
    events = list(plan.local_charges("north"))
    return sorted(events, key=lambda event: event.event.noise_multiplier, reverse=True)


def test_no_more_is_counted_than_is_reserved(tmp_path):
    local = LocalPlan(size=9, batch_size=3, steps=1, clip_norm=1.0, noise_multiplier=2.0)
    plan = Plan("study", rounds=2, local={"north": local})
    book = AskBook(tmp_path / "asks.jsonl", KEY)
    book.begin("study-1")
    book.ask([Ask("north", number, 1) for number in range(1, 9)])
    assert sum(count_at_most(plan, book, "north").values()) == 2


def test_an_ask_to_measure_counts_as_a_measurement_and_as_no_round(tmp_path):
    local = LocalPlan(size=9, batch_size=3, steps=1, clip_norm=1.0, noise_multiplier=2.0)
    measurement = Measurement(("accuracy",), epsilon=0.5, rounds=(1, 2), classes=2)
    plan = Plan("study", rounds=2, local={"north": local}, measurement=measurement)
    book = AskBook(tmp_path / "asks.jsonl", KEY)
    book.begin("study-1")
    book.ask([Ask("north", 1, 1), Ask("north", 2, 1, measures=True)])
    assert list(count_at_most(plan, book, "north").values()) == [1, 1]
    book.ask([Ask("north", number, 1, measures=True) for number in range(3, 9)])
    again = AskBook(tmp_path / "asks.jsonl", KEY)
    assert list(count_at_most(plan, again, "north").values()) == [1, 2]  # no more than is reserved
    again.hear("north", Heard(last=8, counts=(1, 1)))
    assert list(count_at_most(plan, again, "north").values()) == [1, 1]
