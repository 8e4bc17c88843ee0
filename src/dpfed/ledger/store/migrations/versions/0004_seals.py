"""Entries of new kinds, which an older dpfed cannot read: seals over the sources of data, clocks, restored backups.

No table changes. A ledger that knows data by a fingerprint gets its seal in the same transaction.
"""

from __future__ import annotations

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Change nothing but the version."""


def downgrade() -> None:
    """Refuse: a ledger is never downgraded, because that would lose entries."""
    raise NotImplementedError("a ledger's migrations are never undone: they would lose entries")
