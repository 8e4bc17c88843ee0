from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from dpfed.ledger.ledger import Ledger
from ledger_commands import facts, refused


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


def test_nothing_is_written_over_the_ledger_itself(run, icu, book, tmp_path):
    (tmp_path / "link.db").symlink_to(book)
    for path in (book, tmp_path / "link.db", Path(f"{book}-wal")):
        refused(run("export", "--output", str(path)), "is the ledger itself")
        refused(run("statement", "icu", "--output", str(path)), "is the ledger itself")
    assert icu.verify().rows == 6


def test_a_file_that_cannot_be_written_is_one_line(run, icu, tmp_path):
    refused(run("export", "--output", str(tmp_path / "no" / "x.jsonl")), "cannot be written")
    refused(run("statement", "icu", "--output", str(tmp_path / "no" / "x.html")), "cannot be written")


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
