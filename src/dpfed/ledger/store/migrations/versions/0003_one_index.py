"""The last entry of an item is found without an index of all entries of items, a page of which each commit wrote.

The last entries of what is used up have a small one. The others are on the way back from the end of their account.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Put the new indexes in the place of the old ones."""
    op.drop_index("entries_of_item", "entries")
    op.drop_index("entries_of_account", "entries")
    op.create_index("entries_of_account", "entries", ["account", "seq", "item"])
    ended = sa.text('"left" = 0')
    op.create_index("entries_ended", "entries", ["item"], sqlite_where=ended, postgresql_where=ended)


def downgrade() -> None:
    """Refuse: a ledger is never downgraded, because that would lose entries."""
    raise NotImplementedError("a ledger's migrations are never undone: they would lose entries")
