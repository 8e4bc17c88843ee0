from __future__ import annotations

import pytest

from dpfed.cli.live import STOPPING, format_cost, format_score, open_bar, open_display
from dpfed.federated.metrics import Score
from dpfed.federated.results import RUNNING, RoundResult
from dpfed.guarantee import Guarantee
from run_directories import plan_of

SPENT = Guarantee(1.2312, 1e-5)
RESULT = RoundResult(
    2, RUNNING, None, (), (SPENT,), None, None, (Score("accuracy", 0.875, is_public=True), Score("loss", 0.5))
)


@pytest.mark.parametrize(("is_private", "stamp"), [(True, ""), (False, " [NOT PRIVATE]")])
def test_a_round_is_one_line_of_what_everyone_may_see(capsys, is_private, stamp):
    with open_display(plan_of("sample"), 1, is_quiet=False, is_private=is_private) as display:
        display.show(RESULT)
        display.announce_stop()
    line, stop = capsys.readouterr().out.splitlines()
    assert line == f"round 2 of 3: accuracy 0.875, ε 1.24 of 4 for one record{stamp}"
    assert stop == STOPPING


def test_a_quiet_display_shows_nothing(capsys):
    with open_display(plan_of("sample"), 0, is_quiet=True, is_private=True) as display:
        display.show(RESULT)
        display.announce_stop()
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_bars_with_what_is_spent_of_each_promise(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with open_display(plan_of("sample"), 1, is_quiet=False, is_private=True) as display:
        display.show(RESULT)
    shown = capsys.readouterr().out
    assert "2 of 3 rounds" in shown
    assert "1.24 of 4 at δ = 1e-05" in shown
    assert "loss" not in shown


def test_what_is_spent_is_rounded_up_and_a_score_has_its_mark():
    assert format_cost(SPENT, None) == "ε 1.24 for one record"
    assert format_score("accuracy", {"value": 0.98765, "mark": "not covered"}) == "accuracy 0.9877 (not covered)"
    assert format_score("loss", {"value": None, "mark": ""}) == "loss is not finite"


def test_a_bar_is_shown_on_a_terminal_alone_and_never_among_results(capsys, monkeypatch):
    for is_quiet in (True, False):
        with open_bar("audit", 2, is_quiet=is_quiet) as advance:
            advance()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with open_bar("audit", 2, is_quiet=False) as advance:
        advance()
        advance()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "100%" in shown.err
