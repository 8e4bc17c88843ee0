"""The tables that migrations make are those the code knows, and a ledger is never taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import dpfed
from dpfed.errors import LedgerUnavailable
from dpfed.ledger import database
from dpfed.ledger.schema import METADATA, REVISION
from worlds import rows_of

SCRIPTS = Path(database.__file__).parent / "migrations"


@pytest.fixture
def config():
    found = Config()
    found.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    return found


@pytest.fixture
def engine(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
    made = sa.create_engine(url, poolclass=sa.NullPool)
    yield made
    made.dispose()


def everything(engine):
    """Every table with all its rows, and whatever else the database says it has."""
    with engine.connect() as link:
        found = sa.inspect(link)
        tables = {name: sa.Table(name, sa.MetaData(), autoload_with=link) for name in found.get_table_names()}
        return {
            name: (
                [(str(column), str(column.type)) for column in table.columns],
                [(index["name"], index["column_names"]) for index in found.get_indexes(name)],
                sorted(map(str, link.execute(sa.select(table)))),
            )
            for name, table in tables.items()
        }


def test_the_code_knows_the_last_migration(config):
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [REVISION]
    assert all(revision.revision <= REVISION for revision in scripts.walk_revisions())


def test_migrations_make_exactly_the_tables_the_code_knows(engine):
    with engine.connect() as link:
        context = MigrationContext.configure(link, opts={"compare_type": True, "compare_server_default": True})
        differences = [
            difference for difference in compare_metadata(context, METADATA) if "alembic_version" not in str(difference)
        ]
        assert differences == []


def test_opening_a_ledger_again_changes_nothing(engine, url):
    before = everything(engine)
    for _ in range(2):
        with dpfed.Ledger(url) as ledger:
            assert ledger.head().sequence == 1
    assert everything(engine) == before


def test_a_ledger_of_a_later_dpfed_is_refused_and_left_alone(engine, url):
    with engine.begin() as link:
        link.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    before = everything(engine)
    with pytest.raises(LedgerUnavailable, match="newer dpfed"):
        dpfed.Ledger(url)
    assert everything(engine) == before


def test_a_ledger_is_never_taken_back(engine, config, url):
    with engine.connect() as link:
        config.attributes["connection"] = link
        with pytest.raises(NotImplementedError, match="never undone"):
            command.downgrade(config, "base")
        link.rollback()
    assert len(rows_of(url)) == 1
    with dpfed.Ledger(url) as ledger:
        ledger.verify()


def test_a_ledger_is_made_whole_or_not_at_all(engine):
    with engine.connect() as link:
        names = set(sa.inspect(link).get_table_names())
        assert names == {"entries", "head", "sources", "secret", "alembic_version"}
        assert link.execute(sa.text("SELECT count(*) FROM head")).scalar() == 1
        assert link.execute(sa.text("SELECT count(*) FROM secret")).scalar() == 1
