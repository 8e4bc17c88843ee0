"""``dpfed sweep`` compares settings on records that may be used for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PUBLIC = """
name: flowers
data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: quantity, sizes: [80, 40]}}
model: {kind: logistic}
rounds: 1
local: {steps: 5, batch_size: 20, learning_rate: 0.5}
privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
"""


@pytest.fixture
def file(dpfed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("flowers.yaml").write_text(PUBLIC)
    return "flowers.yaml"


def test_a_sweep_has_a_row_for_each_epsilon_and_seed(dpfed, file):
    result = dpfed(f"sweep {file} --epsilon inf,2 --shadows 0 --plot sweep.svg")
    assert result.exit_code == 0, result.output
    assert "2 runs on public records" in result.output
    assert "ε = ∞" in result.output
    assert "run 2 of 2: ε = 2, seed 0: ε " in result.stderr
    assert Path("sweep.svg").exists()
    found = json.loads(dpfed(f"sweep {file} --epsilon 2 --seeds 2 --shadows 0 --json").output)
    assert [(each["seed"], each["epsilon"] <= 2) for each in found["runs"]] == [(0, True), (1, True)]


def test_a_sweep_without_anybody_to_attack_says_so_in_table_and_picture(dpfed, file):
    Path(file).write_text(PUBLIC.replace("sizes: [80, 40]}", "sizes: [100, 50]}, test_fraction: 0"))
    result = dpfed(f"sweep {file} --epsilon 2 --shadows 0 --plot sweep.svg")
    assert result.exit_code == 0, result.output
    assert "no records are held out" in result.output
    assert Path("sweep.svg").read_text(encoding="utf-8").count(">failed<") == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--epsilon inf --on-private-data", "ε = ∞ on private records"),
        ("--epsilon 2 --on-private-data", "the file names no ledger"),
        ("--epsilon two", "write numbers with commas"),
        ("--epsilon 2 --plot sweep.png", "it must end in .svg"),
    ],
)
def test_what_would_release_private_records_uncharged_is_refused(dpfed, file, options, message):
    result = dpfed(f"sweep {file} {options}")
    assert result.exit_code == 2
    assert message in result.output
