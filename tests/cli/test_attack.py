"""``dpfed attack`` is for the owner, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("flowers")


def test_a_run_is_attacked_and_its_curves_are_drawn_for_the_owner_alone(dpfed):
    result = dpfed("attack flowers-1 --shadows 4 --figure roc.svg")
    assert result.exit_code == 0, result.output
    assert "RMIA" in result.output
    assert "For the owner alone" in result.output
    assert Path("roc.svg").stat().st_mode & 0o777 == 0o600


def test_attacks_that_need_shadow_models_fail_without_them(dpfed):
    found = json.loads(dpfed("attack flowers-1 --shadows 0 --json").output)["attacks"]
    assert {each["name"]: each["auc"] is None for each in found}["LiRA online"]
    assert found[0]["auc"] is not None
