"""A new ledger is made at once, and is in every part what the migrations make step by step."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

import dpfed
from dpfed.errors import LedgerError
from dpfed.ledger.rows import GENESIS
from dpfed.ledger.store import database, triggers
from dpfed.ledger.store.schema import REVISION

SCRIPTS = Path(database.__file__).parent / "migrations"
# All that a database knows of its tables, without what differs from one to the next (numbers of objects).
PARTS = {
    "sqlite": {"objects": "SELECT type, name, tbl_name, sql FROM sqlite_master"},
    "postgresql": {
        "relations": "SELECT relname, relkind, relpersistence, relrowsecurity, relreplident, reloptions FROM pg_class "
        "WHERE relnamespace = 'public'::regnamespace",
        "columns": "SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, "
        "pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated, a.attcollation::regcollation::text "
        "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
        "LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum "
        "WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0",
        # The newest servers count NOT NULL among them: it is with the columns.
        "constraints": "SELECT conname, conrelid::regclass::text, contype, pg_get_constraintdef(oid) "
        "FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'",
        "indexes": "SELECT indexname, tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'",
        "triggers": "SELECT tgname, tgenabled, pg_get_triggerdef(oid) FROM pg_trigger",
        "functions": "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    },
}
COUNTS = {
    "sqlite": {"objects": 5 + 7 + 13},
    "postgresql": {
        "relations": 5 + 10,
        "columns": 24 + 13,
        "constraints": 6,
        "indexes": 10,
        "triggers": 6,
        "functions": 3,
    },
}


@pytest.fixture
def connect():
    """Make engines, and close them."""
    made = []

    def connect(url):
        made.append(sa.create_engine(url, poolclass=sa.NullPool))
        return made[-1]

    yield connect
    for engine in made:
        engine.dispose()


def everything(engine):
    """All that the database says of what is in it, and the rows that a new ledger has."""
    with engine.connect() as link:
        parts = PARTS[engine.dialect.name]
        found = {name: sorted(map(repr, link.execute(sa.text(query)))) for name, query in parts.items()}
        for table in ("alembic_version", "entries", "head", "sources"):
            found[f"rows of {table}"] = [tuple(row) for row in link.execute(sa.text(f"SELECT * FROM {table}"))]  # noqa: S608
        return found


def migrate(engine):
    """Make a ledger by all migrations, one after the other."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    with engine.begin() as link:
        config.attributes["connection"] = link
        command.upgrade(config, "head")


@pytest.fixture
def both(new_url, connect):
    """A ledger that was made at once, and one that was made by the migrations."""
    made, migrated = connect(new_url()), connect(new_url())
    dpfed.Ledger(made.url).close()
    migrate(migrated)
    return made, migrated


def test_a_new_ledger_is_in_every_part_what_the_migrations_make(both):
    made, migrated = map(everything, both)
    assert made == migrated


def test_what_is_compared_is_all_there_is(both):
    for engine in both:
        found = everything(engine)
        assert {name: len(found[name]) for name in PARTS[engine.dialect.name]} == COUNTS[engine.dialect.name]


def test_a_new_ledger_is_empty_and_says_its_version(both):
    found = everything(both[0])
    assert found["rows of alembic_version"] == [(REVISION,)]
    assert found["rows of head"] == [(1, 0, GENESIS)]
    assert found["rows of entries"] == found["rows of sources"] == []


def test_each_new_ledger_has_a_key_of_its_own(new_url, connect):
    keys = set()
    for _ in range(2):
        engine = connect(new_url())
        dpfed.Ledger(engine.url).close()
        with engine.connect() as link:
            keys.add(link.execute(sa.text("SELECT key FROM secret")).scalar_one())
            triggers.require_sound(link)
    assert [len(key) for key in keys] == [64, 64]


def test_an_empty_table_of_versions_is_no_obstacle(new_url, connect):
    engine = connect(new_url())
    with engine.begin() as link:
        link.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
    with dpfed.Ledger(engine.url) as ledger:
        assert ledger.verify().rows == 0


def test_a_ledger_that_lost_its_version_is_refused_and_left_alone(both):
    engine = both[0]
    with dpfed.Ledger(engine.url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
    with engine.begin() as link:
        link.execute(sa.text("DROP TABLE alembic_version"))
        before = link.execute(sa.text("SELECT * FROM entries")).all()
    with pytest.raises(LedgerError):
        dpfed.Ledger(engine.url)
    with engine.connect() as link:
        assert link.execute(sa.text("SELECT * FROM entries")).all() == before
        assert not sa.inspect(link).has_table("alembic_version")
