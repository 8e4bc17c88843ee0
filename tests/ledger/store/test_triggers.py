"""A ledger whose triggers were dropped, changed, switched off or added to does not verify."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

import dpfed
from dpfed.errors import LedgerCorrupted
from dpfed.ledger.store.triggers import TRIGGERS

ON = {"entries", "head", "sources", "secret"}


@pytest.fixture
def engine(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        ledger.verify()
    made = sa.create_engine(url, poolclass=sa.NullPool)
    yield made
    made.dispose()


def table_of(trigger: str) -> str:
    return next(name for name in ON if trigger.startswith(name))


def refused(url: str) -> str:
    with dpfed.Ledger(url) as ledger, pytest.raises(LedgerCorrupted, match="trigger") as refusal:
        ledger.verify()
    return str(refusal.value)


def test_each_trigger_that_is_dropped_is_missed(engine, url):
    kind = engine.dialect.name
    for name in TRIGGERS[kind]:
        with engine.begin() as link:
            if kind == "sqlite":
                text = link.execute(
                    sa.text("SELECT sql FROM sqlite_master WHERE name = :name"), {"name": name}
                ).scalar()
                link.exec_driver_sql(f"DROP TRIGGER {name}")
            else:
                query = "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = :name"
                text = link.execute(sa.text(query), {"name": name}).scalar()
                link.exec_driver_sql(f"DROP TRIGGER {name} ON {table_of(name)}")
        assert f"{name} of the ledger is missing" in refused(url)
        with engine.begin() as link:
            link.exec_driver_sql(text)
        with dpfed.Ledger(url) as ledger:
            ledger.verify()


def test_a_trigger_that_does_something_else_is_noticed(engine, url):
    with engine.begin() as link:
        if link.dialect.name == "sqlite":
            link.exec_driver_sql("DROP TRIGGER entries_no_update")
            link.exec_driver_sql("CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries BEGIN SELECT 1; END")
        else:
            link.exec_driver_sql(
                "CREATE OR REPLACE FUNCTION ledger_refuses() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RETURN NEW; END $$"
            )
    assert "was changed" in refused(url)


def test_a_trigger_that_is_added_is_noticed(engine, url):
    with engine.begin() as link:
        if link.dialect.name == "sqlite":
            link.exec_driver_sql("CREATE TRIGGER more AFTER INSERT ON entries BEGIN SELECT 1; END")
        else:
            link.exec_driver_sql(
                "CREATE TRIGGER more AFTER INSERT ON entries FOR EACH ROW EXECUTE FUNCTION ledger_refuses()"
            )
    assert "not the ledger's" in refused(url)


def test_a_trigger_that_is_switched_off_is_noticed(postgres_url):
    with dpfed.Ledger(postgres_url) as ledger:
        ledger.verify()
    engine = sa.create_engine(postgres_url, poolclass=sa.NullPool)
    with engine.begin() as link:
        link.exec_driver_sql("ALTER TABLE entries DISABLE TRIGGER entries_append_only")
    assert "entries_append_only" in refused(postgres_url)
