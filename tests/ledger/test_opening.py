"""Opening accounts: terms, sources, fingerprints and what was released before."""

from __future__ import annotations

import hashlib
import io
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pytest

import dpfed
from dpfed import events as ev
from dpfed.accounting.filter import RenyiFilter
from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InfeasibleTarget, InvalidArgument, UnknownAccount
from dpfed.ledger.opening import fingerprint
from worlds import rows_of

STEP = ev.Gaussian(8.0)
PROMISE = {"epsilon": 8.0, "delta": 1e-5}


@pytest.fixture
def ledger(sqlite_url):
    with dpfed.Ledger(sqlite_url) as opened:
        yield opened


def exported(ledger):
    stream = io.StringIO()
    ledger.export(stream)
    return stream.getvalue()


def test_an_account_remembers_its_terms(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("h", epsilon=9.0, delta=1e-6, unit="person", adjacency="replace_one")
        terms = {"owner": "dpo", "purpose": "étude 12", "source": "patients", "labels": {"basis": "consent ε"}}
        ledger.open("icu", **PROMISE, **terms, unit="person", adjacency="replace_one", parent="h", orders=[3.0, 9.0],
                    expires=date(2999, 1, 1))  # fmt: skip
    with dpfed.Ledger(url) as ledger:
        found = ledger.balance("icu").account
        assert (found.owner, found.purpose, found.source) == ("dpo", "étude 12", "declared:patients")
        assert (found.unit, found.adjacency, found.parent) == ("person", "replace_one", "h")
        assert (found.orders, found.labels) == ((3.0, 9.0), {"basis": "consent ε"})
        assert found.expires.startswith("2999-01-01T23:59:59")
        assert "icu" in ledger
        assert "nope" not in ledger


def test_the_default_order_is_declared_when_the_account_is_opened(ledger):
    ledger.open("icu", **PROMISE)
    assert ledger.balance("icu").account.orders == RenyiFilter(8.0, 1e-5).orders


def test_a_name_is_taken_once(ledger):
    ledger.open("icu", **PROMISE)
    with pytest.raises(InvalidArgument, match="another name"):
        ledger.open("icu", **PROMISE)


HOSTILE = {
    "epsilon": [0, -1.0, float("nan"), float("inf"), "8", None, True, 1j, [8.0]],
    "delta": [0, 1, -1e-5, float("nan"), 2.0, "1e-5", None, True],
    "unit": ["", "hospital", None, 5],
    "adjacency": ["", "substitute", None, 5],
    "owner": [None, 5, "a\0", "\ud800", "x" * 10_000_000, "two\nlines"],
    "purpose": [None, 5, "a\0", "\ud800", "x" * 10_000_000, "two\nlines", "\u202e"],
    "source": ["", "a b", "\0", 5, 1.5, ["x"], {"a": 1}, np.array([object()]), Path("no/such/file"), Path("a\0b")],
    "parent": ["", "x y", 5, b"a", "\0"],
    "overlaps": [5, None, {"a": 1}, [5], ["a b"], ["\ud800"], b"ab"],
    "labels": [5, [], "", {"a": 5}, {5: "a"}, {"a": "\0"}, {"a b": "c"}, {f"l{n}": "" for n in range(51)}],
    "orders": [5, "4", b"\x05", [], [1.0], [0.5], [2.0, 2.0], [float("nan")], [float("inf")], [True], ["4"], [None]],
    "expires": ["2030-01-01", 5, datetime(2030, 1, 1), True, float("inf")],
    "opening": [5, [], "", [STEP], {STEP: 0}, {STEP: -1}, {STEP: 1.5}, {STEP: True}, {STEP: 2**62}],
}
OTHER_NAMES = {"opening": {"opening", "charges", "count"}}


@pytest.mark.parametrize("argument", HOSTILE)
def test_a_hostile_argument_is_refused_by_name_and_nothing_is_written(ledger, argument):
    for value in HOSTILE[argument]:
        with pytest.raises(InvalidArgument) as refusal:
            ledger.open("icu", **{**PROMISE, argument: value})
        assert refusal.value.argument in OTHER_NAMES.get(argument, {argument}), value
        assert len(str(refusal.value)) < 500
    assert ledger.head().sequence == 0


@pytest.mark.parametrize("name", ["", "i cu", "icu\0", "\ud800", "ісu", None, 5, "x" * 10_000_000, "a'--"])
def test_a_hostile_name_opens_nothing(ledger, name):
    with pytest.raises(InvalidArgument) as refusal:
        ledger.open(name, **PROMISE)
    assert refusal.value.argument == "account"
    assert ledger.head().sequence == 0


def test_orders_that_leave_no_room_are_refused_with_a_remedy(ledger):
    with pytest.raises(InfeasibleTarget, match="declare order"):
        ledger.open("icu", epsilon=0.1, delta=1e-5, orders=[1.5])
    assert ledger.head().sequence == 0


@pytest.mark.parametrize("relation", [{"parent": "x"}, {"overlaps": ["x"]}, {"parent": "icu"}, {"overlaps": "icu"}])
def test_unknown_relatives_open_nothing(ledger, relation):
    with pytest.raises(UnknownAccount):
        ledger.open("icu", **PROMISE, **relation)
    assert ledger.head().sequence == 0


def test_a_second_account_on_one_source_needs_overlaps(ledger):
    ledger.open("icu", **PROMISE, source="patients")
    with pytest.raises(InvalidArgument, match="overlaps="):
        ledger.open("icu-2", **PROMISE, source="patients")
    ledger.open("icu-2", **PROMISE, source="patients", overlaps=["icu"])


def test_an_account_is_by_default_its_own_source(ledger):
    ledger.open("icu", **PROMISE)
    with pytest.raises(InvalidArgument, match="already"):
        ledger.open("other", **PROMISE, source="icu")


def test_equal_data_is_one_source_however_it_is_given(ledger, tmp_path):
    data = np.arange(12, dtype=np.float64).reshape(3, 4)
    path = tmp_path / "data.bin"
    path.write_bytes(b"patients" * 300_000)
    ledger.open("array", **PROMISE, source=data)
    ledger.open("bytes", **PROMISE, source=b"patients" * 300_000)
    same = [np.asfortranarray(data), data.copy(), path, bytearray(path.read_bytes()), memoryview(path.read_bytes())]
    for number, source in enumerate(same):
        with pytest.raises(InvalidArgument, match="already"):
            ledger.open(f"again-{number}", **PROMISE, source=source)
    other = [data.T, data.astype(np.float32), data + 1, data.reshape(4, 3), data.tobytes(), b"patient"]
    for number, source in enumerate(other):
        ledger.open(f"other-{number}", **PROMISE, source=source)


def test_every_second_byte_of_a_view_is_other_data(ledger):
    ledger.open("a", **PROMISE, source=b"ace")
    with pytest.raises(InvalidArgument, match="already"):
        ledger.open("b", **PROMISE, source=memoryview(b"abcde")[::2])


def test_a_fingerprint_needs_the_key():
    assert fingerprint(b"k" * 32, b"data") == fingerprint(b"k" * 32, b"data")
    assert fingerprint(b"k" * 32, b"data") != fingerprint(b"l" * 32, b"data")
    assert fingerprint(b"k" * 32, b"data") != hashlib.sha256(b"data").hexdigest()


def stored(url, column, table):
    import sqlalchemy as sa

    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as link:
        return link.execute(sa.select(sa.column(column)).select_from(sa.table(table))).scalars().all()


def test_two_ledgers_have_different_keys_and_fingerprints(new_sqlite_url):
    urls = [new_sqlite_url(), new_sqlite_url()]
    for url in urls:
        with dpfed.Ledger(url) as ledger:
            ledger.open("icu", **PROMISE, source=b"patients")
    marks = [stored(url, "fingerprint", "sources")[0] for url in urls]
    keys = [stored(url, "key", "secret")[0] for url in urls]
    assert marks[0] != marks[1]
    assert keys[0] != keys[1]
    assert len(bytes.fromhex(keys[0])) == 32


def test_neither_fingerprint_nor_key_is_ever_shown(url):
    with dpfed.Ledger(url) as ledger:
        account = ledger.open("icu", **PROMISE, source=b"patients", opening={STEP: 1})
        shown = [exported(ledger), repr(ledger.statement("icu")), repr(ledger.accounts()), repr(account), repr(ledger)]
        with pytest.raises(InvalidArgument) as refusal:
            ledger.open("icu-2", **PROMISE, source=b"patients")
    (mark,), (key,) = stored(url, "fingerprint", "sources"), stored(url, "key", "secret")
    for text in [*shown, str(refusal.value)]:
        assert mark not in text
        assert key not in text
        assert hashlib.sha256(b"patients").hexdigest() not in text


def test_a_refused_account_leaves_no_fingerprint(sqlite_url):
    with dpfed.Ledger(sqlite_url) as ledger, pytest.raises(BudgetExceeded):
        ledger.open("icu", **PROMISE, source=b"patients", opening={ev.Gaussian(0.1): 1})
    assert stored(sqlite_url, "name", "sources") == []
    assert rows_of(sqlite_url) == []


def test_an_opening_balance_is_spent_and_reaches_the_parent(ledger):
    ledger.open("h", **PROMISE)
    ledger.open("icu", **PROMISE, parent="h", opening={STEP: 3})
    budget = RenyiFilter(8.0, 1e-5)
    budget.charge(STEP, 3)
    for name in ("icu", "h"):
        assert ledger.forecast(name, STEP) == budget.affordable(STEP)
        assert ledger.balance(name).spent > 0
    assert ledger.balance("h").entries == 2


def test_an_opening_beyond_the_cap_opens_nothing(ledger):
    ledger.open("h", epsilon=1.0, delta=1e-5)
    for cap in (1.0, 100.0):  # too much for itself; too much for its parent
        with pytest.raises(BudgetExceeded, match="larger epsilon"):
            ledger.open("icu", epsilon=cap, delta=1e-5, parent="h", opening={STEP: 20})
    assert ledger.head().sequence == 1
    assert ledger.balance("h").spent == 0


def test_an_opening_stated_for_the_other_adjacency_opens_nothing(ledger):
    with pytest.raises(AdjacencyMismatch):
        ledger.open("icu", **PROMISE, opening={ev.RandomizedResponse(1.0): 1})
    assert ledger.head().sequence == 0


def test_an_account_with_an_opening_is_not_fresh(ledger):
    ledger.open("icu", **PROMISE, opening={ev.Gaussian(200.0): 1})
    most = ledger.forecast("icu", STEP)
    with pytest.raises(BudgetExceeded):
        ledger.reserve({"icu": {STEP: most + 1}}, run="r", fixed_plan=True)


def test_overlaps_carry_what_was_charged_and_what_is_still_reserved(ledger):
    ledger.open("a", **PROMISE, opening={STEP: 1})
    ledger.record({"a": {STEP: 2}}, reason="found")
    held = ledger.reserve({"a": {STEP: 10}}, run="r")
    held.commit({"a": {STEP: 4}})
    gone = ledger.reserve({"a": {STEP: 5}}, run="gone")
    gone.commit({"a": STEP})
    gone.release()
    ledger.open("b", epsilon=9.0, delta=1e-5, overlaps=["a"])
    budget = RenyiFilter(9.0, 1e-5)
    budget.charge(STEP, 1 + 2 + 10 + 1)
    assert ledger.forecast("b", STEP) == budget.affordable(STEP)
    held.commit({"a": {STEP: 6}})
    assert ledger.forecast("b", STEP) == budget.affordable(STEP)


def test_overlaps_too_expensive_for_the_new_account_open_nothing(ledger):
    ledger.open("a", **PROMISE)
    ledger.reserve({"a": {STEP: 40}}, run="r")
    head = ledger.head()
    with pytest.raises(BudgetExceeded):
        ledger.open("b", epsilon=1.0, delta=1e-5, overlaps=["a"])
    assert ledger.head() == head


def test_charges_are_carried_also_from_accounts_that_all_reach_each_other(ledger):
    ledger.open("a", **PROMISE)
    ledger.open("p", **PROMISE, parent="a")
    ledger.open("b", **PROMISE, overlaps=["a"], parent="p")
    ledger.record({"b": {STEP: 5}}, reason="found")
    ledger.open("d", **PROMISE, overlaps=["a", "p", "b"])
    assert ledger.balance("d").spent == pytest.approx(ledger.balance("a").spent)
    assert ledger.balance("d").spent > 0


def test_an_expired_account_may_be_opened_and_takes_nothing(ledger):
    ledger.open("icu", **PROMISE, expires=datetime(2020, 1, 1, tzinfo=UTC))
    assert ledger.balance("icu").status == "expired"


def test_overlaps_may_be_one_name(ledger):
    ledger.open("a", **PROMISE)
    ledger.open("b", **PROMISE, overlaps="a")
    assert ledger.balance("b").account.overlaps == ("a",)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1e-20, 1e-300), (1e-300, 1e-300), (5e-324, 5e-324), (1e300, 1e-5), (1.7e308, 0.5)]
)
def test_a_promise_too_small_or_too_large_to_be_counted_opens_nothing(ledger, epsilon, delta):
    with pytest.raises(InvalidArgument) as refusal:
        ledger.open("icu", epsilon=epsilon, delta=delta)
    assert refusal.value.argument == "epsilon"
    assert ledger.head().sequence == 0
    assert ledger.accounts() == ()


