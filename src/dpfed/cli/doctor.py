"""``dpfed doctor``: whether this machine can train, one line for each thing that must work."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dpfed.cli import run as options
from dpfed.cli.sections import Command

# Nothing was made before this version of dpfed was written: a clock that says so is wrong.
WRITTEN = 2026


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
        "versions": _versions,
        "torch": _torch,
        "randomness": _randomness,
        "write access": _write_access,
        "clock": _clock,
        "ledger": lambda: _ledger(url),
    }
    found = {name: _answer(check) for name, check in checks.items()}
    if as_json:
        print_json({"checks": found, "is_well": all(each["is_well"] for each in found.values())})
    else:
        for name, each in found.items():
            say(f"{'ok ' if each['is_well'] else 'BAD'} {name}: {each['text']}")
    if not all(each["is_well"] for each in found.values()):
        raise SystemExit(1)


def _answer(check: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"is_well": True, "text": check()}
    except Exception as error:  # whatever is wrong with a machine is an answer here
        return {"is_well": False, "text": " ".join(f"{error}".split()) or type(error).__name__}


def _versions() -> str:
    from dpfed.report.run_facts import versions

    return ", ".join(f"{name} {version}" for name, version in versions().items())


def _torch() -> str:
    from dpfed.federated.torch_factory import threads

    return f"{threads()} threads; `dpfed run` uses one for small models, or --threads"


def _randomness() -> str:
    from dpfed.randomness import SystemSource

    SystemSource().bytes(32)
    return "unpredictable bits from the operating system"


def _write_access() -> str:
    with tempfile.NamedTemporaryFile(dir=Path.cwd()):
        return f"files can be made in {Path.cwd()}"


def _clock() -> str:
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    if now.year < WRITTEN:
        raise ValueError(f"it is not {now:%Y-%m-%d}: accounts that expire need a right clock")
    return f"{now:%Y-%m-%d %H:%M} UTC"


def _ledger(url: str | None) -> str:
    from dpfed.cli.ledger_access import reach

    if url is None:
        return "none named (--ledger or DPFED_LEDGER); a run without one opens its own"
    with reach(url) as book:
        return f"{book.address} answers, with {len(book.accounts())} accounts and head {book.head()}"
