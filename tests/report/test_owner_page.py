from __future__ import annotations

from dpfed.report.reports import owner_facts, owner_page
from report_plans import PLANS
from run_directories import made


def test_the_owner_sees_who_took_part_who_was_turned_away_and_every_account(tmp_path):
    directory = made(tmp_path / "run", PLANS["hybrid"], ill="south")
    facts = owner_facts(directory)
    assert [each["contributed"] for each in facts["attendance"]] == [("north", "harbour")] * 3
    assert all(each["refused"] == {"south": "not_finite"} and each["seconds"] > 0 for each in facts["attendance"])
    assert [each["account"] for each in facts["accounts"]] == ["account-0", "account-1", "account-2", "study"]
    tables = {part.title: part.tables for part in owner_page(directory).sections}
    assert ("south", "0", "0", "0", "3") in tables["Clients"][0].rows
    assert ("1", "south", "not_finite") in tables["Refused updates"][0].rows
    assert tables["Budgets"][0].rows[-1][:4] == ("study", "client", "8", "8.0000")
