"""`dpfed pate run`: a student, a promise in words, and an account that is charged or refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dpfed.cli.main import main
from dpfed.ledger.ledger import Ledger

torch.set_num_threads(1)
TEXT = """
name: wards
data: {source: wards.csv, label: ill, classes: [no, yes], feature_bounds: [0, 100]}
public: open.csv
test: held-out.csv
teachers: {count: 20, steps: 30}
student_steps: 100
privacy: {epsilon: 4, delta: 1e-5}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ages = np.random.default_rng(1).integers(0, 100, 400)
    rows = [f"{a},{'yes' if a > 50 else 'no'}\n" for a in ages]
    (tmp_path / "wards.csv").write_text("age,ill\n" + "".join(rows[:300]))
    (tmp_path / "held-out.csv").write_text("age,ill\n" + "".join(rows[300:]))
    (tmp_path / "open.csv").write_text("age\n" + "".join(f"{a}\n" for a in range(0, 100, 4)))
    (tmp_path / "study.yaml").write_text(TEXT)
    return tmp_path


def call(*arguments):
    return CliRunner().invoke(main, ["pate", "run", *arguments])


def test_a_study_says_what_it_promises_and_leaves_a_student(folder):
    result = call("study.yaml")
    assert result.exit_code == 0, result.output
    assert "20 teachers answered 25 of 25 queries (100.0%)" in result.output
    assert "Promised for the teachers' data: ε = 3.99" in result.output
    assert "The student has the same" in result.output
    assert "Not covered: other fits on these records" in result.output
    assert (folder / "wards.safetensors").exists()


def test_without_an_account_that_is_said_first_and_with_one_not_at_all(folder):
    result = call("study.yaml")
    assert result.output.startswith("No account is charged: nobody counts")
    assert result.stderr.startswith("No account is charged")  # and not among the facts
    with Ledger(folder / "ledger.db") as ledger:
        ledger.open("wards", epsilon=5.0, delta=1e-5)
    charged = call("study.yaml", "--account", "wards", "--ledger", "ledger.db", "--force")
    assert charged.exit_code == 0, charged.output
    assert "No account is charged" not in charged.output


def test_json_has_the_same_facts(folder):
    facts = json.loads(call("study.yaml", "--json", "--output", "student.safetensors").stdout)
    assert facts["epsilon"] <= 4
    assert (facts["answered"], facts["queries"], facts["file"]) == (25, 25, "student.safetensors")


def test_an_account_is_charged(folder):
    with Ledger(folder / "ledger.db") as ledger:
        ledger.open("wards", epsilon=5.0, delta=1e-5)
    result = call("study.yaml", "--account", "wards", "--ledger", "ledger.db")
    assert result.exit_code == 0, result.output
    assert "Not covered" not in result.output
    with Ledger(folder / "ledger.db") as ledger:
        assert [each.committed for each in ledger.reservations(open_only=False)] == [25]
        assert ledger.verify()


def test_an_account_that_cannot_pay_refuses_and_leaves_no_student(folder):
    with Ledger(folder / "ledger.db") as ledger:
        ledger.open("wards", epsilon=1.0, delta=1e-5)
    result = call("study.yaml", "--account", "wards", "--ledger", "ledger.db")
    assert result.exit_code != 0
    assert not (folder / "wards.safetensors").exists()


def test_a_file_that_is_there_is_kept_unless_forced(folder):
    (folder / "wards.safetensors").write_text("mine")
    assert call("study.yaml").exit_code == 2
    assert (folder / "wards.safetensors").read_text() == "mine"
    assert call("study.yaml", "--force").exit_code == 0


def test_a_seeded_study_is_stamped(folder):
    (folder / "study.yaml").write_text(TEXT + "seed: 1\n")
    output = call("study.yaml").output
    assert "NOT PRIVATE" in output
    assert "Promised" not in output


def test_a_wrong_file_is_refused_in_one_line(folder):
    (folder / "study.yaml").write_text(TEXT.replace("epsilon: 4", "epsilon: none"))
    result = call("study.yaml")
    assert result.exit_code == 2
    assert "study.yaml, line 8: privacy.epsilon must be a number" in result.output
