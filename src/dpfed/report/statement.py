"""The statement of an account: what a data owner reads in a terminal, and keeps as Markdown, HTML or JSON.

All but the JSON show one `Page`, so they cannot disagree.

>>> from dpfed.ledger.rules import Terms
>>> from dpfed.ledger.views import Balance
>>> cap = Guarantee(1.0, 1e-5)
>>> icu = Balance(Terms("icu", 1.0, 1e-5), cap, 0.4, 0.1, 0.5, 0.2, entries=3, status="open", mode="filter")
>>> print(describe_promise(icu))
Everything charged to this account, however its runs were chosen, is together within ε = 1 at δ = 1e-05 for one \
record, add-remove. Whoever sees everything released ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpfed.guarantee import Guarantee
from dpfed.report.documents import Alarm, Cell, Document, DocumentTable, Gauge, Pairs, Section
from dpfed.report.figures import digits_for, format_balance, format_percent, format_time, replace_controls
from dpfed.rounding import decimal_up

if TYPE_CHECKING:
    from dpfed.ledger.rules import Terms
    from dpfed.ledger.views import Balance, Line, Statement

WORDS = {
    "carried": "brought forward",
    "recorded": "AFTER THE FACT",
    "refused": "REFUSED",
    "topped_up": "topped up",
}
TONES = {"refused": "refused", "recorded": "late", "committed": "charge", "carried": "charge"}
NOT_COVERED = (
    "What was released without a commit here, under another ledger, or without noise; a source that was declared is "
    "taken at its word. Whoever can write the ledger's database could compute the whole chain anew: keep the head "
    "below where they cannot write, and verify against it."
)


@dataclass(frozen=True)
class Entry:
    """One line of a statement, with the balance after it; ``tone`` is charge, late, refused or empty."""

    number: str
    at: str
    kind: str
    what: str
    detail: str
    spent: str
    reserved: str
    remaining: str
    tone: str


@dataclass(frozen=True)
class Page:
    """A statement in words and rounded numbers. ``alarm`` is empty unless the account is overspent."""

    title: str
    at: str
    alarm: str
    terms: Pairs
    entries: tuple[Entry, ...]
    closing: tuple[str, str, str]
    balance: Pairs
    notes: Pairs
    share: float
    head: str


def make_page(statement: Statement) -> Page:
    """Return the statement in words; texts of users are kept as they are, without control characters."""
    balance = statement.balance
    digits = digits_for(balance.cap.epsilon)
    return Page(
        title=f"Privacy statement of account {replace_controls(balance.account.name)}",
        at=statement.at,
        alarm=describe_overspending(balance),
        terms=(("Period", _describe_period(statement)), *describe_terms(balance)),
        entries=tuple(_make_entry(line, balance.account, digits) for line in statement.lines),
        closing=format_balance(balance.spent, balance.reserved, balance.remaining, digits),
        balance=_describe_balance(statement, digits),
        notes=_write_notes(statement),
        share=balance.share,
        head=str(statement.head),
    )


def make_document(page: Page) -> Document:
    """Return the page as a document, to be rendered as HTML or Markdown."""
    head = ("No.", "Date (UTC)", "Entry", "Spent ε", "Reserved ε", "Remaining ε")
    rows = tuple(
        (each.number, each.at, Cell(each.kind, each.what, each.detail), each.spent, each.reserved, each.remaining)
        for each in page.entries
    )
    tones, closing = tuple(each.tone for each in page.entries), ("", "", "Closing balance", *page.closing)
    entries = DocumentTable(head, rows, numbers=(0, 3, 4, 5), unbroken=(1,), tones=tones, closing=closing)
    gauge = Gauge(page.balance[:3], page.share, is_over=bool(page.alarm))
    return Document(
        title=page.title,
        subtitle=page.at,
        alarms=(Alarm(page.alarm, is_grave=True),) if page.alarm else (),
        sections=(
            Section("The account", pairs=page.terms),
            Section("Balance", gauge=gauge, pairs=page.balance[3:]),
            Section("Entries", tables=(entries,)),
            Section("How to read it", pairs=page.notes),
        ),
        footer=f"Head of the ledger when this was written: {page.head}",
    )


def collect_facts(statement: Statement) -> dict[str, Any]:
    """Return the statement as plain values, with numbers unrounded; an infinite one stays a float."""
    return {
        **collect_balance(statement.balance),
        "exact_epsilon_ex_post": statement.exact,
        "promise": describe_promise(statement.balance),
        "seen_whole_by": list(statement.seen_whole_by),
        "beside": list(statement.beside),
        "lines": [_collect_line(line) for line in statement.lines],
        "head": str(statement.head),
        "at": statement.at,
    }


def collect_balance(balance: Balance) -> dict[str, Any]:
    """Return the balance and the terms of an account as plain values."""
    cap = balance.cap
    return {
        "account": balance.account.name,
        "epsilon": cap.epsilon,
        "delta": cap.delta,
        "unit": cap.unit,
        "adjacency": cap.adjacency,
        "spent": balance.spent,
        "reserved": balance.reserved,
        "remaining": balance.remaining,
        "share": balance.share,
        "status": balance.status,
        "mode": balance.mode,
        "is_overspent": balance.is_overspent,
        "entries": balance.entries,
        "terms": balance.account.to_dict(),
    }


def describe_overspending(balance: Balance) -> str:
    """Return the warning for an overspent account; an empty text for any other."""
    if not balance.is_overspent:
        return ""
    return (
        f"{replace_controls(balance.account.name)} is OVERSPENT: ε = {decimal_up(balance.spent)} was charged and its "
        f"cap is {balance.cap.epsilon:g}"
    )


def describe_promise(balance: Balance) -> str:
    """Describe what the account promises to somebody whose data it protects."""
    cap = balance.cap
    whom = f"for one {cap.unit}, {cap.adjacency.replace('_', '-')}"
    if balance.is_overspent:
        return (
            f"None: more was charged after the fact than the cap of ε = {cap.epsilon:g} at δ = {cap.delta:g} {whom} "
            "allows, so that promise does not hold."
        )
    if balance.mode == "exact":
        plan = Guarantee(balance.spent + balance.reserved, cap.delta, cap.unit, cap.adjacency)
        return (
            f"The one plan of this account is together within ε = {decimal_up(plan.epsilon)} at δ = {cap.delta:g} "
            f"{whom}, also if it is stopped early. {plan.sentence()}"
        )
    return (
        f"Everything charged to this account, however its runs were chosen, is together within ε = {cap.epsilon:g} "
        f"at δ = {cap.delta:g} {whom}. {cap.sentence()}"
    )


def describe_terms(balance: Balance) -> Pairs:
    """Describe the terms of an account, and its status."""
    terms, cap = balance.account, balance.cap
    raised = "" if terms.epsilon == cap.epsilon else f" (opened with {terms.epsilon:g}, then topped up)"
    orders = ", ".join(f"{order:.6g}" for order in terms.orders)
    pairs = [
        ("Owner", terms.owner or "–"),
        ("Purpose", terms.purpose or "–"),
        ("Protected", f"one {terms.unit}, {terms.adjacency.replace('_', '-')}"),
        ("Cap", f"ε = {cap.epsilon:g}{raised} at δ = {terms.delta:g}"),
        ("Source", _describe_source(terms)),
        ("Parent", terms.parent or ""),
        ("Overlaps", ", ".join(terms.overlaps)),
        ("Counted", f"as a filter at Rényi order{'s' * (len(terms.orders) > 1)} {orders}, declared when it was opened"),
        ("Expires", "" if terms.expires is None else format_time(terms.expires)),
        ("Status", _describe_status(balance)),
        *((f"Label {key}", text or "–") for key, text in terms.labels.items()),
    ]
    return tuple((replace_controls(name), replace_controls(text)) for name, text in pairs if text)


def _make_entry(line: Line, terms: Terms, digits: int) -> Entry:
    note = f"with a cap of ε = {terms.epsilon:g}" if line.kind == "opened" else line.note
    run = "" if line.run is None else f"run {line.run}"
    spent, reserved, remaining = format_balance(line.spent, line.reserved, line.remaining, digits)
    return Entry(
        number=str(line.first) if line.first == line.last else f"{line.first}–{line.last}",
        at=line.at[:16].replace("T", " "),
        kind=WORDS.get(line.kind, replace_controls(line.kind)),
        what="" if line.event is None else f"{line.count or 0:,} × {line.event}",
        detail=replace_controls(" · ".join(part for part in (run, note) if part)),
        spent=spent,
        reserved=reserved,
        remaining=remaining,
        tone=TONES.get(line.kind, ""),
    )


def _describe_balance(statement: Statement, digits: int) -> Pairs:
    balance = statement.balance
    spent, reserved, remaining = format_balance(balance.spent, balance.reserved, balance.remaining, digits)
    used = "of the filter's room is spent or reserved" if balance.mode == "filter" else "taken by one plan"
    return (
        ("Spent", f"ε = {spent}"),
        ("Reserved", f"ε = {reserved}"),
        ("Remaining", f"ε = {remaining}"),
        ("Share", f"{format_percent(balance.share)} {used}"),
        ("Exact ε ex post", f"{decimal_up(statement.exact)} for what was charged so far"),
    )


def _write_notes(statement: Statement) -> Pairs:
    balance = statement.balance
    notes = [
        ("What is promised", describe_promise(balance)),
        ("The source", _describe_coverage(statement)),
        (
            "Exact ε ex post",
            "Would be the guarantee had every charge been planned in advance. It is at most what is spent, and no "
            "promise: charges that were chosen after looking at results are covered by the cap only.",
        ),
    ]
    if any(line.kind == "recorded" for line in statement.lines):
        notes.append(
            ("After the fact", "Lines so marked were written after the release, so nothing could refuse them.")
        )
    if balance.account.epsilon != balance.cap.epsilon:
        notes.append(("Topped up", "The cap was raised by its owner; the statement is for the new cap."))
    return (*notes, ("Not covered", NOT_COVERED))


def _describe_coverage(statement: Statement) -> str:
    """Describe which account sees all charges on the source, and which others may be charged for the same data."""
    if statement.balance.account.name not in statement.seen_whole_by:
        others = ", ".join(replace_controls(other) for other in statement.seen_whole_by)
        seen = f"The whole of this source is seen by account {others}: what is promised for the source is stated there."
    elif not statement.beside:
        return "This account sees every charge on its source."
    else:
        seen = "Every charge for its source, unit and adjacency is seen here."
    if not statement.beside:
        return seen
    beside = ", ".join(replace_controls(other) for other in statement.beside)
    return (
        f"{seen} The same data may be charged besides to {beside}, for another unit or adjacency or as part of more "
        "data: that is not in this statement, but in theirs."
    )


def _describe_period(statement: Statement) -> str:
    first = statement.lines[0].at if statement.lines else statement.at
    return f"{first[:10]} to {statement.at[:10]}"


def _describe_status(balance: Balance) -> str:
    if balance.mode == "exact":
        return f"{balance.status}: its one plan was admitted by its exact ε, so nothing more can be charged"
    if balance.is_overspent:
        return f"{balance.status}, OVERSPENT"
    return balance.status


def _describe_source(terms: Terms) -> str:
    kind, _, name = terms.source.partition(":")
    return f"{name} (declared)" if kind == "declared" else f"data with keyed fingerprint no. {name}"


def _collect_line(line: Line) -> dict[str, Any]:
    return {
        "first": line.first,
        "last": line.last,
        "at": line.at,
        "kind": line.kind,
        "run": line.run,
        "event": None if line.event is None else line.event.to_dict(),
        "count": line.count,
        "note": line.note,
        "after_the_fact": line.kind == "recorded",
        "spent": line.spent,
        "reserved": line.reserved,
        "remaining": line.remaining,
    }
