"""On SQLite the triggers find the head by its number: a search of the whole table, of one row, took longer.

They refuse and do what they did before. Each commit runs them, and they were a tenth of it.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"

SQLITE = (
    "DROP TRIGGER entries_continue",
    """CREATE TRIGGER entries_continue BEFORE INSERT ON entries
       WHEN NOT EXISTS (SELECT 1 FROM head WHERE id = 1 AND seq = NEW.seq - 1 AND hash = NEW.previous)
       BEGIN SELECT RAISE(ABORT, 'the head of the ledger has moved'); END""",
    "DROP TRIGGER entries_move_head",
    """CREATE TRIGGER entries_move_head AFTER INSERT ON entries
       BEGIN UPDATE head SET seq = NEW.seq, hash = NEW.hash WHERE id = 1; END""",
)


def upgrade() -> None:
    """Put the new triggers in the place of the old ones."""
    if op.get_bind().dialect.name == "sqlite":
        for statement in SQLITE:
            op.execute(statement)


def downgrade() -> None:
    """Refuse: a ledger is never downgraded, because that would lose entries."""
    raise NotImplementedError("a ledger's migrations are never undone: they would lose entries")
