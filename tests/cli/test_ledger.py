from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from dpfed.cli.ledger import ledger as group
from dpfed.cli.sections import Command
from dpfed.ledger.ledger import Ledger
from dpfed.ledger.rows import Head
from ledger_commands import STEP, facts, refused, shown

HOSTILE = "[red]<b>*dpo*</b>[/red] {{ 7 * 7 }} | `x` \\ 患者 'quoted'; DROP TABLE entries"


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


def test_an_empty_ledger_says_so(run, book):
    Ledger(book).close()
    assert "has no accounts" in run("show").stdout


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


def test_hostile_texts_are_shown_literally_everywhere(run, book, tmp_path):
    line = ["open", "icu", "--epsilon", "8", "--delta", "1e-5", "--owner", HOSTILE, "--purpose", HOSTILE]
    assert run(*line, "--label", f"note={HOSTILE}").exit_code == 0
    assert run("freeze", "icu", "--reason", HOSTILE).exit_code == 0
    for command in (["show", "icu"], ["statement", "icu"]):
        assert HOSTILE in shown(run(*command)), command
    assert facts(run("statement", "icu", "--json"))["lines"][1]["note"] == HOSTILE
    assert run("release", HOSTILE, "--reason", "x").exit_code == 2
    refused(run("show", "[red]x"), "[red]x")


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


def test_looking_at_a_ledger_leaves_no_entry(run, icu):
    before = icu.head()
    for line in ("show", "show icu", "statement icu", "reservations", "forecast icu -z 1", "verify", "head", "export"):
        assert run(*line.split()).exit_code == 0
    assert icu.head() == before
