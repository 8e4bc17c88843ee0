"""The key and the fingerprints by which data are known again cannot be changed unnoticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa

import dpfed
from dpfed.errors import InvalidArgument, LedgerCorrupted
from worlds import rows_of

DATA = b"the records"
OTHER = {name: sign * 64 for name, sign in (("key", "a"), ("mark", "c"), ("more", "e"))}


@pytest.fixture
def tamper(url):
    """Run statements behind the ledger's back, with all triggers out of the way for their time."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)

    def run(*statements: str) -> None:
        with engine.begin() as link:
            if link.dialect.name == "sqlite":
                kept = link.execute(sa.text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")).all()
                for name, _ in kept:
                    link.exec_driver_sql(f"DROP TRIGGER {name}")
            else:
                link.exec_driver_sql("SET session_replication_role = replica")
            for statement in statements:
                link.exec_driver_sql(statement)
            if link.dialect.name == "sqlite":
                for _, text in kept:
                    link.exec_driver_sql(text)

    return run


TAMPERING = {
    "another key": [f"UPDATE secret SET key = '{OTHER['key']}'"],  # noqa: S608
    "another fingerprint": [f"UPDATE sources SET fingerprint = '{OTHER['mark']}' WHERE name = 'fingerprint:1'"],  # noqa: S608
    "no fingerprint": ["DELETE FROM sources WHERE name = 'fingerprint:1'"],
    "another name": ["UPDATE sources SET name = 'fingerprint:7' WHERE name = 'fingerprint:1'"],
    "one more": [f"INSERT INTO sources (name, fingerprint) VALUES ('fingerprint:9', '{OTHER['more']}')"],  # noqa: S608
}


@pytest.fixture
def known(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5, source=DATA)
        ledger.open("lab", epsilon=8.0, delta=1e-5, source=b"others")
        ledger.open("named", epsilon=8.0, delta=1e-5, source="a-name")
        with pytest.raises(InvalidArgument):
            ledger.open("second", epsilon=8.0, delta=1e-5, source=DATA)
        ledger.verify()


@pytest.mark.parametrize("how", TAMPERING)
def test_no_second_account_opens_on_the_same_data_after_key_or_fingerprint_was_changed(known, url, tamper, how):
    tamper(*TAMPERING[how])
    with dpfed.Ledger(url) as ledger:
        with pytest.raises(LedgerCorrupted, match="would look new"):
            ledger.open("second", epsilon=8.0, delta=1e-5, source=DATA)
        with pytest.raises(LedgerCorrupted, match="would look new"):
            ledger.verify()


def test_neither_key_nor_fingerprint_is_in_an_entry(known, url):
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as link:
        secrets = [*link.execute(sa.text("SELECT key FROM secret")).scalars()]
        secrets += link.execute(sa.text("SELECT fingerprint FROM sources")).scalars()
    assert len(secrets) == 3
    text = str(rows_of(url))
    assert not any(secret in text for secret in secrets)
    assert "source_digest" in text


def test_a_ledger_on_declared_data_only_has_nothing_to_seal(url, tamper):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        assert "digest" not in str(rows_of(url))
        ledger.verify()


def test_an_older_ledger_is_sealed_when_it_is_first_opened(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    shutil.copyfile(Path(__file__).parent / "old" / "part6.db", tmp_path / "ledger.db")
    for _ in range(2):
        with dpfed.Ledger(url) as ledger:
            ledger.verify()
    assert [row["kind"] for row in rows_of(url)][22:] == ["sealed"]
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as link:
        link.execute(sa.text("DROP TRIGGER secret_no_update"))
        link.execute(sa.text("UPDATE secret SET key = :key"), {"key": "ab" * 32})
    with dpfed.Ledger(url) as ledger:
        with pytest.raises(LedgerCorrupted, match="would look new"):
            ledger.open("second", epsilon=8.0, delta=1e-5, source=b"the records of icu")
        with pytest.raises(LedgerCorrupted, match="would look new"):
            ledger.verify()
