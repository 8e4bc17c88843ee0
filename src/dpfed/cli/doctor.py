"""``dpfed doctor``: check that this machine can train, one line for each thing that must work."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

TESTED_FLOWER = "1.41.0"
WRITTEN = 2026  # the year of this version of dpfed: a clock that says an earlier one is wrong


@click.command(cls=Command)
@options.option(
    "--ledger",
    "url",
    envvar="DPFED_LEDGER",
    show_envvar=True,
    section="The ledger",
    help="A ledger that must be reachable: a database URL, or the path of a SQLite file.",
)
@options.as_json
def doctor(url: str | None, as_json: bool) -> None:
    """Check that this machine has what a run needs.

    The exit code is 1 if something does not work.

    \b
      dpfed doctor --ledger sqlite:///ledger.db
    """
    from dpfed.cli.show import print_json, say

    checks: dict[str, Callable[[], str]] = {
        "versions": _check_versions,
        "torch": _check_torch,
        "randomness": _check_randomness,
        "write access": _check_write_access,
        "clock": _check_clock,
        "ledger": lambda: _check_ledger(url),
        "flower": _check_flower,
    }
    found = {name: _run_check(check) for name, check in checks.items()}
    if as_json:
        print_json({"checks": found, "is_well": all(each["is_well"] for each in found.values())})
    else:
        for name, each in found.items():
            say(f"{'ok ' if each['is_well'] else 'BAD'} {name}: {each['text']}")
    if not all(each["is_well"] for each in found.values()):
        raise SystemExit(1)


def _run_check(check: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"is_well": True, "text": check()}
    except Exception as error:  # whatever is wrong with a machine is an answer here
        return {"is_well": False, "text": " ".join(f"{error}".split()) or type(error).__name__}


def _check_versions() -> str:
    from dpfed.report.facts import list_versions

    return ", ".join(f"{name} {version}" for name, version in list_versions().items())


def _check_torch() -> str:
    from dpfed.federated.torch.factory import threads

    return f"{threads()} threads; `dpfed run` uses one for small models, or --threads"


def _check_randomness() -> str:
    from dpfed.randomness import SystemSource

    SystemSource().bytes(32)
    return "unpredictable bits from the operating system"


def _check_write_access() -> str:
    with tempfile.NamedTemporaryFile(dir=Path.cwd()):
        return f"files can be made in {Path.cwd()}"


def _check_clock() -> str:
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    if now.year < WRITTEN:
        raise ValueError(
            f"the clock says {now:%Y-%m-%d}, which is past; accounts would not expire in time: set the clock"
        )
    return f"{now:%Y-%m-%d %H:%M} UTC"


def _check_ledger(url: str | None) -> str:
    from dpfed.cli.ledger_access import open_ledger

    if url is None:
        return "none named (--ledger or DPFED_LEDGER); a run without one opens its own"
    with open_ledger(url) as book:
        return f"{book.address} answers, with {len(book.accounts())} accounts and head {book.head()}"


def _check_flower() -> str:
    """Name the version of Flower; another one than the tested one may speak another fleet connection."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("flwr")
    except PackageNotFoundError:
        return "not installed; a run over a network needs it: pip install 'dpfed[flower]'"
    if found == TESTED_FLOWER:
        return f"{found}, which runs over a network are tested with"
    return f"{found} is untested: runs over a network are tested with flwr=={TESTED_FLOWER}"
