from __future__ import annotations

import os

from dpfed import events as ev
from ledger_commands import STEP, facts, shown


def test_one_account_is_shown_with_its_terms_and_promise(run, icu):
    text = shown(run("show", "icu"))
    for part in ("dpo", "study 12", "consent", "icu (declared)", "one record, add-remove", "Rényi order"):
        assert part in text
    assert icu.balance("icu").cap.sentence() in text


def test_overspent_is_loud(run, icu):
    icu.record({"icu": {ev.Gaussian(0.5): 1}}, reason="found later")
    assert "icu is OVERSPENT" in run("show").stdout
    assert "icu is OVERSPENT" in run("show", "icu").stdout
    text = shown(run("statement", "icu"))
    assert "icu is OVERSPENT" in text
    assert "AFTER THE FACT" in text
    assert "that promise does not hold" in text
    assert facts(run("show", "--json"))["accounts"][0]["is_overspent"] is True


def test_no_protection_is_infinite_and_still_json(run, icu):
    icu.record({"icu": ev.Unprotected()}, reason="leak")
    assert facts(run("show", "--json"))["accounts"][0]["spent"] == "inf"
    assert facts(run("statement", "icu", "--json"))["exact_epsilon_ex_post"] == "inf"
    assert "∞" in run("show").stdout
    assert "∞" in run("statement", "icu").stdout


def test_a_statement_reads_like_a_bank_statement(run, icu):
    result = run("statement", "icu")
    text = shown(result)
    for part in (
        "Privacy statement of account icu",
        "with a cap of ε = 8",
        "4–6",
        "committed 3 × ",
        "Closing balance",
        "ex post",
        "sees every charge on its source",
        "Not covered",
        str(icu.head()),
    ):
        assert part in text
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_a_long_statement_shows_its_end_and_a_file_has_all(run, icu, tmp_path):
    for number in range(300):
        icu.freeze("icu", reason=f"reason-{number}.")
        icu.unfreeze("icu", reason=f"again-{number}.")
    text = run("statement", "icu").stdout
    assert "… 103 earlier entries" in text
    assert "reason-0." not in text
    assert "again-299." in text
    path = tmp_path / "icu.txt"
    run("statement", "icu", "--output", str(path))
    assert all(f"reason-{number}." in path.read_text() for number in range(300))


def test_reservations_are_listed_with_their_holder(run, icu):
    text = shown(run("reservations"))
    assert "study-12" in text
    assert f"process {os.getpid()}" in text
    (found,) = facts(run("reservations", "--json"))["reservations"]
    assert (found["run"], found["committed"], found["left"], found["is_alive"]) == ("study-12", 3, 7, True)
    assert ev.from_dict(found["plan"]["icu"][0]["event"]) == STEP
    icu.resume("study-12").release()
    assert "no run holds a reservation" in run("reservations").stdout
    assert "study-12" in run("reservations", "--all").stdout
