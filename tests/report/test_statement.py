from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path

import pytest

from dpfed import events as ev
from dpfed.accounting import queries
from dpfed.errors import BudgetExceeded
from dpfed.ledger.ledger import Ledger
from dpfed.report.documents import escape_markdown, render_html, render_markdown
from dpfed.report.statement import Page, collect_facts, describe_promise, make_document, make_page
from pages import Document, rendered_markdown

STEP = ev.Gaussian(noise_multiplier=4.0)
HOSTILE = "[red]<b onclick='x()'>*d_p_o*</b> {{ 7 * 7 }} | `x` \\ ![i](http://a.b/c) https://a.b www.a.b &amp; $x$ 患者"


def as_html(shown: Page) -> str:
    return render_html(make_document(shown))


def as_markdown(shown: Page) -> str:
    return render_markdown(make_document(shown))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "book.db")
    ledger.open("icu", epsilon=8.0, delta=1e-5, owner="dpo", purpose="study 12", labels={"basis": "consent"})
    return ledger


def used(ledger: Ledger) -> Ledger:
    """The ledger after every kind of entry."""
    run = ledger.reserve({"icu": {STEP: 10}}, run="study-12")
    run.commit({"icu": {STEP: 7}})
    with pytest.raises(BudgetExceeded):
        ledger.reserve({"icu": {STEP: 1000}}, run="greedy")
    run.release(reason="stopped early")
    ledger.record({"icu": {STEP: 1}}, reason="found in a notebook")
    ledger.top_up("icu", epsilon=2.0, reason="ethics vote")
    ledger.freeze("icu", reason="audit")
    ledger.unfreeze("icu", reason="audit over")
    ledger.open("all", epsilon=9.0, delta=1e-5, source="icu", overlaps=["icu"])
    return ledger


def all_of(shown: Page) -> list[str]:
    """Every text of a page."""
    pairs = [part for pair in (*shown.terms, *shown.balance, *shown.notes) for part in pair]
    cells = [cell for entry in shown.entries for cell in vars(entry).values() if cell != entry.tone]
    return [text for text in (shown.title, shown.at, shown.alarm, shown.head, *shown.closing, *pairs, *cells) if text]


def test_html_and_markdown_say_everything_on_the_page(ledger):
    shown = make_page(used(ledger).statement("icu"))
    for document in (Document(as_html(shown)), rendered_markdown(as_markdown(shown))):
        missing = [text for text in all_of(shown) if " ".join(text.split()) not in document.text]
        assert not missing


def test_every_kind_of_entry_has_its_line(ledger):
    shown = make_page(used(ledger).statement("icu"))
    kinds = [entry.kind for entry in shown.entries]
    assert kinds == [
        "opened",
        "reserved",
        "committed",
        "REFUSED",
        "released",
        "AFTER THE FACT",
        "topped up",
        "frozen",
        "unfrozen",
    ]
    assert [entry.tone for entry in shown.entries if entry.tone] == ["charge", "refused", "late"]
    details = " ".join(entry.detail for entry in shown.entries)
    for text in ("run study-12", "run greedy", "stopped early", "found in a notebook", "ethics vote", "audit over"):
        assert text in details
    assert make_page(ledger.statement("all")).entries[1].kind == "brought forward"


def test_the_running_balance_ends_in_the_closing_one(ledger):
    statement = used(ledger).statement("icu")
    shown, balance = make_page(statement), statement.balance
    last = shown.entries[-1]
    assert (last.spent, last.reserved, last.remaining) == shown.closing
    assert (statement.lines[-1].spent, statement.lines[-1].remaining) == (balance.spent, balance.remaining)
    for entry, cap in zip(shown.entries, [8] * 6 + [10] * 3, strict=True):
        assert Decimal(entry.spent) + Decimal(entry.reserved) + Decimal(entry.remaining) == cap


def test_the_header_has_what_a_promise_needs(ledger):
    terms = dict(make_page(used(ledger).statement("icu")).terms)
    assert terms["Owner"] == "dpo"
    assert terms["Protected"] == "one record, add-remove"
    assert terms["Cap"] == "ε = 10 (opened with 8, then topped up) at δ = 1e-05"
    assert terms["Source"] == "icu (declared)"
    assert terms["Label basis"] == "consent"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d to \d{4}-\d\d-\d\d", terms["Period"])
    assert "Rényi order" in terms["Counted"]


def test_a_fingerprint_is_never_shown(ledger, tmp_path):
    ledger.open("data", epsilon=1.0, delta=1e-5, source=b"the patients")
    shown = make_page(ledger.statement("data"))
    assert dict(shown.terms)["Source"] == "data with keyed fingerprint no. 1"
    assert not re.search(r"[0-9a-f]{64}", "".join(text for text in all_of(shown) if text != shown.head))


def test_an_account_that_does_not_see_its_whole_source_names_the_one_that_does(ledger):
    used(ledger)
    assert (
        "The whole of this source is seen by account all"
        in dict(make_page(ledger.statement("icu")).notes)["The source"]
    )
    assert (
        dict(make_page(ledger.statement("all")).notes)["The source"] == "This account sees every charge on its source."
    )


