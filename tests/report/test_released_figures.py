"""Released figures are in the report for everyone, with intervals; exact ones are the owner's alone."""

from __future__ import annotations

import json

import pytest

from dpfed.config.run import ConfigFile
from dpfed.federated.launch import create_run
from dpfed.report.facts import collect_facts
from dpfed.report.owner_facts import collect_owner_facts
from dpfed.report.page import make_page, make_sections
from dpfed.runs.directory import RunDirectory

RUN = """
name: wards
data: {source: "sklearn:breast_cancer", partition: {kind: iid, clients: 2}, sizes: 200, feature_bounds: [0, 100]}
model: {kind: logistic}
rounds: 2
local: {steps: 2, batch_size: 20, learning_rate: 0.5}
privacy: {style: sample, record: {epsilon: 9, delta: 1e-5, clip_norm: 1}}
metrics: {release: [accuracy, auc], epsilon: 6}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    (folder / "run.yaml").write_text(RUN)
    file = ConfigFile.read(folder / "run.yaml")
    launch = create_run(file, folder / "run")
    with launch.ledger(folder / "run") as ledger:
        results = list(launch.federation(folder / "run", ledger))
    return RunDirectory(folder / "run"), file.config, results


def test_the_shareable_report_has_released_figures_with_intervals_and_no_exact_ones(run):
    directory, config, results = run
    facts = collect_facts(directory, config)
    assert [len(each.released) for each in facts.by_round] == [0, 2]
    accuracy = facts.by_round[-1].released[0]
    assert (accuracy.name, accuracy.value) == ("accuracy", results[-1].measured.figures["accuracy"].value)
    assert accuracy.low <= accuracy.value <= accuracy.high
    assert all(not each.scores for each in facts.by_round)
    section = next(each for each in make_sections(facts) if each.title == "Released figures")
    assert [row[:2] for row in section.tables[0].rows] == [("2", "accuracy"), ("2", "auc")]
    assert "ε = 6 of the promise" in section.texts[0]
    assert facts.units[0].promised <= 9.0
    assert "DiscreteLaplace" in json.dumps(facts.units[0].event)


def test_the_owner_sees_exact_figures_beside_and_they_are_near(run):
    directory, config, results = run
    scores = {score.name: score for score in collect_owner_facts(directory, config).run.by_round[-1].scores}
    assert set(scores) == {"loss", "accuracy", "auc"}
    assert all(score.mark == "not covered" for score in scores.values())
    # About 110 are held out, and a count has noise of 0.24 √2: 0.2 would be more than 30 standard deviations.
    assert scores["accuracy"].value == pytest.approx(results[-1].measured.figures["accuracy"].value, abs=0.2)


def test_a_report_without_a_measurement_has_no_such_section(run):
    directory, config, _ = run
    facts = collect_facts(directory, config)
    assert make_page(facts).sections
    from dataclasses import replace

    plain = replace(facts, measured="", by_round=tuple(replace(each, released=()) for each in facts.by_round))
    assert "Released figures" not in [each.title for each in make_sections(plain)]
