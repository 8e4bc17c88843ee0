from __future__ import annotations

import pytest
from click.testing import CliRunner

from dpfed.cli.main import main


def test_a_defect_is_no_refusal_and_its_text_is_not_shown(monkeypatch):
    """Its text may be from a record: the type, the place and an exit code of its own are what tells it."""
    monkeypatch.delenv("DPFED_TRACEBACK", raising=False)
    monkeypatch.setattr(main.commands["epsilon"], "callback", lambda **_: float("MARKER"))
    result = CliRunner().invoke(main, ["epsilon", "--delta", "1"])
    assert result.exit_code == 70
    assert result.stderr.startswith("dpfed: stopped by a ValueError in test_faults.py, line ")
    assert result.stderr.count("\n") == 1
    assert "MARKER" not in result.output


def test_whoever_asks_is_shown_the_lines_of_code_that_led_to_a_defect_but_not_its_text(monkeypatch):
    def fails(**_):
        return int("".join(["MARK", "ER"]))

    monkeypatch.setenv("DPFED_TRACEBACK", "1")
    monkeypatch.setattr(main.commands["epsilon"], "callback", fails)
    result = CliRunner().invoke(main, ["epsilon", "--delta", "1"])
    assert result.exit_code == 70
    assert "in fails\n" in result.stderr
    assert "MARKER" not in result.output


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (
            OSError(28, "No space left", "runs/a/rounds.jsonl.12.tmp"),
            "runs/a/rounds.jsonl cannot be read or written: No",
        ),
        (
            PermissionError(13, "", "model.safetensors"),
            "model.safetensors cannot be read or written: Permission denied",
        ),
        (OSError("MARKER"), "a file cannot be read or written: the operating system refuses"),
        (MemoryError("MARKER"), "this takes more memory than there is"),
        (ValueError("embedded null byte"), "a name that was given has a NUL character in it"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "MARKER"), "a name that was given is not UTF-8"),
    ],
)
def test_what_the_machine_refuses_is_one_sentence(monkeypatch, error, what):
    def fails(**_):
        raise error

    monkeypatch.setattr(main.commands["epsilon"], "callback", fails)
    result = CliRunner().invoke(main, ["epsilon", "--delta", "1"])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"dpfed: {what}")
    assert result.stderr.count("\n") == 1
    assert "MARKER" not in result.output
