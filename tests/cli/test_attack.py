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
    assert Path("roc.svg").stat().st_mode & 0o777 == 0o600


def test_without_shadow_models_the_attacks_that_need_them_are_left_out(dpfed):
    found = json.loads(dpfed("attack flowers-1 --shadows 0 --json").output)["attacks"]
    assert [each["name"] for each in found] == ["loss threshold", "population"]
    assert all(each["auc"] is not None for each in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
