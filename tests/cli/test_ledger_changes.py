from __future__ import annotations

import subprocess
import sys

from dpfed.ledger import clock
from dpfed.ledger.ledger import Ledger
from ledger_commands import facts, refused, shown


def test_an_account_is_opened_with_all_its_terms(run, book, tmp_path):
    data = tmp_path / "patients.csv"
    data.write_text("1,2,3")
    line = "open icu --epsilon 4 --delta 1e-6 --unit person --adjacency replace_one --owner dpo --order 8 --order 16"
    more = ["--purpose", "study 12", "--label", "basis=Art. 9 = (2)", "--label", "protocol=77"]
    done = facts(
        run(
            *line.split(), *more, "--expires", "2031-01-31", "--fingerprint", str(data), "--ledger", str(book), "--json"
        )
    )
    with Ledger(book) as ledger:
        balance = ledger.balance("icu")
    terms = balance.account
    assert (terms.epsilon, terms.delta, terms.unit, terms.adjacency) == (4.0, 1e-6, "person", "replace_one")
    assert (terms.owner, terms.purpose, terms.orders) == ("dpo", "study 12", (8.0, 16.0))
    assert terms.labels == {"basis": "Art. 9 = (2)", "protocol": "77"}
    assert terms.expires.startswith("2031-01-31T23:59:59")
    assert terms.source == "fingerprint:1"
    assert done["remaining"] == 4.0
    assert done["terms"]["labels"] == terms.labels


def test_open_says_what_remains(run):
    assert shown(run("open", "icu", "--epsilon", "8", "--delta", "1e-5")) == (
        "opened icu: 8.0000 remains of ε = 8 at δ = 1e-05 for one record, add-remove"
    )


def test_a_parent_and_overlaps_are_passed_on(run, icu, book):
    refused(run("open", "ward", "--epsilon", "4", "--delta", "1e-5", "--source", "icu"), "overlaps")
    assert run("open", "ward", "--epsilon", "4", "--delta", "1e-5", "--source", "icu", "--parent", "icu").exit_code == 0
    line = "open all --epsilon 9 --delta 1e-5 --source icu --overlaps icu --overlaps ward"
    assert run(*line.split()).exit_code == 0
    with Ledger(book) as ledger:
        assert ledger.balance("ward").account.parent == "icu"
        assert ledger.balance("all").account.overlaps == ("icu", "ward")


def test_texts_that_could_steer_a_terminal_are_refused(run):
    line = ["open", "icu", "--epsilon", "8", "--delta", "1e-5", "--owner"]
    for text in ("\x1b[31mred", "two\nlines", "\u202eright to left", "x" * 3000):
        refused(run(*line, text), "--owner must be at most")


DIES = """
import os, sys
from pathlib import Path
from dpfed import events as ev
from dpfed.ledger import clock
from dpfed.ledger.ledger import Ledger
step = ev.Gaussian(noise_multiplier=4.0)
held = Ledger(Path(sys.argv[1])).reserve({"icu": {step: 10}}, run="dead")
held.commit({"icu": {step: 4}})
os.kill(os.getpid(), 9)
"""


def test_what_a_dead_run_never_committed_is_released(run, icu, book):
    subprocess.run([sys.executable, "-c", DIES, str(book)], check=False)
    before = icu.balance("icu")
    found = facts(run("reservations", "--json"))["reservations"]
    assert {each["run"]: each["is_alive"] for each in found} == {"study-12": True, "dead": False}
    refused(run("release", "dead"), "--reason")
    refused(run("release", "dead", "--reason", " "), "--reason must say why")
    refused(run("release", "nobody", "--reason", "x"), "nobody")
    assert facts(run("release", "dead", "--reason", "killed", "--json"))["released"] == 6
    after = icu.balance("icu")
    assert after.spent == before.spent
    assert after.reserved < before.reserved
    assert "killed" in run("statement", "icu").stdout


def test_a_living_run_is_not_released(icu, book):
    command = [sys.executable, "-m", "dpfed", "ledger", "release", "study-12", "--reason", "x", "--ledger", str(book)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "alive" in result.stderr
    assert icu.reservations()[0].left == 7


def test_freeze_unfreeze_and_top_up_are_entries_with_a_reason(run, icu):
    assert "frozen icu" in run("freeze", "icu", "--reason", "audit").stdout
    assert facts(run("show", "icu", "--json"))["accounts"][0]["status"] == "frozen"
    refused(run("freeze", "icu", "--reason", "again"), "frozen already")
    assert "unfrozen icu" in run("unfreeze", "icu", "--reason", "done").stdout
    assert facts(run("top-up", "icu", "--epsilon", "2", "--reason", "ethics vote", "--json"))["epsilon"] == 10.0
    refused(run("top-up", "icu", "--epsilon", "-2", "--reason", "x"), "--epsilon must be")
    refused(run("freeze", "nobody", "--reason", "x"), "nobody")
    text = shown(run("statement", "icu"))
    assert all(part in text for part in ("audit", "ethics vote", "opened with 8, then topped up"))


def test_a_clock_that_is_right_is_not_accepted(run, icu):
    refused(run("accept-clock", "--reason", "x"), "nothing to accept")


def test_a_clock_that_is_behind_is_accepted_with_a_reason(run, icu, monkeypatch):
    real = clock.time.time_ns
    monkeypatch.setattr(clock.time, "time_ns", lambda: real() - 3_600 * 10**9)
    refused(run("freeze", "icu", "--reason", "audit"), "accept-clock")
    assert "accepted" in shown(run("accept-clock", "--reason", "the last entry's clock was wrong"))
    assert "frozen icu" in shown(run("freeze", "icu", "--reason", "audit"))
