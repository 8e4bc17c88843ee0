"""The owner's report of a run: everything in the shareable report, and what must not be shared.

>>> _format_seconds(0.01234), _format_seconds(12.3)
('0.012', '12')
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dpfed.report.documents import Alarm, Document, DocumentTable, Section
from dpfed.report.facts import RunFacts
from dpfed.report.figures import digits_for, format_balance, format_percent, replace_controls
from dpfed.report.owner_facts import OwnerFacts, describe_empty_rounds
from dpfed.report.page import MOST_ROWS, make_alarms, make_footer, make_sections, shorten
from dpfed.report.statement import describe_overspending
from dpfed.runs.rounds import Participation

KEPT = "For the owner alone: it tells who took part and what failed. Share the other report instead."


def make_page(facts: OwnerFacts) -> Document:
    """Return the report for the owner alone."""
    run = facts.run
    overspent = (Alarm(describe_overspending(balance), True) for balance in facts.accounts if balance.is_overspent)
    problem = (
        (Alarm(f"The accounts cannot be shown: {replace_controls(facts.problem)}", True),) if facts.problem else ()
    )
    empty = (Alarm(replace_controls(sentence), False),) if (sentence := describe_empty_rounds(facts.by_round)) else ()
    return Document(
        title=f"Owner's report of run {replace_controls(run.name)}",
        subtitle=KEPT,
        alarms=(*make_alarms(run), *empty, *overspent, *problem),
        sections=(*make_sections(run), *(each for each in _make_sections(facts) if not each.is_empty)),
        footer=make_footer(run),
    )


def _make_sections(facts: OwnerFacts) -> Iterable[Section]:
    yield Section("Who took part", tables=tuple(_make_attendance(facts.by_round)))
    yield Section("Clients", tables=tuple(_make_clients(facts.run, facts.by_round)))
    yield Section("Refused updates", tables=tuple(_make_refusals(facts.by_round)))
    yield Section("Rows left out", texts=tuple(_describe_left_out(facts)))
    yield Section("Budgets", tables=tuple(_make_budgets(facts)))


def _make_attendance(rounds: tuple[Participation, ...]) -> Iterable[DocumentTable]:
    if not rounds:
        return
    head = ("Round", "Contributed", "Used again", "Exhausted", "Failed", "Refused", "Seconds")
    rows = [
        (
            str(each.round),
            *(f"{len(group):,}" for group in (each.contributed, each.reused, each.exhausted, each.failed)),
            f"{len(each.refused):,}",
            _format_seconds(each.seconds),
        )
        for each in rounds
    ]
    kept, note = shorten(rows, "rounds")
    yield DocumentTable(head, kept, numbers=tuple(range(7)), note=note)


def _make_clients(run: RunFacts, rounds: tuple[Participation, ...]) -> Iterable[DocumentTable]:
    """Yield how often each client did what; of many clients, those that contributed least."""
    if not rounds:
        return
    groups = ("contributed", "exhausted", "failed", "refused")
    counts = {group: Counter(name for each in rounds for name in getattr(each, group)) for group in groups}
    names = _find_names(run, counts.values())
    shown = sorted(names, key=lambda name: counts["contributed"][name])[:MOST_ROWS] if len(names) > MOST_ROWS else names
    rows = tuple((replace_controls(name), *(f"{counts[group][name]:,}" for group in groups)) for name in shown)
    left = len(names) - len(shown)
    note = f"{left:,} more clients contributed at least as often; the JSON form has all." if left else ""
    yield DocumentTable(("Client", "Contributed", "Exhausted", "Failed", "Refused"), rows, (1, 2, 3, 4), note)


def _find_names(run: RunFacts, counts: Iterable[Counter[str]]) -> list[str]:
    """Return the names of all clients; of a population, of those that were asked."""
    if all(site.clients == 1 for site in run.sites):
        return [site.name for site in run.sites]
    return sorted({name for count in counts for name in count})


def _make_refusals(rounds: tuple[Participation, ...]) -> Iterable[DocumentTable]:
    refused = [(each.round, name, reason) for each in rounds for name, reason in each.refused.items()]
    rows = [(str(number), replace_controls(name), replace_controls(reason)) for number, name, reason in refused]
    if rows:
        kept, note = shorten(rows, "updates")
        yield DocumentTable(("Round", "Client", "Reason"), kept, note=note)


def _describe_left_out(facts: OwnerFacts) -> Iterable[str]:
    if facts.left_out is not None:
        yield f"Of persons with more than data.rows_per_person rows, {facts.left_out:,} rows were left out."


def _make_budgets(facts: OwnerFacts) -> Iterable[DocumentTable]:
    if not facts.accounts:
        return
    head = ("Account", "For one", "Cap ε", "Spent", "Reserved", "Remaining", "Used", "Status")
    fullest = sorted(facts.accounts, key=lambda balance: -balance.share) if len(facts.accounts) > MOST_ROWS else None
    rows = []
    for each in (fullest or facts.accounts)[:MOST_ROWS]:
        parts = format_balance(each.spent, each.reserved, each.remaining, digits_for(each.cap.epsilon))
        terms = replace_controls(each.account.name), each.cap.unit, f"{each.cap.epsilon:g}"
        rows.append((*terms, *parts, format_percent(each.share), each.status))
    left = len(facts.accounts) - len(rows)
    more = f"{left:,} more accounts, none fuller. " if left else ""
    note = f"{more}dpfed ledger statement ACCOUNT shows every entry."
    yield DocumentTable(head, tuple(rows), numbers=(2, 3, 4, 5, 6), note=note)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.2g}"
