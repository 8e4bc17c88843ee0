from __future__ import annotations

from dpfed.report.reports import owner_facts, owner_page, write
from dpfed.runs.directory import OWN_LEDGER
from report_plans import PLANS
from run_directories import made


def test_an_owners_report_without_its_ledger_says_why(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"])
    for path in directory.glob("ledger.db*"):
        path.unlink()
    assert owner_facts(directory)["accounts"] == []
    assert owner_page(directory).alarms[-1].text.startswith("The accounts cannot be shown: ")
    assert not (directory / OWN_LEDGER).exists()
    write(directory)
