from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dpfed import events as ev
from dpfed.cli.ledger import ledger as group
from dpfed.cli.main import main
from dpfed.cli.sections import Command
from dpfed.ledger import clock
from dpfed.ledger.ledger import Ledger
from dpfed.ledger.rows import Head

STEP = ev.Gaussian(noise_multiplier=4.0)
HOSTILE = "[red]<b>*dpo*</b>[/red] {{ 7 * 7 }} | `x` \\ 患者 'quoted'; DROP TABLE entries"

Run = Callable[..., Result]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Where the ledger of the test will be."""
    return tmp_path / "book.db"


@pytest.fixture
def run(book: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command on that ledger: ``run("show", "icu")``."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("DPFED_LEDGER", str(book))
    return lambda *arguments: CliRunner().invoke(main, ["ledger", *arguments])


@pytest.fixture
def icu(book: Path) -> Ledger:
    """A ledger with one account and one run that holds ten and committed three."""
    ledger = Ledger(book)
    ledger.open("icu", epsilon=8.0, delta=1e-5, owner="dpo", purpose="study 12", labels={"basis": "consent"})
    reservation = ledger.reserve({"icu": {STEP: 10}}, run="study-12")
    for _ in range(3):
        reservation.commit({"icu": STEP})
    return ledger


def facts(result: Result) -> dict:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(result: Result, message: str, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("dpfed: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def shown(result: Result) -> str:
    """What was printed, each run of blanks as one, so that wrapping does not matter."""
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


@pytest.mark.parametrize("name", sorted(group.commands))
def test_help_comes_in_sections_and_fits_a_terminal(run, name):
    result = run(name, "--help")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings[-2:] == ["Output:", "Other:"]
    assert "The ledger:" in headings
    assert "--json" in result.output
    assert max(map(len, lines)) <= 80
    assert isinstance(group.commands[name], Command)


def test_every_command_is_listed_in_one_section():
    assert sorted(each.name for commands in group.sections.values() for each in commands) == sorted(group.commands)


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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("open icu --epsilon -1 --delta 1e-5", "--epsilon must be"),
        ("open icu --epsilon nan --delta 1e-5", "--epsilon must be"),
        ("open icu --epsilon 1 --delta 0", "--delta must be"),
        ("open icu --epsilon 1", "--delta"),
        ("open i'cu --epsilon 1 --delta 1e-5", "account must be"),
        ("open icu --epsilon 1 --delta 1e-5 --label x", "--label must be KEY=VALUE"),
        ("open icu --epsilon 1 --delta 1e-5 --label a=1 --label a=2", "--label must be KEY=VALUE, with each key once"),
        ("open icu --epsilon 1 --delta 1e-5 --label [b]=1", "--label must be"),
        ("open icu --epsilon 1 --delta 1e-5 --expires soon", "--expires"),
        ("open icu --epsilon 1 --delta 1e-5 --order 0.5", "--order must be"),
        ("open icu --epsilon 1 --delta 1e-5 --overlaps nobody", "nobody"),
        ("open icu --epsilon 1 --delta 1e-5 --parent nobody", "nobody"),
        ("open icu --epsilon 1 --delta 1e-5 --fingerprint missing.csv", "missing.csv"),
        (
            "open icu --epsilon 1 --delta 1e-5 --source a --fingerprint pyproject.toml",
            "--source and --fingerprint are two names of the same data",
        ),
        ("open icu --epsilon 1 --delta 1e-5 --ledger mysql://host/x", "--ledger must begin with sqlite:///"),
        ("open icu --epsilon 1 --delta 1e-5 --ledger :memory:", "in memory"),
        ("open icu --epsilon 1 --delta 1e-5 --ledger missing/folder/book.db", "does its folder exist"),
        ("nonsense", "No such command"),
    ],
)
def test_a_wrong_value_gets_one_line_and_exit_code_2(run, line, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").touch()
    result = run(*line.split())
    refused(result, message)
    assert result.stdout == ""


@pytest.mark.parametrize(
    "line",
    [
        "show",
        "show icu",
        "statement icu",
        "reservations",
        "forecast icu -z 1",
        "release study-12 --reason x",
        "freeze icu --reason x",
        "unfreeze icu --reason x",
        "top-up icu --epsilon 1 --reason x",
        "verify",
        "head",
        "export",
    ],
)
def test_only_open_makes_a_ledger(run, line, tmp_path, book):
    refused(run(*line.split()), "there is no ledger at")
    assert list(tmp_path.iterdir()) == []
    with sqlite3.connect(book) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    before = book.read_bytes()
    refused(run(*line.split()), "there is no ledger at")
    with sqlite3.connect(book) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    other.close()
    assert len(book.read_bytes()) == len(before)


def test_the_default_is_a_file_in_this_folder_and_an_option_wins_over_the_variable(tmp_path, monkeypatch, run, icu):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFED_LEDGER")
    assert run("open", "here", "--epsilon", "1", "--delta", "1e-5").exit_code == 0
    assert Path("ledger.db").exists()
    monkeypatch.setenv("DPFED_LEDGER", "ledger.db")
    assert [each["account"] for each in facts(run("show", "--json"))["accounts"]] == ["here"]
    url = f"sqlite:///{tmp_path / 'book.db'}"
    assert [each["account"] for each in facts(run("show", "--json", "--ledger", url))["accounts"]] == ["icu"]


def test_a_path_with_a_question_mark_is_a_path(run, tmp_path):
    path = tmp_path / "what?.db"
    assert run("open", "icu", "--epsilon", "1", "--delta", "1e-5", "--ledger", str(path)).exit_code == 0
    assert path.exists()


def test_show_is_what_the_library_says(run, icu):
    balance = icu.balance("icu")
    found = facts(run("show", "--json"))
    assert found["head"] == str(icu.head())
    (account,) = found["accounts"]
    assert (account["spent"], account["reserved"], account["remaining"]) == (
        balance.spent,
        balance.reserved,
        balance.remaining,
    )
    assert account["share"] == balance.share
    row = next(line.split() for line in run("show").stdout.splitlines() if line.startswith(" icu"))
    name, cap, spent, reserved, remaining, used, _, status = row
    assert (name, cap, status) == ("icu", "8", "open")
    assert balance.spent <= float(spent) < balance.spent + 2e-4
    assert balance.remaining - 2e-4 < float(remaining) <= balance.remaining
    assert float(spent) + float(reserved) + float(remaining) == pytest.approx(8.0, abs=1e-9)
    assert float(used) >= 100 * balance.share


def test_one_account_is_shown_with_its_terms_and_promise(run, icu):
    text = shown(run("show", "icu"))
    for part in ("dpo", "study 12", "consent", "icu (declared)", "one record, add-remove", "Rényi order"):
        assert part in text
    assert icu.balance("icu").cap.sentence() in text


def test_an_empty_ledger_says_so(run, book):
    Ledger(book).close()
    assert "has no accounts" in run("show").stdout


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


def test_a_statement_is_written_in_the_format_of_its_file(run, icu, tmp_path):
    for name, start in [
        ("a.html", "<!doctype html>"),
        ("a.md", "# Privacy statement"),
        ("a.json", "{"),
        ("a.txt", "Privacy statement"),
    ]:
        path = tmp_path / name
        assert run("statement", "icu", "--output", str(path)).stdout == f"wrote {path}\n"
        assert path.read_text(encoding="utf-8").startswith(start)
    assert json.loads((tmp_path / "a.json").read_text())["account"] == "icu"
    assert run("statement", "icu", "--format", "markdown").stdout.startswith("# Privacy statement")
    assert run("statement", "icu", "--format", "html").stdout.startswith("<!doctype html>")


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


def test_nothing_is_written_over_the_ledger_itself(run, icu, book, tmp_path):
    (tmp_path / "link.db").symlink_to(book)
    for path in (book, tmp_path / "link.db", Path(f"{book}-wal")):
        refused(run("export", "--output", str(path)), "is the ledger itself")
        refused(run("statement", "icu", "--output", str(path)), "is the ledger itself")
    assert icu.verify().rows == 6


def test_a_file_that_cannot_be_written_is_one_line(run, icu, tmp_path):
    refused(run("export", "--output", str(tmp_path / "no" / "x.jsonl")), "cannot be written")
    refused(run("statement", "icu", "--output", str(tmp_path / "no" / "x.html")), "cannot be written")


def test_hostile_texts_are_shown_literally_everywhere(run, book, tmp_path):
    line = ["open", "icu", "--epsilon", "8", "--delta", "1e-5", "--owner", HOSTILE, "--purpose", HOSTILE]
    assert run(*line, "--label", f"note={HOSTILE}").exit_code == 0
    assert run("freeze", "icu", "--reason", HOSTILE).exit_code == 0
    for command in (["show", "icu"], ["statement", "icu"]):
        assert HOSTILE in shown(run(*command)), command
    assert facts(run("statement", "icu", "--json"))["lines"][1]["note"] == HOSTILE
    assert run("release", HOSTILE, "--reason", "x").exit_code == 2
    refused(run("show", "[red]x"), "[red]x")


def test_texts_that_could_steer_a_terminal_are_refused(run):
    line = ["open", "icu", "--epsilon", "8", "--delta", "1e-5", "--owner"]
    for text in ("\x1b[31mred", "two\nlines", "\u202eright to left", "x" * 3000):
        refused(run(*line, text), "--owner must be at most")


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


def test_forecast_is_how_many_the_account_then_admits(run, icu):
    count = facts(run("forecast", "icu", "-z", "4", "--json"))["count"]
    assert f"{count} more of Gaussian" in run("forecast", "icu", "-z", "4").stdout
    icu.reserve({"icu": {STEP: count}}, run="all", fixed_plan=False)
    assert facts(run("forecast", "icu", "-z", "4", "--json"))["count"] == 0
    icu.freeze("icu", reason="x")
    assert "is frozen" in run("forecast", "icu", "-z", "4").stdout
    refused(run("forecast", "icu"), "give the run")


def test_head_is_one_line_that_can_be_kept_and_required(run, icu):
    kept = run("head").stdout
    assert kept == f"{icu.head()}\n"
    icu.freeze("icu", reason="x")
    assert "sound: 7 entries, 1 account\n" in run("verify", "--head", kept.strip()).stdout
    assert Head.parse(facts(run("head", "--json"))["head"]) == icu.head()
    refused(run("verify", "--head", "7"), "--head must look like")


def test_a_head_that_is_not_there_is_exit_code_1(run, icu):
    other = f"6:{'a' * 64}"
    refused(run("verify", "--head", other), "does not contain entry 6", code=1)
    refused(run("verify", "--head", f"99:{'a' * 64}"), "does not contain entry 99", code=1)


def tamper(book: Path, statement: str) -> None:
    with sqlite3.connect(book) as link:
        for (name,) in link.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            link.execute(f'DROP TRIGGER "{name}"')
        link.execute(statement)
    link.close()


def test_verify_names_the_first_bad_entry_with_exit_code_1(run, icu, book):
    icu.close()
    tamper(book, "UPDATE entries SET times = 1 WHERE seq = 3")
    refused(run("verify"), "entry 3 ", code=1)
    result = run("verify", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["is_sound"], found["row"]) == (False, 3)


def test_what_a_tampered_row_says_cannot_steer_the_terminal(run, icu, book):
    icu.close()
    tamper(book, "UPDATE entries SET kind = char(27) || '[2Jgone' WHERE seq = 4")
    result = run("verify")
    assert result.exit_code == 1
    assert "\x1b" not in result.output


def test_a_file_that_is_no_database_is_one_line(run, book):
    book.write_bytes(b"not a database, but long enough to look at" * 100)
    refused(run("verify"), "damaged", code=1)
    refused(run("show"), "damaged")


def test_an_export_is_verified_without_the_ledger(run, icu, book, tmp_path):
    path = tmp_path / "book.jsonl"
    done = facts(run("export", "--output", str(path), "--json"))
    assert (done["rows"], done["head"]) == (6, str(icu.head()))
    assert run("export").stdout == path.read_text(encoding="utf-8")
    icu.close()
    book.unlink()
    found = facts(run("verify", "--export", str(path), "--head", done["head"], "--json"))
    assert (found["rows"], found["accounts"], found["head"]) == (6, 1, done["head"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], "entry 3 is missing"),
        (lambda lines: [*lines[:3], lines[3].replace('"times":1', '"times":2'), *lines[4:]], "entry 4 "),
        (lambda lines: [*lines[:3], "{}\n"], "line 4 of the export"),
        (lambda lines: ["[" * 100_000], "line 1 of the export"),
        (lambda lines: [lines[0].replace("dpo", "\udcff")], "entry 1 "),
        (lambda lines: lines[:4], "does not contain entry 6"),
    ],
)
def test_a_changed_export_is_found_out(run, icu, tmp_path, change, message):
    path = tmp_path / "book.jsonl"
    run("export", "--output", str(path))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(change(lines)), encoding="utf-8", errors="surrogateescape")
    refused(run("verify", "--export", str(path), "--head", str(icu.head())), message, code=1)


def test_an_export_to_stdout_is_the_same_on_a_terminal_without_unicode(book):
    with Ledger(book) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5, owner="Ärztin 患者")
    command = [sys.executable, "-m", "dpfed", "ledger", "export", "--ledger", str(book)]
    result = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=True)
    assert "Ärztin 患者" in result.stdout.decode("utf-8")


def test_looking_at_a_ledger_leaves_no_entry(run, icu):
    before = icu.head()
    for line in ("show", "show icu", "statement icu", "reservations", "forecast icu -z 1", "verify", "head", "export"):
        assert run(*line.split()).exit_code == 0
    assert icu.head() == before


def test_a_backup_is_made_restored_and_unfrozen_by_a_steward_with_its_head(run, icu, book, tmp_path):
    copy, new = tmp_path / "may.backup", tmp_path / "new.db"
    icu.close()
    made = facts(run("backup", str(copy), "--json"))
    assert made["rows"] == 6
    refused(run("backup", str(copy)), "nothing is overwritten")
    refused(run("show", "--ledger", str(copy)), "is a backup")
    assert facts(run("restore", str(copy), "--ledger", str(new), "--json"))["frozen"] == ["icu"]
    refused(run("restore", str(copy), "--ledger", str(new)), "nothing is overwritten")
    refused(run("unfreeze", "icu", "--ledger", str(new), "--reason", "x"), "--steward")
    answer = ("unfreeze", "icu", "--ledger", str(new), "--reason", "nothing came after", "--steward", "dpo")
    refused(run(*answer, "--head", "1:" + "0" * 64), "may be missing")
    refused(run(*answer[:-2], "--head", made["head"]), "by name")
    refused(run("open", "other", "--ledger", str(new), "--epsilon", "1", "--delta", "1e-5"), "no account is opened")
    assert "unfrozen icu" in shown(run(*answer, "--head", made["head"]))
    assert "sound" in shown(run("verify", "--ledger", str(new)))


def test_a_backup_and_a_restore_say_what_they_did(run, icu, tmp_path):
    copy = tmp_path / "may.backup"
    assert "backed up 6 entries, 1 account to" in shown(run("backup", str(copy)))
    told = shown(run("restore", str(copy), "--ledger", str(tmp_path / "new.db")))
    assert "with 1 account, all frozen" in told
    refused(run("restore", str(tmp_path / "none"), "--ledger", str(tmp_path / "more.db")), "there is no backup")


def test_a_clock_that_is_right_is_not_accepted(run, icu):
    refused(run("accept-clock", "--reason", "x"), "nothing to accept")


def test_a_clock_that_is_behind_is_accepted_with_a_reason(run, icu, monkeypatch):
    real = clock.time.time_ns
    monkeypatch.setattr(clock.time, "time_ns", lambda: real() - 3_600 * 10**9)
    refused(run("freeze", "icu", "--reason", "audit"), "accept-clock")
    assert "accepted" in shown(run("accept-clock", "--reason", "the last entry's clock was wrong"))
    assert "frozen icu" in shown(run("freeze", "icu", "--reason", "audit"))
