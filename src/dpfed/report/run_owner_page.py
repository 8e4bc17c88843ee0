"""The owner's report of a run: everything that is shared, and what must stay.

>>> _seconds(0.01234), _seconds(12.3)
('0.012', '12')
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dpfed.report.documents import Alarm, Document, Section, Table
from dpfed.report.figures import digits_for, figures, percent, printable
from dpfed.report.run_facts import RunFacts
from dpfed.report.run_owner import Attendance, OwnerFacts, unanswered
from dpfed.report.run_page import MOST_ROWS, alarms, footer, sections, shortened
from dpfed.report.statement import alarm

KEPT = "The owner's view. It tells who took part and what failed: keep it, and share the other report."


def page(facts: OwnerFacts) -> Document:
    """The report for the owner alone."""
    run = facts.run
    overspent = (Alarm(alarm(balance), True) for balance in facts.accounts if balance.is_overspent)
    problem = (Alarm(f"The accounts cannot be shown: {printable(facts.problem)}", True),) if facts.problem else ()
    empty = (Alarm(printable(sentence), False),) if (sentence := unanswered(facts.by_round)) else ()
    return Document(
        title=f"Owner's report of run {printable(run.name)}",
        subtitle=KEPT,
        alarms=(*alarms(run), *empty, *overspent, *problem),
        sections=(*sections(run), *(each for each in _own_sections(facts) if not each.is_empty)),
        footer=footer(run),
    )


def _own_sections(facts: OwnerFacts) -> Iterable[Section]:
    yield Section("Who took part", tables=tuple(_attendance(facts.by_round)))
    yield Section("Clients", tables=tuple(_clients(facts.run, facts.by_round)))
    yield Section("Turned away", tables=tuple(_refusals(facts.by_round)))
    yield Section("Rows left out", texts=tuple(_left_out(facts)))
    yield Section("Budgets", tables=tuple(_budgets(facts)))


def _attendance(rounds: tuple[Attendance, ...]) -> Iterable[Table]:
    if not rounds:
        return
    head = ("Round", "Contributed", "Used again", "Exhausted", "Failed", "Turned away", "Seconds")
    rows = [
        (
            str(each.round),
            *(f"{len(group):,}" for group in (each.contributed, each.reused, each.exhausted, each.failed)),
            f"{len(each.refused):,}",
            _seconds(each.seconds),
        )
        for each in rounds
    ]
    kept, note = shortened(rows, "rounds")
    yield Table(head, kept, numbers=tuple(range(7)), note=note)


def _clients(run: RunFacts, rounds: tuple[Attendance, ...]) -> Iterable[Table]:
    """How often each client did what; of many, those that contributed least."""
    if not rounds:
        return
    groups = ("contributed", "exhausted", "failed", "refused")
    counts = {group: Counter(name for each in rounds for name in getattr(each, group)) for group in groups}
    names = [site.name for site in run.sites]
    if len(names) > MOST_ROWS:
        names = sorted(names, key=lambda name: counts["contributed"][name])[:MOST_ROWS]
    rows = tuple((printable(name), *(f"{counts[group][name]:,}" for group in groups)) for name in names)
    left = len(run.sites) - len(names)
    note = f"{left:,} more clients contributed at least as often; the JSON form has all." if left else ""
    yield Table(("Client", "Contributed", "Exhausted", "Failed", "Turned away"), rows, (1, 2, 3, 4), note)


def _refusals(rounds: tuple[Attendance, ...]) -> Iterable[Table]:
    refused = [(each.round, name, reason) for each in rounds for name, reason in each.refused.items()]
    rows = [(str(number), printable(name), printable(reason)) for number, name, reason in refused]
    if rows:
        kept, note = shortened(rows, "updates")
        yield Table(("Round", "Client", "Reason"), kept, note=note)


def _left_out(facts: OwnerFacts) -> Iterable[str]:
    if facts.left_out is not None:
        yield f"Of persons with more than data.rows_per_person rows, {facts.left_out:,} rows were left out."


def _budgets(facts: OwnerFacts) -> Iterable[Table]:
    if not facts.accounts:
        return
    head = ("Account", "For one", "Cap ε", "Spent", "Reserved", "Remaining", "Used", "Status")
    fullest = sorted(facts.accounts, key=lambda balance: -balance.share) if len(facts.accounts) > MOST_ROWS else None
    rows = []
    for each in (fullest or facts.accounts)[:MOST_ROWS]:
        parts = figures(each.spent, each.reserved, each.remaining, digits_for(each.cap.epsilon))
        terms = printable(each.account.name), each.cap.unit, f"{each.cap.epsilon:g}"
        rows.append((*terms, *parts, percent(each.share), each.status))
    left = len(facts.accounts) - len(rows)
    more = f"{left:,} more accounts, none fuller. " if left else ""
    note = f"{more}dpfed ledger statement ACCOUNT shows every entry."
    yield Table(head, tuple(rows), numbers=(2, 3, 4, 5, 6), note=note)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g}"