def test_the_exact_epsilon_is_that_of_all_charges_and_said_to_be_ex_post(ledger):
    used(ledger)
    statement = ledger.statement("icu")
    exact = queries.epsilon(ev.Repeated(STEP, 8), 1e-5)
    assert statement.exact == pytest.approx(exact, rel=1e-9)
    shown = make_page(statement)
    figure = dict(shown.balance)["Exact ε ex post"].split()[0]
    assert statement.exact <= float(figure) <= statement.exact * 1.0001
    assert "no promise" in dict(shown.notes)["Exact ε ex post"]


def test_the_promise_of_a_filter_is_its_cap(ledger):
    balance = used(ledger).balance("icu")
    assert "ε = 10 at δ = 1e-05 for one record, add-remove" in describe_promise(balance)
    assert balance.cap.sentence() in describe_promise(balance)


def exact_plan(ledger: Ledger) -> int:
    """Charge an account with a plan that only its exact ε admits; how many were reserved."""
    step = ev.Gaussian(noise_multiplier=30.0)
    ledger.open("lab", epsilon=1.0, delta=1e-6)
    count = ledger.forecast("lab", step) + 1
    assert queries.epsilon(ev.Repeated(step, count), 1e-6) <= 1.0
    ledger.reserve({"lab": {step: count}}, run="plan").commit({"lab": {step: 2}})
    return count


def test_a_plan_admitted_by_its_exact_epsilon_is_shown_in_that_currency(ledger):
    count = exact_plan(ledger)
    plan = queries.epsilon(ev.Repeated(ev.Gaussian(30.0), count), 1e-6)
    statement = ledger.statement("lab")
    assert statement.balance.mode == "exact"
    for line in statement.lines[1:]:
        assert line.spent + line.reserved == pytest.approx(plan)
        assert line.remaining == 0.0
    assert statement.lines[-1].spent == statement.balance.spent == pytest.approx(statement.exact)
    assert "also if it is stopped early" in describe_promise(statement.balance)
    assert "nothing more can be charged" in dict(make_page(statement).terms)["Status"]


def test_an_exact_plan_that_was_stopped_early_still_promises_the_whole_plan(ledger):
    exact_plan(ledger)
    before = ledger.balance("lab")
    ledger.resume("plan").release(reason="enough")
    after = ledger.statement("lab")
    assert after.balance.spent == before.spent + before.reserved == after.lines[-1].spent
    assert after.exact < after.balance.spent


def test_an_overspent_account_promises_nothing(ledger):
    ledger.record({"icu": {ev.Gaussian(0.5): 1}}, reason="late")
    shown = make_page(ledger.statement("icu"))
    assert "OVERSPENT" in shown.alarm
    assert "does not hold" in dict(shown.notes)["What is promised"]
    assert 'class="alarm"' in as_html(shown)
    assert f"**{escape_markdown(shown.alarm)}**" in as_markdown(shown)
    ledger.open("calm", epsilon=1.0, delta=1e-5)
    assert make_page(ledger.statement("calm")).alarm == ""


def test_a_release_without_protection_is_infinite_and_nothing_remains(ledger):
    ledger.record({"icu": ev.Unprotected()}, reason="leak")
    shown = make_page(ledger.statement("icu"))
    assert shown.closing == ("∞", "0.0000", "0.0000")
    assert "∞" in Document(as_html(shown)).text


def test_html_needs_nothing_else_and_runs_nothing(ledger):
    document = Document(as_html(make_page(used(ledger).statement("icu"))))
    assert not set(document.tags) & {"script", "link", "img", "iframe", "object", "form", "a"}
    assert not {name for name, _ in document.attributes if name.startswith("on") or name in ("src", "href")}
    text = as_html(make_page(ledger.statement("icu")))
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_hostile_texts_are_shown_literally(tmp_path):
    ledger = Ledger(tmp_path / "book.db")
    ledger.open("icu", epsilon=8.0, delta=1e-5, owner=HOSTILE, purpose=HOSTILE, labels={"note": HOSTILE})
    ledger.freeze("icu", reason=HOSTILE)
    shown = make_page(ledger.statement("icu"))
    plain = " ".join(HOSTILE.split())
    for document in (Document(as_html(shown)), rendered_markdown(as_markdown(shown))):
        assert document.text.count(plain) == 4
        assert not set(document.tags) & {"a", "img", "script", "em", "del"}
        assert not {name for name, _ in document.attributes if name.startswith("on")}
    assert collect_facts(ledger.statement("icu"))["terms"]["owner"] == HOSTILE


def test_facts_are_json_with_every_number_unrounded(ledger):
    statement = used(ledger).statement("icu")
    found = json.loads(json.dumps(collect_facts(statement)))
    assert (found["spent"], found["remaining"]) == (statement.balance.spent, statement.balance.remaining)
    assert found["exact_epsilon_ex_post"] == statement.exact
    assert [line["kind"] for line in found["lines"]] == [line.kind for line in statement.lines]
    assert [line["after_the_fact"] for line in found["lines"]].count(True) == 1
    assert ev.from_dict(found["lines"][1]["event"]) == STEP
    assert found["head"] == str(ledger.head())
    assert found["seen_whole_by"] == ["all"]
