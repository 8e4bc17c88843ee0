"""What only the owner of a run may see: who took part, who was turned away and why, seconds, and every account.

>>> import tempfile
>>> from dpfed.plan import LocalPlan, Plan
>>> run = RunDirectory(tempfile.mkdtemp())
>>> run.begin(Plan("study", rounds=2, local={"ward": LocalPlan(size=8, batch_size=4, steps=3)}, style="none"))
>>> owner(run).run.rounds_done, owner(run).by_round
(0, ())
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.aggregation.screening import NORM
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.ledger.ledger import Ledger
from dpfed.ledger.views import Balance
from dpfed.report.run_facts import RunFacts, shareable, with_every_score
from dpfed.runs import LEFT_OUT, ORIGIN, OWN_LEDGER, RunDirectory


@dataclass(frozen=True)
class Attendance:
    """Who did what in a round, and how long it took; `errors` are the types of what failed clients raised."""

    round: int
    seconds: float
    contributed: tuple[str, ...]
    reused: tuple[str, ...]
    exhausted: tuple[str, ...]
    failed: tuple[str, ...]
    refused: Mapping[str, str]
    errors: Mapping[str, str]

    @property
    def is_unanswered(self) -> bool:
        """Whether clients were asked and all of them failed or were turned away."""
        return bool(self.failed or self.refused) and not (self.contributed or self.reused)


@dataclass(frozen=True)
class OwnerFacts:
    """A run as its owner sees it. `problem` says why the accounts are not shown, where they cannot be.

    `left_out` are the rows that were more than a person may have; None where no column names the person.
    """

    run: RunFacts
    by_round: tuple[Attendance, ...]
    accounts: tuple[Balance, ...]
    problem: str
    left_out: int | None = None


def owner(run: RunDirectory, config: RunConfig | None = None, shared: RunFacts | None = None) -> OwnerFacts:
    """Everything known of the run in that directory; `shared` are its shareable facts, where they are known."""
    accounts, problem = _accounts(run, config)
    return OwnerFacts(
        run=with_every_score(shareable(run, config) if shared is None else shared, run),
        by_round=attendance(run),
        accounts=accounts,
        problem=problem,
        left_out=_left_out(run),
    )


def unanswered(rounds: Sequence[Attendance]) -> str:
    """Return a sentence about rounds in which nobody contributed; an empty text if there are none.

    A run whose clients all fail goes on to its end as any other, so that others do not see it: its owner must.
    """
    empty = [each for each in rounds if each.is_unanswered]
    if not empty:
        return ""
    reasons = sorted({reason for each in empty for reason in (*each.errors.values(), *each.refused.values())})
    why = f" ({', '.join(reasons)})" if reasons else ""
    why += "; `dpfed plan` says the largest norm, and max_update_norm sets another" if NORM in reasons else ""
    message = f"In {len(empty)} of {len(rounds)} rounds no update came: everybody asked failed or was turned away{why}"
    return f"{message}. Their charges are spent, and the model has nothing of these rounds but noise, if any."


def _left_out(run: RunDirectory) -> int | None:
    path = run.path / "owner" / LEFT_OUT
    if not path.exists():
        return None
    found = path.read_bytes()
    if not found.isdigit():
        raise InvalidArgument("directory", f"{path} must hold a whole number, and nothing else: put back a copy")
    return int(found)


def attendance(run: RunDirectory) -> tuple[Attendance, ...]:
    """Return who did what, round by round."""
    return tuple(_attendance(record) for record in run.owner_rounds())


def _attendance(record: Mapping[str, Any]) -> Attendance:
    groups = {name: tuple(record.get(name, ())) for name in ("contributed", "reused", "exhausted", "failed")}
    refused, errors = dict(record["refused"]), dict(record.get("errors", {}))  # older files have no errors
    return Attendance(record["round"], record["seconds"], **groups, refused=refused, errors=errors)


def _accounts(run: RunDirectory, config: RunConfig | None) -> tuple[tuple[Balance, ...], str]:
    if not run.plan.units:
        return (), ""
    try:
        with Ledger(_address(run, config), create=False) as ledger:
            return _balances(ledger, run.plan.name), ""
    except PrivacyError as error:
        return (), str(error)


def _address(run: RunDirectory, config: RunConfig | None) -> str | Path:
    if config is None or config.ledger is None:
        return run.path / OWN_LEDGER
    url = config.ledger.url
    return url if "://" in url or not (run.path / "owner" / ORIGIN).exists() else run.origin / url


def _balances(ledger: Ledger, run: str) -> tuple[Balance, ...]:
    charged = {account for each in ledger.reservations(open_only=False) if each.run == run for account in each.reserved}
    return tuple(balance for balance in ledger.accounts() if balance.account.name in charged)
