"""The facts that only the owner of a run may see: who took part, which updates were refused and why, seconds, accounts.

>>> import tempfile
>>> from dpfed.plan.plan import LocalPlan, Plan
>>> run = RunDirectory(tempfile.mkdtemp())
>>> run.begin(Plan("study", rounds=2, local={"ward": LocalPlan(size=8, batch_size=4, steps=3)}, style="none"))
>>> collect_owner_facts(run).run.rounds_done, collect_owner_facts(run).by_round
(0, ())
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfed.aggregation.screening import NORM
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.ledger.ledger import Ledger
from dpfed.ledger.views import Balance
from dpfed.report.facts import RunFacts, add_every_score, collect_facts
from dpfed.runs.directory import LEFT_OUT, ORIGIN, OWN_LEDGER, RunDirectory
from dpfed.runs.rounds import Participation


@dataclass(frozen=True)
class OwnerFacts:
    """The facts of a run for its owner. `problem` is why accounts are missing; empty if they are not.

    `left_out` counts rows beyond those that a person may have; None where no column names the person.
    """

    run: RunFacts
    by_round: tuple[Participation, ...]
    accounts: tuple[Balance, ...]
    problem: str
    left_out: int | None = None


def collect_owner_facts(
    run: RunDirectory, config: RunConfig | None = None, shared: RunFacts | None = None
) -> OwnerFacts:
    """Return everything that is known of the run in that directory; `shared` are its shareable facts, if known."""
    accounts, problem = _read_accounts(run, config)
    return OwnerFacts(
        run=add_every_score(collect_facts(run, config) if shared is None else shared, run),
        by_round=read_attendance(run),
        accounts=accounts,
        problem=problem,
        left_out=_read_left_out(run),
    )


def describe_empty_rounds(rounds: Sequence[Participation]) -> str:
    """Describe the rounds in which nobody contributed; return an empty text if there are none.

    A run whose clients all fail continues to its end like any other, so that others do not see it: its owner must.
    """
    empty = [each for each in rounds if each.is_unanswered]
    if not empty:
        return ""
    reasons = sorted({reason for each in empty for reason in (*each.error_types.values(), *each.refused.values())})
    why = f" ({', '.join(reasons)})" if reasons else ""
    why += (
        "; `dpfed plan` shows the largest norm that is accepted, and max_update_norm sets another"
        if NORM in reasons
        else ""
    )
    message = f"In {len(empty)} of {len(rounds)} rounds there was no update: every client failed or was refused{why}"
    return f"{message}. Their charges are spent, and these rounds added nothing to the model but noise, if any."


def _read_left_out(run: RunDirectory) -> int | None:
    path = run.path / "owner" / LEFT_OUT
    if not path.exists():
        return None
    found = path.read_bytes()
    if not found.isdigit():
        raise InvalidArgument(
            "directory", f"{path} must hold a whole number and nothing else, so it was changed: put back a copy"
        )
    return int(found)


def read_attendance(run: RunDirectory) -> tuple[Participation, ...]:
    """Return who did what, round by round."""
    return tuple(map(Participation.of, run.owner_rounds()))


def _read_accounts(run: RunDirectory, config: RunConfig | None) -> tuple[tuple[Balance, ...], str]:
    if not run.plan.units:
        return (), ""
    try:
        with Ledger(_find_address(run, config), create=False) as ledger:
            return _read_balances(ledger, run.plan.name), ""
    except PrivacyError as error:
        return (), str(error)


def _find_address(run: RunDirectory, config: RunConfig | None) -> str | Path:
    if config is None or config.ledger is None:
        return run.path / OWN_LEDGER
    url = config.ledger.url
    return url if "://" in url or not (run.path / "owner" / ORIGIN).exists() else run.origin / url


def _read_balances(ledger: Ledger, run: str) -> tuple[Balance, ...]:
    charged = {account for each in ledger.reservations(open_only=False) if each.run == run for account in each.reserved}
    return tuple(balance for balance in ledger.accounts() if balance.account.name in charged)
