from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
name: wards
data:
  source: sklearn:iris
  partition: {kind: quantity, sizes: [80, 40]}
  names: [north, south]
model: {kind: logistic}
rounds: 4
local: {steps: 3, batch_size: 10, learning_rate: 0.5}
privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
"""
HYBRID = "privacy: {style: hybrid, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}, client: {epsilon: 8, delta: 1e-5, clip_norm: 1}}"  # noqa: E501


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(RUN)
    return tmp_path


def test_a_plan_says_what_it_costs_who_binds_and_what_else_would_fit(dpfed, here):
    result = dpfed("plan run.yaml")
    assert result.exit_code == 0, result.output
    assert "wards: 4 rounds, all clients in each" in result.output
    assert "Binding: south" in result.output
    assert "What would fit" in result.output
    rows = [line.split() for line in result.output.splitlines() if " record " in line and line.split()[0] in "28"]
    assert [row[0] for row in rows] == ["2", "8"]
    assert int(rows[0][-1]) < 4 < int(rows[1][-1])
    assert [path.name for path in here.iterdir()] == ["run.yaml"]  # nothing is spent, nothing is made


def test_budgets_can_be_asked_for(dpfed):
    facts = json.loads(dpfed("plan run.yaml --budget 1 --budget 4 --json").output)
    assert [fit["budget"]["epsilon"] for fit in facts["fits"]] == [1, 4]
    assert facts["fits"][1]["rounds"] == 4
    assert facts["binding"] == "south"
    assert facts["statements"][0]["epsilon"] == pytest.approx(4, rel=1e-3)
    assert facts["plots"] == []


def test_epsilon_by_round_is_printed_and_drawn(dpfed):
    result = dpfed("plan run.yaml --by-round")
    assert "wrote run-epsilon-record.svg" in result.output
    assert Path("run-epsilon-record.svg").read_text().startswith("<svg")
    rows = json.loads(dpfed("plan run.yaml --by-round --json").output)["by_round"]
    epsilons = [row["record"] for row in rows]
    assert len(epsilons) == 4
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == pytest.approx(4, rel=1e-3)


def test_two_units_have_two_columns_and_two_drawings(dpfed):
    Path("run.yaml").write_text(RUN.replace(RUN.splitlines()[-1], HYBRID))
    facts = json.loads(dpfed("plan run.yaml --by-round --json").output)
    assert set(facts["by_round"][-1]) == {"round", "record", "client"}
    assert facts["plots"] == ["run-epsilon-record.svg", "run-epsilon-client.svg"]
    assert [fit["budget"]["unit"] for fit in facts["fits"]] == ["record", "record", "client", "client"]


def test_a_plan_says_what_an_algorithm_makes_of_it(dpfed):
    block = "weighting: equal\nalgorithm: {kind: iceadmm, rho: 1.0, rho_factor: 0.5}\n"
    Path("run.yaml").write_text(RUN + block)
    result = dpfed("plan run.yaml")
    assert result.exit_code == 0, result.output
    assert "Public penalty ρ by round: 1, 0.5, 0.25, 0.125." in result.output
    assert "Proximal ζ = 1/learning_rate − ρ, at learning rate 0.5: 1, 1.5, 1.75, 1.875." in result.output


def test_a_plan_that_protects_nobody_says_so(dpfed):
    Path("run.yaml").write_text(RUN.replace(RUN.splitlines()[-1], "privacy: {style: none}"))
    result = dpfed("plan run.yaml --by-round")
    assert result.exit_code == 0
    assert "Nobody is protected" in result.output
    assert "What would fit" not in result.output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("plan", "CONFIG"),
        ("plan nowhere.yaml", "cannot be read"),
        ("plan run.yaml --budget 0", "--budget"),
        ("plan run.yaml --budget inf", "epsilon"),
    ],
)
def test_a_refusal_is_one_line(dpfed, line, message):
    result = dpfed(line)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_planning_needs_no_torch():
    code = "import sys; from dpfed.cli.main import main; main(['plan', 'run.yaml'], standalone_mode=False)"
    check = f"{code}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True)


OWN = """
from pathlib import Path

import numpy as np

Path("imported").touch()


def load():
    return np.zeros((150, 4)), np.zeros(150, int)
"""


@pytest.fixture
def own(here):
    Path("clinic.py").write_text(OWN)
    text = RUN.replace("sklearn:iris", "clinic:load").replace("kind: logistic", "kind: clinic:Net, loss: clinic:loss")
    Path("run.yaml").write_text(text + "algorithm: {kind: clinic:Mine}\n")


def test_without_code_no_module_of_the_file_is_imported_and_each_is_named(dpfed, own):
    result = dpfed("plan run.yaml --no-code")
    assert result.exit_code == 0, result.output
    assert not Path("imported").exists()
    assert "Binding: south" in result.output
    assert "Not imported: data.source is clinic:load, which plan without --no-code, run" in " ".join(
        result.output.split()
    )
    named = json.loads(dpfed("plan run.yaml --no-code --json").output)["not_imported"]
    assert named == {
        "data.source": "clinic:load",
        "model.kind": "clinic:Net",
        "model.loss": "clinic:loss",
        "algorithm.kind": "clinic:Mine",
    }
    assert not Path("imported").exists()
    assert "clinic" not in sys.modules


def test_a_plan_imports_the_loader_of_the_data_and_no_other_code(dpfed, own):
    result = dpfed("plan run.yaml")
    assert result.exit_code == 0, result.output
    assert Path("imported").exists()
    without = Path("run.yaml").read_text().replace("clinic:load", "sklearn:iris")
    Path("run.yaml").write_text(without)
    Path("imported").unlink()
    sys.modules.pop("clinic")
    assert dpfed("plan run.yaml").exit_code == 0
    assert not Path("imported").exists()


def test_without_code_the_plan_is_that_of_the_declared_sizes(dpfed, own):
    with_code, without = (json.loads(dpfed(f"plan run.yaml {option} --json").output) for option in ("", "--no-code"))
    assert without["plan"] == with_code["plan"]


def test_without_code_sizes_that_only_the_records_know_are_refused(dpfed, own):
    text = Path("run.yaml").read_text().replace("kind: quantity, sizes: [80, 40]", "kind: column, column: client")
    Path("run.yaml").write_text(text.replace("  names: [north, south]", "  sizes: public"))
    result = dpfed("plan run.yaml --no-code")
    assert result.exit_code == 2
    assert "declare data.sizes for each client by name, or leave --no-code out" in result.stderr
    assert not Path("imported").exists()


def test_without_code_a_file_that_names_none_says_so(dpfed):
    assert "names no module: a run imports none" in dpfed("plan run.yaml --no-code").output