@pytest.mark.parametrize(
    ("epsilon", "delta", "orders"),
    [
        (1e-10, 1e-300, None),
        (1e300, 1e-5, [2.0]),
        (1.7e308, 0.9, [2.0, 1e300]),
        (8.0, 1e-5, [1e300]),
        (8.0, 5e-324, None),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_extreme_promise_can_be_kept_and_shown(ledger, epsilon, delta, orders):
    ledger.open("icu", epsilon=epsilon, delta=delta, orders=orders)
    fitting = ledger.forecast("icu", STEP)
    if fitting < 2**40:
        with pytest.raises(BudgetExceeded):
            ledger.reserve({"icu": {STEP: fitting + 1}}, run="r", fixed_plan=False)
    ledger.record({"icu": ev.Unprotected()}, reason="a leak")
    assert ledger.forecast("icu", STEP) == 0
    assert ledger.statement("icu").balance.is_overspent
    ledger.verify()


@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("is_committed", [False, True])
def test_an_account_for_records_does_not_start_at_zero_where_whole_clients_were_charged(
    ledger, unit, adjacency, is_committed
):
    """Outside of a federation too: what hid a client's whole update was spent of each record's budget as well."""
    ledger.open("whole", epsilon=50.0, delta=1e-5, unit="client", adjacency="replace_one", source="patients")
    promise = {"epsilon": 50.0, "delta": 1e-5, "unit": unit, "source": "patients"}
    reservation = ledger.reserve({"whole": {STEP: 1}}, run="r", fixed_plan=False)
    if is_committed:
        reservation.commit({"whole": {STEP: 1}})
    with pytest.raises(InvalidArgument, match=r"would lack: open one for replace_one with overlaps=\['whole'\]"):
        ledger.open("records", **promise, adjacency=adjacency)
    assert "records" not in ledger
    ledger.open("records", **promise, adjacency="replace_one", overlaps=["whole"])
    assert ledger.balance("records").share == pytest.approx(ledger.balance("whole").share)
    ledger.verify()


def test_an_account_for_records_may_be_opened_beside_one_of_clients_that_paid_nothing(ledger):
    ledger.open("whole", epsilon=50.0, delta=1e-5, unit="client", adjacency="replace_one", source="patients")
    ledger.open("records", epsilon=50.0, delta=1e-5, source="patients")
