"""The version of a ledger's schema, and how an older ledger is brought to today's; never destructive.

>>> is_current(REVISION, "sqlite:///ledger.db", create=False)
True
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dpfed.errors import LedgerCorrupted, LedgerUnavailable
from dpfed.ledger.store import backups
from dpfed.ledger.store.complaints import explain_absence
from dpfed.ledger.store.creating import VERSION, create_ledger
from dpfed.ledger.store.schema import REVISION

# Any number will do as long as nobody else's advisory lock has it: "dpfed" in ASCII.
_MIGRATION_LOCK = 0x6470666564


def is_current(revision: str | None, shown: str, *, create: bool) -> bool:
    """Return whether the ledger at the address `shown` needs no migration.

    Refuse a backup, a ledger of a later version, and an address without a ledger unless one may be made there.
    """
    backups.require_ledger(revision, shown)
    if revision is None and not create:
        raise explain_absence(shown)
    if revision is not None and revision > REVISION:
        raise LedgerUnavailable(
            f"the ledger at {shown} has schema {revision} and this dpfed knows {REVISION}: use a newer dpfed"
        )
    return revision == REVISION


def migrate(link: Connection, seal: Callable[[Connection], None]) -> None:
    """Create the ledger, or bring an older one to this schema and seal it, in the transaction of the connection."""
    if link.dialect.name != "sqlite":
        link.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    before = read_revision(link)  # again: another process may have been first
    if before is None:
        create_ledger(link)
    elif before != REVISION:
        _upgrade(link)
        seal(link)


def read_revision(link: Connection) -> str | None:
    """Return the version of the ledger's schema; None where there is no ledger."""
    if not sa.inspect(link).has_table(VERSION.name):
        return None
    found = link.execute(sa.select(VERSION.c.version_num)).scalar()
    if not isinstance(found, str | None):
        raise LedgerCorrupted(
            f"the ledger's schema has the version {found!r:.40}, which no dpfed has written: restore it from a backup"
        )
    return found


def _upgrade(link: Connection) -> None:
    """Bring an older ledger to this schema; nothing else needs alembic."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = link
    try:
        command.upgrade(config, "head")
    except (CommandError, AssertionError, LookupError, ValueError) as error:  # what alembic makes of nonsense
        raise LedgerCorrupted(
            f"the ledger's schema has a version that no dpfed has written: restore it from a backup ({error})"
        ) from error
