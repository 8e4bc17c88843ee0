"""The page on first values is what was measured, and the settings of its runs are those that the product chooses."""

from __future__ import annotations

import json
from statistics import mean

import defaults

FOUND = json.loads(defaults.RESULT.read_text())


def test_the_page_is_made_of_the_results():
    assert defaults.PAGE.read_text() == defaults.render(FOUND)


def test_the_results_are_of_the_values_that_are_chosen_now():
    tables = defaults.tables()
    assert [row["name"] for row in FOUND["results"]] == list(tables)
    for row in FOUND["results"]:
        assert row["defaults"] == defaults.asdict(tables[row["name"]].defaults)


def test_no_value_of_the_grid_is_two_points_better():
    assert all(row["best"] - row["same_seeds"] <= 2 for row in FOUND["results"])


def test_the_tables_reach_what_was_promised():
    scores = {row["name"]: (mean(row["scores"]), mean(row["plain"])) for row in FOUND["results"]}
    assert scores["breast cancer"][0] >= 93
    assert scores["adult"][0] >= scores["adult"][1] - 1.5


def test_a_run_of_the_benchmark_is_a_run_of_the_product():
    table = defaults.tables()["breast cancer"]
    short = defaults.replace(table.defaults, rounds=2)
    assert defaults.score(table, short, seed=0) > 60
