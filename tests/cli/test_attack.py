"""``dpfed attack`` is for the owner, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("flowers")


def test_a_run_is_attacked_and_its_curves_are_drawn_for_the_owner_alone(dpfed):
    result = dpfed("attack flowers-1 --shadows 4 --plot roc.svg")
    assert result.exit_code == 0, result.output
    assert "RMIA" in result.output
    assert "For the owner alone" in result.output
    assert "too few other records were tried for 0.1 % or 1 %" in " ".join(result.output.lower().split())
    assert Path("roc.svg").stat().st_mode & 0o777 == 0o600


def test_without_shadow_models_the_attacks_that_need_them_are_left_out(dpfed):
    found = json.loads(dpfed("attack flowers-1 --shadows 0 --json").output)["attacks"]
    assert [each["name"] for each in found] == ["loss threshold", "population"]
    assert all(each["auc"] is not None for each in found)


def test_a_column_and_gradients_are_read_for_the_owner_alone_and_kept_nowhere(dpfed):
    before = sorted(path for path in Path().rglob("*") if path.is_file())
    result = dpfed("attack flowers-1 --shadows 0 --attribute d --guesses 0.5,1.5,2.5 --gradients 5")
    assert result.exit_code == 0, result.output
    assert "d was guessed right for" in result.output
    assert "5 members read from the gradient" in result.output
    assert "For the owner alone" in result.output
    assert sorted(path for path in Path().rglob("*") if path.is_file()) == before


def test_json_has_what_was_guessed_and_how_well_gradients_were_read_and_no_record(dpfed):
    found = json.loads(dpfed("attack flowers-1 --shadows 0 --attribute d --guesses 0.5,2 --gradients 5 --json").output)
    assert found["attribute"]["advantage"] == found["attribute"]["members"] - found["attribute"]["others"]
    assert [each["noise_multiplier"] for each in found["gradients"]] == [None, 0.01, 0.1, 1.0]
    assert {tuple(each) for each in found["gradients"]} == {("noise_multiplier", "likeness", "labels")}
    assert "owner alone" in found["note"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--gradients 0", "'--gradients': 0 is not in the range"),
        ("--attribute e", "'e' is no column that the model learns from; these are a, b, c, d"),
        ("--attribute d", "which of them to guess from is not said"),
        ("--guesses 1,2", "--guesses are for --attribute"),
        ("--shadows -1", "'--shadows': -1 is not in the range"),
        ("--shadows 1", "train 2 or more"),
        ("--plot roc.png", "'--plot': it must end in .svg"),
    ],
)
def test_what_cannot_be_attacked_or_drawn_is_refused_by_the_name_of_its_option(dpfed, options, message):
    result = dpfed(f"attack flowers-1 {options}")
    assert result.exit_code == 2
    assert message in result.output
    assert not Path("roc.png").exists()
