from __future__ import annotations

import pytest
from click.testing import CliRunner

from dpfed.cli.main import main
from dpfed.cli.sections import Command, Group

COMMANDS = [
    *("epsilon", "delta", "calibrate", "compare", "check model", "check algorithm"),
    *(
        f"sensitivity {name}"
        for name in ("fedavg", "scaffold", "feddyn", "update", "iadmm", "iceadmm", "iiadmm", "cases")
    ),
]


def test_every_command_is_listed_in_one_section():
    listed = [command.name for commands in main.sections.values() for command in commands]
    assert sorted(listed) == sorted(main.commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_comes_in_sections_and_fits_a_terminal(dpfed, command):
    result = dpfed(f"{command} --help")
    assert result.exit_code == 0
    headings = [line for line in result.output.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings[-2:] == ["Output:", "Other:"]
    assert len(headings) >= 4
    assert "--json" in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_every_command_is_of_our_kind():
    """Only then its help has sections and its refusals name the option."""
    groups = [main, main.commands["sensitivity"], main.commands["check"]]
    commands = [command for group in groups for command in group.commands.values()]
    assert all(isinstance(command, Command | Group) for command in commands)


def test_an_interrupt_ends_quietly(monkeypatch):
    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(main.commands["epsilon"], "callback", interrupt)
    result = CliRunner().invoke(main, ["epsilon", "--delta", "1"])
    assert result.exit_code == 130
    assert result.stderr.strip() == "dpfed: interrupted"
