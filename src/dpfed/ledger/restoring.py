"""What becomes of a ledger that is restored from a backup: nothing that may have been spent since is available.

Each account is frozen until a steward answers for it by name, with a reason that the statement shows, and no account is
opened until all are answered for: it may be one that was opened and spent after the backup. A head that was kept
elsewhere is compared with the backup's, so that who knows of later entries is refused. It is no proof that nothing came
after, for whoever has the backup can read its head; so a person answers in any case.

>>> body(Head(12, "ab" * 32))["head"][:5]
'12:ab'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dpfed.errors import AccountUnavailable, InvalidArgument, LedgerCorrupted
from dpfed.ledger import inputs
from dpfed.ledger.items import Item, move_item
from dpfed.ledger.journal import Journal, rows
from dpfed.ledger.rows import Draft, Head, Row, compact
from dpfed.ledger.rules import AccountState
from dpfed.ledger.store.schema import ENTRIES, HELD

PRESUMED = {"presumed": True, "reason": "restored from a backup: what was reserved counts as committed"}


def body(backup: Head) -> dict[str, Any]:
    """Return the body of the entry that freezes an account of a restored ledger."""
    return {"head": str(backup), "reason": f"restored from a backup that ends at entry {backup.sequence}"}


def freeze_all(journal: Journal, backup: Head) -> None:
    """Count all that is reserved as committed, and freeze every account."""
    if not journal.terms:
        raise InvalidArgument(
            "backup",
            "the backup has no account, so that nothing could be frozen: begin a new ledger, or use a later one",
        )
    reserved = [row.check() for row in rows(journal.link, HELD, ENTRIES.c.kind == "reserved")]
    left = journal.left(row.seq for row in reserved)
    for row in reserved:
        if count := left[row.seq]:
            item = Item.of(row)
            state = journal.states([item.account])[item.account]
            move_item(journal, state, "committed", item, count, 0, str(row.run), compact(PRESUMED))
    for account in journal.terms:
        after = journal.states([account])[account].after("restored")
        journal.move(after, Draft("restored", account, state=after.dumps(), body=compact(body(backup))))


def make_answer(link: Connection, account: str, head: str | None, steward: str | None) -> dict[str, Any]:
    """Return the body of the entry that unfreezes an account of a restored ledger, or refuse."""
    backup = str(_read_restored(link, account).details()["head"])
    if steward is None:
        raise AccountUnavailable(
            f"{account} is frozen because its ledger was restored from a backup that ends at entry "
            f"{Head.parse(backup).sequence}: somebody must answer by name for what may be missing (--steward), and "
            "give the newest head that anybody has kept, if there is one (--head)"
        )
    answer = {"steward": inputs.reason(steward)}
    if head is None:
        return answer
    if str(Head.parse(head)) != backup:
        raise AccountUnavailable(
            f"the backup of {account} ends at entry {Head.parse(backup).sequence} and not at the head that was given "
            f"({Head.parse(head).sequence}), so charges may be missing: record them, then answer for it without a head"
        )
    return {**answer, "head": backup}


def require_answered(states: Mapping[str, AccountState]) -> None:
    """Refuse a new account while nobody has answered for those of a restored ledger."""
    unanswered = [name for name, state in states.items() if state.restored]
    if unanswered:
        raise AccountUnavailable(
            f"no account is opened while {unanswered[0]} is frozen since a backup was restored: the new one may be one "
            "that was opened after the backup, and what it spent is not here; answer for every account first "
            "(dpfed ledger unfreeze ACCOUNT --steward NAME --reason WHY)"
        )


def _read_restored(link: Connection, account: str) -> Row:
    is_such = (ENTRIES.c.account == account, ENTRIES.c.kind == "restored")
    found = link.execute(sa.select(ENTRIES).where(*is_such).order_by(ENTRIES.c.seq.desc()).limit(1)).first()
    if found is None:
        raise LedgerCorrupted(
            f"{account} is marked as restored, but no entry says so: restore the ledger from a backup"
        )
    return Row(*found).check()
