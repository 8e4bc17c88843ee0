from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpfed.runs.directory import RunDirectory

pytestmark = pytest.mark.usefixtures("flowers")


def test_scores_on_private_records_are_marked(dpfed):
    result = dpfed("evaluate flowers-1")
    assert result.exit_code == 0, result.output
    assert "flowers after 2 of 2 rounds" in result.output
    assert "(not covered)" in result.output
    last = RunDirectory("runs/flowers-1").owner_rounds()[-1]
    found = json.loads(dpfed("evaluate flowers-1 --json").output)
    assert found["round"] == last["round"] == 2


def test_other_records_of_the_same_form_can_be_measured(dpfed):
    lines = Path("iris.csv").read_text().splitlines()
    Path("new.csv").write_text("\n".join([lines[0], *lines[1:6]]) + "\n")
    found = json.loads(dpfed("evaluate runs/flowers-1 new.csv --json").output)
    assert found["metrics"]["accuracy"]["mark"] == "not covered"
    assert found["metrics"]["accuracy"]["value"] * 5 == pytest.approx(round(found["metrics"]["accuracy"]["value"] * 5))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("evaluate nowhere", "nowhere holds no run"),
        ("evaluate runs/empty", "runs/empty holds no run"),
        ("evaluate flowers-1 nowhere.csv", "cannot be read"),
        ("export nowhere", "nowhere holds no run"),
        ("export flowers-1 model.pt", "must end in .safetensors"),
        ("export flowers-1 no/such/place.safetensors", "no/such"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(dpfed, line, message):
    result = dpfed(line)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
