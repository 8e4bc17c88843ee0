from __future__ import annotations

import json

import pytest

from dpfed import events as ev
from dpfed.accounting import epsilon
from dpfed.accounting.notions import compare
from dpfed.cli.compare import MEANING, describe_event

EVENT = ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.0), 0.01), 10_000)


def test_the_demo_shows_every_notion_with_its_meaning_and_the_guarantee(dpfed):
    result = dpfed("compare")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for row in compare(EVENT, 1e-5):
        assert row.title in result.stdout
        assert MEANING[row.notion] in text
    assert "10,000 steps" in text
    assert "ε ≤ 6.18772 at δ = 1e-05 for one record, add-remove" in text
    assert "at 1 % false alarms an attacker catches at most" in text


def test_the_table_fits_eighty_columns_without_cut_words(dpfed):
    lines = dpfed("compare").stdout.splitlines()
    table = [line for line in lines if not line.startswith(("Whoever", "This"))]
    assert max(map(len, table)) <= 80
    assert "…" not in "".join(table)


def test_a_notion_without_a_statement_says_why_and_gives_no_number(dpfed):
    result = dpfed("compare --json")
    rows = {row["notion"]: row for row in json.loads(result.stdout)["notions"]}
    assert rows["zcdp"]["epsilon"] is None
    assert "sampling" in rows["zcdp"]["remark"]
    assert rows["pure"]["epsilon"] is None


def test_json_holds_the_numbers_of_the_library(dpfed):
    shown = json.loads(dpfed("compare -z 2 -q 0.1 -t 50 --delta 1e-6 --json").stdout)
    event = ev.Repeated(ev.PoissonSampled(ev.Gaussian(2.0), 0.1), 50)
    assert ev.from_dict(shown["event"]) == event
    assert [(row["notion"], row["epsilon"]) for row in shown["notions"]] == [
        (row.notion, row.epsilon) for row in compare(event, 1e-6)
    ]
    assert shown["notions"][0]["epsilon"] == epsilon(event, 1e-6)


def test_any_event_can_be_compared(dpfed):
    event = ev.Repeated(ev.Laplace(5.0), 3)
    result = dpfed("compare --event -", stdin=ev.dumps(event))
    assert result.exit_code == 0, result.output
    assert repr(event) in result.stdout


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (EVENT, "10,000 steps, Gaussian noise of 1 × the clip norm, each on a random 1\u00a0% of the records"),
        (ev.Gaussian(2.5), "one step, Gaussian noise of 2.5 × the clip norm"),
        (ev.Repeated(ev.Gaussian(2.5), 7), "7 steps, Gaussian noise of 2.5 × the clip norm"),
        (ev.Laplace(1.0), "Laplace(noise_multiplier=1.0)"),
    ],
)
def test_a_run_is_said_describe_event(event, words):
    assert describe_event(event, "record") == words


def test_every_notion_has_a_meaning():
    assert set(MEANING) == {row.notion for row in compare(ev.Gaussian(1.0), 1e-5)}
