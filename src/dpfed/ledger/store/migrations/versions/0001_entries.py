"""The first schema: entries that only grow, and the head that is their lock."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

GENESIS = "0" * 64

SQLITE = (
    """CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries
       BEGIN SELECT RAISE(ABORT, 'entries of a ledger are append-only'); END""",
    """CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries
       BEGIN SELECT RAISE(ABORT, 'entries of a ledger are append-only'); END""",
    """CREATE TRIGGER head_only_grows BEFORE UPDATE ON head WHEN NEW.seq <= OLD.seq OR NEW.id <> OLD.id
       BEGIN SELECT RAISE(ABORT, 'the head of a ledger only grows'); END""",
    """CREATE TRIGGER head_no_delete BEFORE DELETE ON head
       BEGIN SELECT RAISE(ABORT, 'the head of a ledger only grows'); END""",
    """CREATE TRIGGER sources_no_update BEFORE UPDATE ON sources
       BEGIN SELECT RAISE(ABORT, 'sources of a ledger are append-only'); END""",
    """CREATE TRIGGER sources_no_delete BEFORE DELETE ON sources
       BEGIN SELECT RAISE(ABORT, 'sources of a ledger are append-only'); END""",
    """CREATE TRIGGER secret_no_update BEFORE UPDATE ON secret
       BEGIN SELECT RAISE(ABORT, 'the secret of a ledger is append-only'); END""",
    """CREATE TRIGGER secret_no_delete BEFORE DELETE ON secret
       BEGIN SELECT RAISE(ABORT, 'the secret of a ledger is append-only'); END""",
    # An entry continues the chain or is refused: so one INSERT is a whole commit, and needs no other lock.
    """CREATE TRIGGER entries_continue BEFORE INSERT ON entries
       WHEN NOT EXISTS (SELECT 1 FROM head WHERE seq = NEW.seq - 1 AND hash = NEW.previous)
       BEGIN SELECT RAISE(ABORT, 'the head of the ledger has moved'); END""",
    """CREATE TRIGGER entries_move_head AFTER INSERT ON entries
       BEGIN UPDATE head SET seq = NEW.seq, hash = NEW.hash; END""",
    # INSERT OR REPLACE deletes the old row without asking a trigger for DELETE.
    """CREATE TRIGGER head_no_replace BEFORE INSERT ON head
       BEGIN SELECT RAISE(ABORT, 'the head of a ledger only grows'); END""",
    """CREATE TRIGGER sources_no_replace BEFORE INSERT ON sources
       WHEN EXISTS (SELECT 1 FROM sources WHERE name = NEW.name OR fingerprint = NEW.fingerprint)
       BEGIN SELECT RAISE(ABORT, 'sources of a ledger are append-only'); END""",
    """CREATE TRIGGER secret_no_replace BEFORE INSERT ON secret
       BEGIN SELECT RAISE(ABORT, 'the secret of a ledger is append-only'); END""",
)

POSTGRESQL = (
    """CREATE FUNCTION ledger_refuses() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN RAISE EXCEPTION '% of a ledger are append-only', TG_TABLE_NAME; END $$""",
    """CREATE TRIGGER entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON entries
       FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuses()""",
    """CREATE TRIGGER sources_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON sources
       FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuses()""",
    """CREATE TRIGGER secret_append_only BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON secret
       FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuses()""",
    """CREATE TRIGGER head_no_delete BEFORE INSERT OR DELETE OR TRUNCATE ON head
       FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuses()""",
    """CREATE FUNCTION ledger_head_only_grows() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN
            IF NEW.seq <= OLD.seq OR NEW.id <> OLD.id THEN RAISE EXCEPTION 'the head of a ledger only grows'; END IF;
            RETURN NEW;
          END $$""",
    """CREATE TRIGGER head_only_grows BEFORE UPDATE ON head
       FOR EACH ROW EXECUTE FUNCTION ledger_head_only_grows()""",
    # An entry continues the chain or is refused: so one INSERT is a whole commit, and needs no other lock.
    """CREATE FUNCTION ledger_continues() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN
            UPDATE head SET seq = NEW.seq, hash = NEW.hash WHERE seq = NEW.seq - 1 AND hash = NEW.previous;
            IF NOT FOUND THEN RAISE EXCEPTION 'the head of the ledger has moved'; END IF;
            RETURN NEW;
          END $$""",
    """CREATE TRIGGER entries_continue BEFORE INSERT ON entries
       FOR EACH ROW EXECUTE FUNCTION ledger_continues()""",
)


def upgrade() -> None:
    """Make the tables, the triggers and the first head."""
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "entries",
        sa.Column("seq", number, primary_key=True, autoincrement=False),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("account", sa.String(128)),
        sa.Column("run", sa.String(128)),
        sa.Column("item", sa.BigInteger),
        sa.Column("origin", sa.String(128)),
        sa.Column("event", sa.Text),
        sa.Column("times", sa.BigInteger),
        sa.Column("left", sa.BigInteger),
        sa.Column("cost", sa.Text),
        sa.Column("state", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("code", sa.String(64), nullable=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_index("entries_of_account", "entries", ["account", "seq"])
    op.create_index("entries_of_item", "entries", ["item", "seq"])
    opened, held = sa.text("kind = 'opened'"), sa.text("kind IN ('leased', 'reserved')")
    op.create_index("entries_opened", "entries", ["seq"], sqlite_where=opened, postgresql_where=opened)
    op.create_index("entries_of_run", "entries", ["run", "seq"], sqlite_where=held, postgresql_where=held)
    head = op.create_table(
        "head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_table(
        "sources",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False, unique=True),
    )
    secret = op.create_table(
        "secret",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("key", sa.String(64), nullable=False),
    )
    op.bulk_insert(head, [{"id": 1, "seq": 0, "hash": GENESIS}])
    op.bulk_insert(secret, [{"id": 1, "key": secrets.token_hex(32)}])
    for statement in SQLITE if op.get_bind().dialect.name == "sqlite" else POSTGRESQL:
        op.execute(statement)


def downgrade() -> None:
    """Refuse: a ledger is never downgraded, because that would lose entries."""
    raise NotImplementedError("a ledger's migrations are never undone: they would lose entries")
