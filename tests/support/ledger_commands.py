"""What `dpfed ledger` answers, as a test reads it."""

from __future__ import annotations

import json

from click.testing import Result

from dpfed import events as ev

STEP = ev.Gaussian(noise_multiplier=4.0)


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
