"""``dpfed audit`` prints and keeps the line beside the accounted ε; private records cost a reservation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from done_runs import RUN, table
from dpfed.federated.launch import create_run
from dpfed.training.noise import NoiseSource

pytestmark = pytest.mark.usefixtures("flowers")


def test_an_audit_says_both_sides_and_stands_in_the_report_afterwards(dpfed):
    assert "not audited" in dpfed("report flowers-1 --markdown").output
    result = dpfed("audit flowers-1 --canaries 40")
    assert result.exit_code == 0, result.output
    assert "| audited ε ≥ " in result.output
    assert "on: a generated stand-in, which audits plan and code; one run, 95 %, 40 gradient canaries" in result.output
    assert "No evidence against the accounted ε" in result.output
    after = Path("runs/flowers-1/report.html").read_text(encoding="utf-8")
    assert "audited ε ≥" in after
    assert "not audited" not in after


def test_public_records_may_stand_in(dpfed):
    header, *rows = Path("iris.csv").read_text().splitlines(keepends=True)
    Path("public.csv").write_text(header + "".join(rows[:60]))
    found = json.loads(dpfed("audit flowers-1 --canaries 20 --stand-in public.csv --json").output)["audits"][0]
    assert found["data"].startswith("a public stand-in")
    assert found["accounted"]["unit"] == "record"


@pytest.mark.parametrize("name", ["iris.csv", "./iris.csv", "link.csv"])
def test_the_private_records_cannot_stand_in_for_themselves_and_cost_nothing(dpfed, name):
    Path("link.csv").symlink_to("iris.csv")
    result = dpfed(f"audit flowers-1 --canaries 20 --stand-in {name}")
    assert result.exit_code == 2
    assert "holds the run's own records, which are private" in result.output
    assert not Path("runs/flowers-1/audits.json").exists()


def test_private_records_are_refused_where_the_ledger_does_not_admit_one_more_run(dpfed):
    result = dpfed("audit flowers-1 --canaries 20 --on-private-data")
    assert result.exit_code == 2
    assert "closed for further charges" in result.output
    assert not Path("runs/flowers-1/audits.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [("--on-private-data --stand-in iris.csv", "give one of them"), ("--residual", "is for --on-private-data")],
)
def test_options_that_contradict_each_other_are_refused(dpfed, options, message):
    result = dpfed(f"audit flowers-1 {options}")
    assert result.exit_code == 2
    assert message in result.output


@pytest.fixture(scope="module")
def careful(tmp_path_factory):
    """A run with much noise, whose accounted ε an audit of 400 canaries could refute if there were none."""
    folder = tmp_path_factory.mktemp("careful")
    (folder / "iris.csv").write_text(table())
    (folder / "run.yaml").write_text(RUN.replace("noise_multiplier: 1.0", "noise_multiplier: 20"))
    launch = create_run(folder / "run.yaml", folder / "run")
    with launch.ledger(folder / "run") as ledger:
        list(launch.federation(folder / "run", ledger))
    return folder / "run"


def test_a_fault_that_leaves_the_noise_out_is_refuted_with_exit_code_1_and_stands_in_the_report(
    dpfed, careful, monkeypatch
):
    monkeypatch.setattr(NoiseSource, "add", lambda _self, tensors, _std, _norm="l2": dict(tensors))
    result = dpfed(f"audit {careful} --canaries 400")
    assert result.exit_code == 1, result.output
    assert "REFUTED" in result.output
    report = (careful / "report.html").read_text(encoding="utf-8")
    line = result.output.splitlines()[0]
    assert line[: line.index("(")] in report
    assert "REFUTED: the run leaks more than was accounted for" in report
