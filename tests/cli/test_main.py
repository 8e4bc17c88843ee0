from __future__ import annotations

import os
import subprocess
import sys

import pytest

import dpfed as package
from dpfed.cli.main import main


def test_the_version_is_shown(dpfed):
    assert dpfed("--version").output == f"dpfed {package.__version__}\n"


@pytest.mark.parametrize("line", ["", "--help", "-h"])
def test_the_front_page_lists_every_command_in_sections(dpfed, line):
    result = dpfed(line)
    assert result.exit_code == 0
    assert all(f"{title}:\n" in result.output for title in main.sections)
    assert all(f"  {name} " in result.output for name in main.commands)


RUN = "--noise-multiplier 1 --sample-rate 0.1 --steps 10"
REFUSALS = {
    "nonsense": "No such command 'nonsense'",
    "epsilon": "--delta",
    f"epsilon {RUN} --delta 1e-5 --nonsense": "--nonsense",
    f"epsilon {RUN} --delta two": "'two' is not a valid float",
    f"epsilon {RUN} --delta 1": "--delta must be",
    f"epsilon {RUN} --delta -1e-5": "--delta must be",
    f"epsilon {RUN} --delta nan": "--delta must be",
    f"epsilon {RUN} --delta 1e-5 --adjacency both": "'both' is not one of 'add_remove', 'replace_one'",
    f"epsilon {RUN} --delta 1e-5 --notion gdp": "'gdp' is not one of",
    f"epsilon {RUN} --delta 1e-5 --unit row": "'row' is not one of",
    f"epsilon {RUN} --delta 1e-5 --notion rdp --bounds": "--bounds goes with --notion exact only",
    f"epsilon {RUN} --delta 1e-5 --notion zcdp": "zCDP has no statement for",
    "epsilon --delta 1e-5": "give the run",
    "epsilon --delta 1e-5 --sample-rate 0.1 --steps 3": "give the run",
    "epsilon -z 0 --delta 1e-5": "--noise-multiplier must be a positive finite number, got 0.0",
    "epsilon -z -1 --delta 1e-5": "--noise-multiplier must be a positive finite number, got -1.0",
    "epsilon -z inf --delta 1e-5": "--noise-multiplier must be a positive finite number, got inf",
    "epsilon -z 1 -q 1.5 --delta 1e-5": "--sample-rate must be above 0 and at most 1, got 1.5",
    "epsilon -z 1 -q nan --delta 1e-5": "--sample-rate must be above 0 and at most 1, got nan",
    "epsilon -z 1 -t 0 --delta 1e-5": "--steps must be a whole number of at least 1, got 0",
    "epsilon -z 1 -t 2.5 --delta 1e-5": "'2.5' is not a valid integer",
    "epsilon --event missing.json --delta 1e-5": "missing.json",
    f"epsilon --event - {RUN} --delta 1e-5": "--event describes the whole run",
    f"delta {RUN} --epsilon -1": "--epsilon must be",
    f"delta {RUN} --epsilon nan": "--epsilon must be",
    f"delta {RUN}": "--epsilon",
    "calibrate --epsilon 1 --delta 1e-5": "give two of",
    "calibrate --epsilon 1 --delta 1e-5 --steps 10": "give two of",
    f"calibrate --epsilon 1 --delta 1e-5 {RUN}": "give two of",
    "calibrate --epsilon -1 --delta 1e-5 -q 0.1 -t 10": "--epsilon must be",
    "calibrate --epsilon 1 --delta 1.5 -q 0.1 -t 10": "--delta must be",
    "calibrate --epsilon 1 --delta 1e-5 -q 2 -t 10": "--sample-rate must be",
    "calibrate --epsilon 1 --delta 1e-5 -q 0.1 -t 0": "a whole number of at least 1",
    "compare --delta 2": "--delta must be",
    "compare -z -1": "--noise-multiplier must be",
    "sensitivity nonsense": "No such command 'nonsense'",
    "sensitivity fedavg --clip -1 --lr 0.1 --records 500": "--clip must be",
    "sensitivity fedavg --clip 1 --lr 0 --records 500": "--lr must be",
    "sensitivity fedavg --clip 1 --lr 0.1 --records 0": "--records must be",
    "sensitivity fedavg --clip 1 --lr 0.1": "--records",
    "sensitivity fedavg --clip 1 --lr 0.1 --records 5 --local-steps 2 --adjacency add_remove": "local steps",
    "sensitivity iadmm --clip 1 --penalty 0 --records 500": "--penalty must be",
    "sensitivity iadmm --clip 1 --penalty 1 --records 0": "--records must be",
    "sensitivity iceadmm --clip 1 --penalty 1 --records 5 --proximity -1": "--proximity must be",
    "sensitivity iiadmm --clip 1 --records 5": "--penalty",
    "sensitivity fedavg --clip 1 --lr 1 --records 5 --local-steps 2 --pull 3": "overshoots",
    "sensitivity feddyn --clip 1 --lr 1 --records 5 --alpha 0": "--alpha must be",
    "sensitivity scaffold --clip 1 --lr 1 --records 5 --local-steps 0": "--local-steps must be",
    "sensitivity update --clip 1": "--unit",
}


@pytest.mark.parametrize(("line", "message"), REFUSALS.items(), ids=REFUSALS.keys())
def test_a_wrong_value_gets_one_line_on_stderr_and_exit_code_2(dpfed, line, message):
    result = dpfed(line)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("dpfed: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "dpfed", *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, check=False)


def test_a_terminal_without_greek_gets_a_question_mark():
    result = run("epsilon", "-z", "1", "--delta", "1e-5", PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(b"? ? 4.3")


def test_output_in_a_pipe_has_no_colours():
    result = run("compare", FORCE_COLOR="", TERM="xterm-256color")
    assert result.returncode == 0, result.stderr
    assert b"\x1b" not in result.stdout
