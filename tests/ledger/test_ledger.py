"""The verbs of the ledger that are no reservation, and what it never gives away."""

from __future__ import annotations

import io
import json
from dataclasses import asdict

import pytest
from click.testing import CliRunner

import dpfed
from dpfed import events as ev
from dpfed.accounting.filter import RenyiFilter
from dpfed.cli.main import main
from dpfed.errors import BudgetExceeded, InvalidArgument, LedgerRolledBack, UnknownAccount, UnknownEvent, UnknownRun
from dpfed.guarantee import Guarantee
from dpfed.ledger.opening import fingerprint
from dpfed.ledger.rows import GENESIS, Head
from icu import MOST, PROMISE, STEP
from worlds import rows_of


def test_many_accounts_are_opened_as_if_one_by_one(new_url):
    promises = {"a": Guarantee(8.0, 1e-5), "b": Guarantee(2.0, 1e-6, "client", "replace_one")}
    with dpfed.Ledger(new_url()) as together, dpfed.Ledger(new_url()) as single:
        together.open_all(promises, purpose="study")
        for name, promise in promises.items():
            single.open(name, **asdict(promise), purpose="study")
        assert [balance.account for balance in together.accounts()] == [each.account for each in single.accounts()]
        assert [terms.unit for terms in together.terms(["b", "a"]).values()] == ["client", "record"]
        together.reserve({"a": STEP}, run="study").commit({"a": STEP})
        assert together.verify().rows == 5


def test_of_many_accounts_all_are_opened_or_none(ledger):
    head = ledger.head()
    for names in (["new", "icu"], ["new", "not a name"]):
        with pytest.raises(InvalidArgument):
            ledger.open_all(dict.fromkeys(names, Guarantee(**PROMISE)))
    assert ledger.head() == head
    with pytest.raises(UnknownAccount):
        ledger.terms(["icu", "new"])


def test_a_forecast_is_what_a_reservation_gets(ledger):
    ledger.open("small", epsilon=1.0, delta=1e-5)
    ledger.open("child", epsilon=50.0, delta=1e-5, parent="small")
    ledger.open("later", epsilon=2.0, delta=1e-5, overlaps=["icu"])
    for name in ("icu", "child", "later"):
        count = ledger.forecast(name, STEP)
        with pytest.raises(BudgetExceeded):
            ledger.reserve({name: {STEP: count + 1}}, run=f"{name}-more", fixed_plan=False)
        ledger.reserve({name: {STEP: count}}, run=name, fixed_plan=False)
        assert ledger.forecast(name, STEP) == 0
        ledger.release(name, reason="next")


def test_a_frozen_account_cannot_be_frozen_again(ledger):
    with pytest.raises(InvalidArgument):
        ledger.unfreeze("icu", reason="x")
    ledger.freeze("icu", reason="x")
    head = ledger.head()
    with pytest.raises(InvalidArgument):
        ledger.freeze("icu", reason="x")
    assert ledger.head() == head


@pytest.mark.parametrize("epsilon", [0, -1.0, float("nan"), float("inf"), "2", None, True, 1e-300])
def test_a_top_up_that_is_no_more_is_refused(ledger, epsilon):
    head = ledger.head()
    with pytest.raises(InvalidArgument) as refusal:
        ledger.top_up("icu", epsilon=epsilon, reason="x")
    assert refusal.value.argument == "epsilon"
    assert ledger.head() == head


def test_a_cap_stays_finite(ledger):
    ledger.open("huge", epsilon=1.7e308, delta=1e-5, orders=[2.0])
    with pytest.raises(InvalidArgument) as refusal:
        ledger.top_up("huge", epsilon=1.7e308, reason="x")
    assert refusal.value.argument == "epsilon"
    assert ledger.balance("huge").cap.epsilon == 1.7e308
    ledger.top_up("icu", epsilon=1.7e308, reason="x")
    assert ledger.forecast("icu", STEP) == 2**40
    assert len(ledger.accounts()) == 2


def test_a_top_up_makes_room_for_as_much_as_its_new_cap_says(ledger):
    ledger.top_up("icu", epsilon=4.0, reason="second year")
    assert ledger.forecast("icu", STEP) == RenyiFilter(12.0, 1e-5, RenyiFilter(8.0, 1e-5).orders).affordable(STEP)


@pytest.mark.parametrize("account", ["nobody", "", "\0", None, 5, "i cu", ["icu"], "\ud800", "x" * 10_000_000])
def test_no_verb_knows_an_account_that_is_none(ledger, account):
    head = ledger.head()
    verbs = [
        ledger.balance,
        ledger.statement,
        ledger.account,
        lambda name: ledger.forecast(name, STEP),
        lambda name: ledger.freeze(name, reason="x"),
        lambda name: ledger.unfreeze(name, reason="x"),
        lambda name: ledger.top_up(name, epsilon=1.0, reason="x"),
    ]
    for verb in verbs:
        with pytest.raises(UnknownAccount if account == "nobody" else InvalidArgument):
            verb(account)
    assert ledger.head() == head


