"""An account with a long history: few lines, the right balance on each, and no more work than the entries."""

from __future__ import annotations

import dpfed
from dpfed import events as ev

SAMPLED, PLAIN = ev.PoissonSampled(ev.Gaussian(2.0), 1e-3), ev.Gaussian(40.0)


def test_equal_commits_are_one_line_also_when_two_kinds_take_turns(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        run = ledger.reserve({"icu": {SAMPLED: 50, PLAIN: 50}}, run="turns")
        for _ in range(20):
            run.commit({"icu": SAMPLED})
            run.commit({"icu": PLAIN})
        ledger.freeze("icu", reason="audit")
        ledger.unfreeze("icu", reason="audit is over")
        run.commit({"icu": {PLAIN: 3}})
        lines = ledger.statement("icu").lines
        shown = [(line.kind, line.event, line.count) for line in lines if line.kind == "committed"]
        assert shown == [("committed", SAMPLED, 20), ("committed", PLAIN, 20), ("committed", PLAIN, 3)]
        assert lines[-1].spent == ledger.balance("icu").spent
        assert [line.last for line in lines] == sorted(line.last for line in lines)


def test_no_line_of_a_plan_admitted_by_its_exact_epsilon_shows_less_than_was_committed(url):
    """What the lines of one stretch show is the balance after all of it, not after the events listed so far."""
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=1.2, delta=1e-5)
        plan = {ev.Gaussian(6.0): 2, ev.Gaussian(7.0): 2}
        run = ledger.reserve({"icu": plan}, run="exact")
        assert ledger.balance("icu").mode == "exact"
        for event in plan:
            run.commit({"icu": event})
        first, second = (line for line in ledger.statement("icu").lines if line.kind == "committed")
        spent = dpfed.accounting.epsilon(ev.Composed(tuple(plan)), 1e-5)
        assert first.spent == second.spent == spent
