"""An older ledger is brought to the last schema and keeps everything; none is ever taken back.

That migrations make the tables which the code knows: `test_creating.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

import dpfed
from dpfed.errors import LedgerUnavailable
from dpfed.ledger.journal import Store
from dpfed.ledger.rows import GENESIS, Draft, Row
from dpfed.ledger.store import database
from dpfed.ledger.store.database import Database
from dpfed.ledger.store.schema import ENTRIES, REVISION
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


def columns_and_rows(tables):
    return {name: (columns, rows) for name, (columns, _, rows) in tables.items()}


def test_opening_a_ledger_again_changes_nothing(engine, url):
    before = everything(engine)
    for _ in range(2):
        with dpfed.Ledger(url) as ledger:
            assert ledger.head().sequence == 1
    assert everything(engine) == before


@pytest.fixture
def old_ledger(config, url):
    """A ledger of the first schema with three entries, and all that is in it."""
    made = sa.create_engine(url, poolclass=sa.NullPool)
    with made.begin() as link:
        config.attributes["connection"] = link
        command.upgrade(config, "0001")
    store = Store(Database(url, wait=10.0))
    with store.writing() as journal:
        for number in range(3):
            journal.append(Draft("leased", run=f"study-{number}"))
    store.close()
    yield made, everything(made)
    made.dispose()


def test_an_old_ledger_is_brought_to_the_last_schema_and_keeps_everything(old_ledger, url):
    engine, before = old_ledger
    with dpfed.Ledger(url) as ledger:
        assert ledger.verify().rows == 3
        after = everything(engine)
        assert after.pop("alembic_version")[2] == [f"('{REVISION}',)"]
        before.pop("alembic_version")
        assert columns_and_rows(after) == columns_and_rows(before)
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        assert ledger.verify().rows == 4


def test_an_old_ledger_that_was_brought_to_the_last_schema_lets_no_entry_in_that_does_not_continue_it(old_ledger, url):
    engine, _ = old_ledger
    dpfed.Ledger(url).close()
    last = Row(**rows_of(url)[-1])
    draft = Draft("leased", run="study-3")
    follows = draft.row(4, last.at, last.hash)
    others = [draft.row(4, last.at, GENESIS), draft.row(5, last.at, last.hash), draft.row(3, last.at, last.previous)]
    for row in others:
        with engine.connect() as link, pytest.raises(sa.exc.DBAPIError, match="has moved"):
            link.execute(sa.insert(ENTRIES), row._asdict())
    with engine.begin() as link:
        link.execute(sa.insert(ENTRIES), follows._asdict())
    with dpfed.Ledger(url) as ledger:
        assert ledger.head() == (4, follows.hash)


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
