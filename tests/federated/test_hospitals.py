"""The demo's story holds: five hospitals, kill -9, the same command again, and a report free to share."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfed.federated.client import Client
from dpfed.ledger.ledger import Ledger
from dpfed.runs import RunDirectory

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals.py"


@pytest.fixture(scope="module")
def hospitals():
    spec = importlib.util.spec_from_file_location("hospitals", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLE), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_demo_is_killed_goes_on_and_reports(tmp_path):
    process = started("--directory", str(tmp_path / "run"), "--kill-in-round", "6")
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 0, shown
    assert "kill -9" in shown
    records = RunDirectory(tmp_path / "run").rounds()
    assert [record["round"] for record in records] == list(range(1, 11))
    assert records[5]["reused"] == ["north", "south"]
    assert records[9]["exhausted"] == ["east", "west", "harbour"]
    text = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "## Not covered" in text
    assert "| hospital-east | ε = 4, δ = 1e-05 per record (add_remove) | 10 | 10 | 9 |" in text
    with Ledger(f"sqlite:///{tmp_path / 'run' / 'ledger.db'}") as ledger:
        assert f"{ledger.verify().head}" in text


def test_ctrl_c_is_answered_with_the_command_that_goes_on(hospitals, tmp_path, monkeypatch, capsys):
    class Interrupted(hospitals.MortalRunner):
        def train(self, task, cohort):
            for outcome in super().train(task, cohort):
                if task.round == 3 and outcome.client == "west":
                    signal.raise_signal(signal.SIGINT)
                yield outcome

    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--directory", str(tmp_path / "run")])
    with monkeypatch.context() as patch:
        patch.setattr(hospitals, "MortalRunner", Interrupted)
        assert hospitals.main() == 130
    shown = capsys.readouterr().out
    assert "Traceback" not in shown
    assert f"{EXAMPLE} --directory {tmp_path / 'run'}" in shown
    assert hospitals.main() == 0
    assert RunDirectory(tmp_path / "run").rounds()[2]["reused"] == ["north", "south", "east"]


def test_a_refusal_is_one_sentence(hospitals, tmp_path, monkeypatch, capsys):
    run = RunDirectory(tmp_path / "run")
    run.begin(replace(hospitals.planned(), rounds=9))
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--directory", str(tmp_path / "run")])
    assert hospitals.main() == 1
    assert "another plan" in " ".join(capsys.readouterr().out.split())


def test_the_report_holds_nothing_of_any_record(hospitals, tmp_path, monkeypatch):
    whole, held_out = hospitals.prepared()
    lengths = {"north": 171, "south": 103, "east": 59, "west": 47, "harbour": 29}  # not what was declared
    clients = [
        Client(each.name, tuple(part[: lengths[each.name]] for part in each.data), each.account) for each in whole
    ]
    monkeypatch.setattr(hospitals, "prepared", lambda: (clients, held_out))
    hospitals.study(tmp_path)
    with hospitals.opened(tmp_path, clients) as ledger:
        text = hospitals.report(RunDirectory(tmp_path), ledger, held_out)
    text, model = text.split("## Released model")
    assert re.findall(r"-?\d[\d.e-]*", model) == [f"{w:.6g}" for w in RunDirectory(tmp_path).checkpoint().weights]
    shareable = [text, (tmp_path / "plan.json").read_text(), (tmp_path / "rounds.jsonl").read_text()]
    numbers = set(re.findall(r"\d+(?:\.\d+)?", re.sub(r"\d+:[0-9a-f]+", "", " ".join(shareable))))
    assert not numbers & {str(length) for length in lengths.values()}
    values = {f"{value:.6g}".lstrip("-") for client in clients for value in client.data[0].ravel()}
    assert not numbers & {value for value in values if len(value) >= 6}


def test_measurements_are_scaled_by_constants_alone(hospitals):
    clients, (features, _) = hospitals.prepared()
    assert hospitals.LOW.shape == hospitals.HIGH.shape == (30,)
    assert np.all(hospitals.LOW < hospitals.HIGH)
    everything = np.vstack([features, *(client.data[0] for client in clients)])
    assert np.all(np.abs(everything) <= 1)
    assert {client.name: len(client.data[0]) for client in clients} == hospitals.SIZES
    assert len(features) == 114


def test_a_hospitals_features_do_not_depend_on_another_record(hospitals, monkeypatch):
    """A statistic of the data in the scaling would move every row when one is changed."""
    before, _ = hospitals.prepared()
    original = hospitals.load_breast_cancer

    def changed():
        raw = original()
        raw.data[np.random.default_rng(2026).permutation(569)[0]] = 1e9
        return raw

    monkeypatch.setattr(hospitals, "load_breast_cancer", changed)
    after, _ = hospitals.prepared()
    np.testing.assert_array_equal(after[0].data[0][1:], before[0].data[0][1:])
    for one, other in zip(before[1:], after[1:], strict=True):
        np.testing.assert_array_equal(one.data[0], other.data[0])
