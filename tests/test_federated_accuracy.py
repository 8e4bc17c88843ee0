"""The figures of federated runs: what the docs promise of them, and a page made from the results."""

from __future__ import annotations

import json
from statistics import mean

import federated_accuracy


def results() -> dict[str, list[float]]:
    found = json.loads(federated_accuracy.RESULT.read_text())
    return {row["name"]: row["scores"] for row in found["results"]}


def test_the_page_is_the_one_made_from_the_results():
    assert federated_accuracy.PAGE.read_text() == federated_accuracy.render(
        json.loads(federated_accuracy.RESULT.read_text())
    )


def test_figures_are_of_five_seeds_and_hold_what_was_promised():
    hospitals, _, noised, quiet, _ = (mean(scores) for scores in results().values())
    assert all(len(scores) == 5 for scores in results().values())
    assert hospitals >= 0.93
    assert quiet - noised <= 0.01


def test_a_short_run_is_measured_on_records_that_were_held_out():
    settings = {**federated_accuracy.DIGITS, "rounds": 2}
    settings["data"] = {**settings["data"], "partition": {"kind": "iid", "clients": 50}, "sizes": 28}
    made = federated_accuracy.prepared(settings, seed=1)
    assert made.test is not None
    assert len(made.test) + sum(len(client.examples) for client in made.clients) == 1797
    assert federated_accuracy.accuracy(settings, seed=1) > 0.2
    assert federated_accuracy.in_one_place(settings, seed=1) > 0.9
