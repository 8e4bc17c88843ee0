from __future__ import annotations

from dpfed import events as ev
from dpfed.ledger.items import Item, add_up, dump_event
from dpfed.ledger.rows import GENESIS, Draft
from icu import PROMISE, STEP

OTHER = ev.Gaussian(20.0)


def items_of(ledger, run):
    with ledger._store.reading() as link:
        from dpfed.ledger.holding import read_items

        return read_items(link, run)


def test_an_item_is_read_back_from_its_entry():
    draft = Draft(
        "reserved",
        "ward",
        "study-12",
        origin="icu",
        event=dump_event(STEP),
        times=10,
        left=10,
        cost='["5", "7"]',
        body='{"extended":true}',
    )
    item = Item.of(draft.row(7, "2026-01-01T00:00:00.000000Z", GENESIS))
    assert (item.number, item.account, item.origin, item.event, item.count) == (7, "ward", "icu", STEP, 10)
    assert (item.cost, item.is_extension) == ((5, 7), True)


def test_a_reservation_is_an_item_for_each_event_on_each_account_that_it_reaches(ledger):
    ledger.open("ward", **PROMISE, parent="icu")
    held = ledger.reserve({"ward": {STEP: 3, OTHER: 2}}, run="r")
    held.extend({"ward": {STEP: 4}})
    items = items_of(ledger, "r")
    assert [(each.account, each.event, each.count, each.is_extension) for each in items] == [
        ("ward", STEP, 3, False),
        ("ward", OTHER, 2, False),
        ("icu", STEP, 3, False),
        ("icu", OTHER, 2, False),
        ("ward", STEP, 4, True),
        ("icu", STEP, 4, True),
    ]
    assert {each.origin for each in items} == {"ward"}
    assert add_up(each for each in items if each.account == "icu") == {STEP: 7, OTHER: 2}


def test_what_is_released_is_all_that_is_left_of_each_item(ledger):
    held = ledger.reserve({"icu": {STEP: 3, OTHER: 2}}, run="r")
    held.commit({"icu": STEP})
    spent = ledger.balance("icu").spent
    held.release()
    released = {line.event: line.count for line in ledger.statement("icu").lines if line.kind == "released"}
    assert released == {STEP: 2, OTHER: 2}
    assert (ledger.balance("icu").reserved, ledger.balance("icu").spent) == (0.0, spent)