@pytest.mark.parametrize("event", ["x", None, 5, ev.Gaussian, ev.Event()])
def test_a_forecast_needs_an_event(ledger, event):
    with pytest.raises(UnknownEvent):
        ledger.forecast("icu", event)


def test_the_head_moves_with_every_entry_and_is_required_of_the_ledger(url):
    with dpfed.Ledger(url) as ledger:
        assert ledger.head() == Head(0, GENESIS)
        heads = [ledger.head()]
        ledger.open("icu", **PROMISE)
        heads.append(ledger.head())
        ledger.record({"icu": STEP}, reason="x")
        heads.append(ledger.head())
        assert [head.sequence for head in heads] == [0, 1, 2]
        for head in heads:
            ledger.require(head)
            ledger.require(str(head))
        assert ledger.head().digest == rows_of(url)[-1]["hash"]
        for wrong in (Head(2, "0" * 64), Head(3, heads[2].digest), Head(0, heads[1].digest)):
            with pytest.raises(LedgerRolledBack) as found:
                ledger.require(wrong)
            assert found.value.row == wrong.sequence


@pytest.mark.parametrize("head", [None, 5, "", "1", "x:y", b"1:2", ["1"]])
def test_what_is_no_head_cannot_be_required(ledger, head):
    with pytest.raises(InvalidArgument) as refusal:
        ledger.require(head)
    assert refusal.value.argument == "head"


def test_an_export_has_every_entry_and_no_secret(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", **PROMISE, source=b"patients", purpose="étude ε")
        ledger.record({"icu": STEP}, reason="x")
        stream = io.StringIO()
        ledger.export(stream)
        with ledger._store.reading() as link:
            import sqlalchemy as sa

            key = link.execute(sa.text("SELECT key FROM secret")).scalar_one()
    text = stream.getvalue()
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines == rows_of(url)
    assert "étude ε" in text
    assert "fingerprint:1" in text
    assert key not in text
    assert fingerprint(bytes.fromhex(key), b"patients") not in text


@pytest.mark.parametrize("arguments", [["statement", "icu"], ["show"], ["export"], ["statement", "icu", "--json"]])
def test_the_command_line_never_shows_a_fingerprint(sqlite_url, arguments):
    with dpfed.Ledger(sqlite_url) as ledger:
        ledger.open("icu", **PROMISE, source=b"patients")
        with ledger._store.reading() as link:
            import sqlalchemy as sa

            key = link.execute(sa.text("SELECT key FROM secret")).scalar_one()
    shown = CliRunner().invoke(main, ["ledger", *arguments, "--ledger", sqlite_url])
    assert shown.exit_code == 0, shown.output
    assert "icu" in shown.output
    assert key not in shown.output
    assert fingerprint(bytes.fromhex(key), b"patients") not in shown.output


def test_an_account_is_what_a_loop_is_charged_to(ledger):
    account = ledger.account("icu")
    assert (account.name, account.unit, account.adjacency) == ("icu", "record", "add_remove")
    assert account.affordable(STEP) == MOST
    held = account.reserve({STEP: 10}, run="r")
    held.commit(STEP, count=3)
    again = account.reserve({STEP: 10}, run="r")
    assert again.left(STEP) == 7
    with pytest.raises(InvalidArgument, match="another plan"):
        account.reserve({STEP: 11}, run="r")
    account.record(STEP, 2, run="r", reason="x")
    assert account.affordable(STEP) == MOST - 12


def test_a_ledger_shows_where_it_is_and_closes_with_its_block(sqlite_url):
    with dpfed.Ledger(sqlite_url) as ledger:
        assert repr(ledger) == f"<Ledger at {sqlite_url}>"
        assert "icu" not in ledger
        ledger.open("icu", **PROMISE)
        assert "icu" in ledger


def test_the_key_that_seals_a_run_is_that_of_its_first_reservation_alone(ledger):
    held = ledger.reserve({"icu": {STEP: 3}}, run="r")
    key = ledger.seal_key("r")
    held.mark("icu", {"icu": STEP})
    assert ledger.resume("r").run == "r"
    assert ledger.seal_key("r") == key != str(ledger.head()).partition(":")[2].encode()
    ledger.reserve({"icu": STEP}, run="other")
    assert ledger.seal_key("other") != key
    with pytest.raises(UnknownRun, match="nothing"):
        ledger.seal_key("nothing")
