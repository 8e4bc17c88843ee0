"""How accounts decide on a charge, and how a refusal is recorded and raised.

>>> from datetime import UTC, datetime
>>> is_expired(Terms("icu", 8.0, 1e-5, expires="2026-01-01T00:00:00+00:00"), datetime(2027, 1, 1, tzinfo=UTC))
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from dpfed.errors import AccountUnavailable, BudgetExceeded
from dpfed.events import Event
from dpfed.ledger import admission, amounts, inputs, relations
from dpfed.ledger.admission import Verdict
from dpfed.ledger.inputs import Charges
from dpfed.ledger.items import dump_event
from dpfed.ledger.journal import Journal
from dpfed.ledger.rows import Draft, compact
from dpfed.ledger.rules import AccountState, Terms
from dpfed.ledger.wholes import require_told


def judge_all(journal: Journal, run: str, charges: Charges, *, fixed_plan: bool) -> dict[str, Verdict]:
    """Let every account that the charges reach decide on its part of them; refuse what an account would not be told."""
    parts: dict[str, dict[Event, int]] = {}
    for origin, reached in relations.find_reached_by_each(charges, journal.terms).items():
        for account in reached:
            part = parts.setdefault(account, {})
            for event, count in charges[origin].items():
                part[event] = part.get(event, 0) + count
    require_told(journal, run, parts)
    states = journal.states(parts)
    return {
        account: admission.judge(journal.terms[account], states[account], part, fixed_plan=fixed_plan)
        if find_trouble(journal, account, states[account]) is None
        else Verdict(journal.terms[account], states[account], part, is_admitted=False)
        for account, part in parts.items()
    }


def write_refusals(journal: Journal, run: str, verdicts: Mapping[str, Verdict]) -> list[tuple[Verdict, str | None]]:
    """Append the refusals and return them, each with the reason if the account takes no charge at all."""
    refused = []
    for account, verdict in verdicts.items():
        if not verdict.is_admitted:
            why = find_trouble(journal, account, verdict.state)
            refused.append((verdict, why))
            body = compact({"reason": (why or verdict.shortfall())[: inputs.LONGEST_TEXT]})
            state = verdict.state.dumps()
            for event, count in verdict.events.items():
                text = dump_event(event)
                journal.append(Draft("refused", account, run, event=text, times=count, state=state, body=body))
    return refused


def write_expiry(journal: Journal, run: str, accounts: Iterable[str]) -> None:
    """Append that a charge came too late, if no entry is as late yet: a clock that is set back cannot undo that.

    Privacy: every account of the run is checked, so the entry does not reveal whom the charge was for.
    """
    at, last = datetime.fromisoformat(journal.at), datetime.fromisoformat(journal.last)
    for account, state in journal.states(accounts).items():
        terms = journal.terms[account]
        if is_expired(terms, at) and not is_expired(terms, last):
            body = compact({"reason": f"a charge of this run came after the account expired at {terms.expires}"})
            journal.append(Draft("refused", account, run, state=state.dumps(), body=body))


def raise_refusals(refused: list[tuple[Verdict, str | None]]) -> None:
    """Raise the error of the first account that refused, if any did."""
    for verdict, why in refused:
        if why is not None:
            raise AccountUnavailable(why)
        raise BudgetExceeded(verdict.refusal())


def require_usable(terms: Terms, state: AccountState, at: str) -> None:
    """Refuse to charge an account that is frozen or, at that time, expired."""
    if state.frozen:
        raise AccountUnavailable(f"{terms.name} is frozen: its owner must unfreeze it before anything is charged")
    if terms.expires is not None and is_expired(terms, datetime.fromisoformat(at)):
        raise AccountUnavailable(f"{terms.name} expired at {terms.expires}: open an account for the new period")


def require_within(terms: Terms, state: AccountState) -> None:
    """Refuse a commit past the cap: room that was reserved may be gone, see `Ledger.record`."""
    if state.plan is None and not amounts.fits(state.spent, terms.caps(state.cap)):
        raise BudgetExceeded(
            f"committing this would take {terms.name} past its cap of ε = {state.cap:g}, because charges after the "
            "fact have taken the room that was reserved: stop here, or ask the owner for a top-up"
        )


def require_whole(journal: Journal, account: str, state: AccountState) -> None:
    """Refuse unless all that is reserved on the account may be charged, however much of it was committed already."""
    require_usable(journal.terms[account], state, journal.at)
    if state.plan is None and not amounts.fits(state.total, journal.terms[account].caps(state.cap)):
        raise BudgetExceeded(
            f"what is reserved on {account} would take it past its cap of ε = {state.cap:g}, because charges after the "
            "fact have taken the room: ask the owner for a top-up, or end the run"
        )


def find_trouble(journal: Journal, account: str, state: AccountState) -> str | None:
    """Return why the account takes no new reservation; None if it does."""
    try:
        require_usable(journal.terms[account], state, journal.at)
    except AccountUnavailable as error:
        return str(error)
    if state.closed or state.plan is not None:
        return (
            f"{account} is closed for further charges: its one plan was admitted by its exact ε alone, and what is "
            "chosen after that is covered by no theorem; open an account with overlaps for the next study"
        )
    return None


def is_expired(terms: Terms, now: datetime) -> bool:
    """Return whether the account has expired."""
    return terms.expires is not None and now > datetime.fromisoformat(terms.expires)
