from __future__ import annotations

import json
import stat

import pytest

from run_directories import made, plan_of


@pytest.fixture
def wards(tmp_path):
    return made(tmp_path / "wards", plan_of("sample"), ill="south")


def test_both_reports_are_written_and_named(dpfed, wards):
    result = dpfed(f"report {wards}")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"wrote {wards / 'report.html'}, which may be shared",
        f"wrote {wards / 'report-owner.html'}, for the owner alone",
    ]
    assert stat.S_IMODE((wards / "report-owner.html").stat().st_mode) == 0o600


def test_json_is_what_may_be_shared_and_with_owner_everything(dpfed, wards):
    shared, kept = (json.loads(dpfed(f"report {wards} --json{owner}").output) for owner in ("", " --owner"))
    assert set(kept) - set(shared) == {"attendance", "accounts", "problem", "left_out"}
    assert kept["attendance"][0]["refused"] == {"south": "not_finite"}
    assert not (wards / "report.html").exists()


def test_the_event_in_the_json_gives_the_promised_epsilon_again(dpfed, wards):
    (unit,) = json.loads(dpfed(f"report {wards} --json").output)["units"]
    asked = f"epsilon --event - --delta {unit['delta']} --adjacency {unit['adjacency']} --json"
    assert json.loads(dpfed(asked, stdin=json.dumps(unit["event"])).output)["epsilon"] == unit["promised"]


def test_markdown_is_printed(dpfed, wards):
    assert dpfed(f"report {wards} --markdown").output.startswith("# Privacy report of run wards\n")
    assert "## Refused updates" in dpfed(f"report {wards} --markdown --owner").output


def test_owner_alone_is_refused(dpfed, wards):
    result = dpfed(f"report {wards} --owner")
    assert result.exit_code == 2
    assert "both reports are written" in result.output


def test_a_directory_that_holds_no_run_is_refused(dpfed, tmp_path):
    result = dpfed(f"report {tmp_path}/nothing")
    assert result.exit_code == 2
    assert "holds no run" in result.output
    assert not (tmp_path / "nothing").exists()
