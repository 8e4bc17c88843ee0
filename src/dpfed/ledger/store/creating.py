"""Make a new ledger at once, as the migrations would step by step: alembic is loaded for an older ledger only.

What is made is what `schema` says, with the triggers below. A test compares all of it with what the migrations make, on
both databases; whoever adds a migration adds the same here.

>>> engine = sa.create_engine("sqlite://")
>>> with engine.begin() as link:
...     create_ledger(link)
...     link.execute(sa.select(VERSION.c.version_num)).scalar() == REVISION
True
"""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateIndex, CreateTable

from dpfed.ledger.rows import GENESIS
from dpfed.ledger.store.schema import HEAD, METADATA, REVISION, SECRET, set_conditions

# Where alembic looks for the schema's version.
VERSION = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)

_TRIGGERS = {
    "sqlite": (
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
        # INSERT OR REPLACE deletes the old row without asking a trigger for DELETE.
        """CREATE TRIGGER head_no_replace BEFORE INSERT ON head
       BEGIN SELECT RAISE(ABORT, 'the head of a ledger only grows'); END""",
        """CREATE TRIGGER sources_no_replace BEFORE INSERT ON sources
       WHEN EXISTS (SELECT 1 FROM sources WHERE name = NEW.name OR fingerprint = NEW.fingerprint)
       BEGIN SELECT RAISE(ABORT, 'sources of a ledger are append-only'); END""",
        """CREATE TRIGGER secret_no_replace BEFORE INSERT ON secret
       BEGIN SELECT RAISE(ABORT, 'the secret of a ledger is append-only'); END""",
        # An entry continues the chain or is refused: so one INSERT is a whole commit, and needs no other lock.
        """CREATE TRIGGER entries_continue BEFORE INSERT ON entries
       WHEN NOT EXISTS (SELECT 1 FROM head WHERE id = 1 AND seq = NEW.seq - 1 AND hash = NEW.previous)
       BEGIN SELECT RAISE(ABORT, 'the head of the ledger has moved'); END""",
        """CREATE TRIGGER entries_move_head AFTER INSERT ON entries
       BEGIN UPDATE head SET seq = NEW.seq, hash = NEW.hash WHERE id = 1; END""",
    ),
    "postgresql": (
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
    ),
}


def create_ledger(link: Connection) -> None:
    """Make the tables, the first head, a key and the triggers, in the transaction of whoever opens the ledger."""
    _make_tables(link)
    link.execute(sa.insert(HEAD), {"id": 1, "seq": 0, "hash": GENESIS})
    link.execute(sa.insert(SECRET), {"id": 1, "key": secrets.token_hex(32)})
    for statement in _TRIGGERS[link.dialect.name]:
        link.execute(sa.text(statement))
    VERSION.create(link, checkfirst=True)  # an empty one may be there, as for alembic
    link.execute(sa.insert(VERSION), {"version_num": REVISION})


def _make_tables(link: Connection) -> None:
    """Make the tables and their indexes, one after the other: SQLAlchemy would take the indexes in any order."""
    set_conditions(link.dialect.name)
    for table in METADATA.sorted_tables:
        link.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            link.execute(CreateIndex(index))
