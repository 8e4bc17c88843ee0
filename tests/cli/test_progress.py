from __future__ import annotations

import io
import sys

import pytest

from dpfed.cli import progress
from dpfed.data.progress import begin_step


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    return screen


def run_step(**options):
    with progress.show_progress(**options), begin_step("reading ward.csv", 4) as advance:
        advance(2)


def test_a_long_step_is_a_bar_on_a_terminal(terminal, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    run_step()
    shown = terminal.getvalue()
    assert max(map(len, shown.split("\r"))) < 200


def test_a_short_step_shows_nothing(terminal):
    run_step()
    assert "reading" not in terminal.getvalue()


def test_a_pipe_and_json_stay_clean(terminal, monkeypatch, capsys):
    run_step(is_quiet=True)
    assert terminal.getvalue() == ""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    run_step()
    assert terminal.getvalue() == ""
