from __future__ import annotations

import json
from collections import Counter
from io import StringIO

import pytest

from dpfed import events as ev
from dpfed.accounting import queries
from dpfed.accounting.tradeoff import detection_rate
from dpfed.ledger.ledger import Ledger
from dpfed.plan.plan import LocalPlan, Plan
from dpfed.report.documents import render_html
from dpfed.report.facts import collect_facts
from dpfed.report.reports import shareable_facts, shareable_page
from dpfed.runs.directory import ASKS, OWN_LEDGER, RunDirectory
from report_plans import PLANS
from run_directories import RECORD, SIZES, made


def charged(directory) -> dict[str, Counter[ev.Event]]:
    """What the ledger's rows say was committed, by account."""
    found: dict[str, Counter[ev.Event]] = {}
    lines = StringIO()
    with Ledger(directory / OWN_LEDGER) as ledger:
        ledger.export(lines)
    for row in map(json.loads, lines.getvalue().splitlines()):
        if row["kind"] == "committed":
            found.setdefault(row["account"], Counter())[ev.loads(row["event"])] += row["times"]
    return found


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_epsilon_is_that_of_the_rounds_and_of_the_ledgers_rows(style, tmp_path):
    directory = made(tmp_path / "run", PLANS[style], most=2)
    facts = shareable_facts(directory)
    rows, last = charged(directory), RunDirectory(directory).rounds()[-1]
    for unit in facts["units"]:
        recorded = [each["epsilon"] for each in last["spent"] if each["unit"] == unit["unit"]]
        accounts = [rows["study"]] if unit["unit"] == "client" else [rows[f"account-{n}"] for n in range(len(SIZES))]
        events = [ev.Composed([ev.Repeated(event, times) for event, times in bag.items()]) for bag in accounts]
        anew = max(queries.epsilon(event, unit["delta"], adjacency=unit["adjacency"]) for event in events)
        assert [unit["so_far"]] == recorded == [facts["by_round"][-1]["epsilon"][unit["unit"]]]
        assert unit["so_far"] == pytest.approx(anew, rel=1e-9)
        assert unit["so_far"] < unit["promised"] <= unit["asked"]


@pytest.mark.parametrize("style", ["sample", "user", "hybrid", "secret"])
def test_the_promise_can_be_computed_anew_from_the_event_in_the_report(style, tmp_path):
    for unit in shareable_facts(made(tmp_path / "run", PLANS[style], most=1))["units"]:
        event = ev.from_dict(unit["event"])
        assert queries.epsilon(event, unit["delta"], adjacency=unit["adjacency"]) == unit["promised"]


def test_the_head_is_that_of_the_ledger_and_not_shown_where_it_counts_a_secret_cohort(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"], most=3)
    with Ledger(directory / OWN_LEDGER) as ledger:
        ledger.require(shareable_facts(directory)["head"])
    secret = made(tmp_path / "secret", PLANS["secret"])
    assert shareable_facts(secret)["head"] == ""
    assert "Its head is not given" in render_html(shareable_page(secret))


def test_no_site_has_a_larger_detection_rate_than_the_sentence_says(tmp_path):
    """Both have ε = 4, and the sentence of one of them would be too good for the other."""
    sites = {name: LocalPlan(size=size, batch_size=16, steps=1, clip_norm=1.0) for name, size in SIZES.items()}
    plan = Plan("wards", 1, sites).calibrated(RECORD)
    (unit,) = shareable_facts(made(tmp_path / "run", plan))["units"]
    said = float(unit["sentence"].split()[-2])
    rates = [100 * detection_rate(ev.Repeated(part.event, plan.record_charges), 0.01) for part in plan.local.values()]
    assert max(rates) - min(rates) > 0.3
    assert max(rates) <= said <= 1.5 * max(rates)


def test_a_run_over_a_network_says_that_charges_are_as_the_sites_attest_them(tmp_path):
    run = RunDirectory(tmp_path)
    run.begin(Plan("study", 2, {"ward": LocalPlan(size=8, batch_size=4, steps=3, clip_norm=1.0, noise_multiplier=9.0)}))
    assert not any("attests" in line for line in collect_facts(run).protection)
    (tmp_path / ASKS).touch()
    assert any("as the site attests them" in line for line in collect_facts(run).protection)
