from __future__ import annotations

from dpfed.guarantee import Guarantee
from dpfed.plan import ClientPlan, LocalPlan, Plan, explain
from dpfed.plan.shuffling import find_shuffled
from dpfed.randomness import SeededSource
from dpfed.report.documents import render_html
from dpfed.report.reports import owner_page, shareable_facts, shareable_page, write
from dpfed.runs.directory import RunDirectory
from report_plans import PLANS, section
from run_directories import made, plan_of


def first_words(directory) -> list[str]:
    alarms = shareable_page(directory).alarms
    assert owner_page(directory).alarms[: len(alarms)] == alarms
    return [alarm.text.partition(":")[0] for alarm in alarms]


def test_a_finished_run_has_nothing_to_say_first(tmp_path):
    assert first_words(made(tmp_path / "run", PLANS["sample"])) == []


def test_an_unfinished_run_says_so_first(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"], most=2)
    assert first_words(directory) == ["Not finished"]
    assert "2 of 3 rounds" in shareable_page(directory).alarms[0].text


def test_a_run_that_has_not_begun_has_a_report(tmp_path):
    RunDirectory(tmp_path / "run").begin(PLANS["hybrid"])
    assert first_words(tmp_path / "run") == ["Not finished"]
    assert [unit["so_far"] for unit in shareable_facts(tmp_path / "run")["units"]] == [0.0, 0.0]
    write(tmp_path / "run")


def test_an_exhausted_run_says_so_first(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"], crashes=(2,))
    assert RunDirectory(directory).status == "budget_exhausted"
    assert first_words(directory) == ["Budget exhausted"]


def test_a_seeded_run_says_so_first_and_promises_nothing(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"], source=SeededSource(1))
    assert first_words(directory) == ["NOT PRIVATE"]
    assert shareable_page(directory).alarms[0].is_grave
    assert "an attacker" not in render_html(shareable_page(directory))


def test_a_run_that_protects_nobody_says_so_first(tmp_path):
    directory = made(tmp_path / "run", PLANS["none"])
    assert first_words(directory) == ["NOT PRIVATE"]
    assert "may be shared." not in render_html(shareable_page(directory))


def test_a_thousand_equal_sites_are_one_line_and_two_hundred_unequal_ones_thirty(tmp_path):
    for name, sizes, lines in (
        ("equal", {f"phone-{number:04d}": 100 for number in range(1000)}, 1),
        ("unequal", {f"phone-{number:04d}": 100 + number for number in range(200)}, 30),
    ):
        RunDirectory(tmp_path / name).begin(plan_of("sample", sizes))
        (table,) = section(shareable_page(tmp_path / name), "Sites, as they were declared").tables
        assert len(table.rows) == lines
        assert len(shareable_facts(tmp_path / name)["sites"]) == len(sizes)
    assert table.note.startswith("170 more sites, none with a larger ε")


def test_many_rounds_are_thirty_lines_with_the_first_and_the_last(tmp_path):
    directory = made(tmp_path / "run", plan_of("none", rounds=100))
    (table,) = section(shareable_page(directory), "Rounds").tables
    assert (len(table.rows), table.rows[0][0], table.rows[-1][0]) == (30, "1", "100")
    assert len(shareable_facts(directory)["by_round"]) == 100


def test_a_run_with_a_shuffler_states_both_and_nothing_bayesian(tmp_path):
    phones = {f"phone-{place}": LocalPlan(size=8, batch_size=8, steps=1) for place in range(100)}
    noise = ClientPlan(clip_norm=1.0, noise_multiplier=2.0, norm="l1", shuffle_users=90)
    promise = Guarantee(1.0, 1e-5, "client", "replace_one")
    plan = Plan("survey", 1, phones, style="local", client=noise, weighting="equal", client_guarantee=promise)
    RunDirectory(tmp_path / "run").begin(plan)
    page = shareable_page(tmp_path / "run")
    alone, shuffled = section(page, "What is promised").texts
    assert alone == explain.sentence(plan, plan.statements()[0])
    assert shuffled.startswith("Shuffled: for one client ε ≤ ")
    assert find_shuffled(plan, 1e-5).epsilon < plan.client_epsilon(1e-5)
    assert "bayesian" not in render_html(page).lower()
