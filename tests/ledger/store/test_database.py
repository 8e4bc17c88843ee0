"""Addresses, waiting, and SQL that is never made of strings."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import sqlalchemy as sa

import dpfed
from dpfed.errors import InvalidArgument
from dpfed.events import Gaussian
from dpfed.ledger.store import database
from dpfed.ledger.store.database import Database
from worlds import sqlite_path

SOURCE = Path(database.__file__).parent
EXECUTES = {"text", "execute", "executemany", "executescript", "exec_driver_sql", "scalar", "scalars"}
MADE_OF_STRINGS = ast.JoinedStr | ast.BinOp


@pytest.mark.parametrize(
    "url",
    [
        None,
        5,
        b"sqlite:///x",
        "",
        "ledger.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///file:x?mode=memory&cache=shared&uri=true",
        "mysql://host/db",
        "postgresql://host/db",
        "postgresql+asyncpg://host/db",
        "sqlite+aiosqlite:///x",
        "nonsense://x",
        "postgresql+psycopg://u:secret@host:port/db",
        [],
    ],
    ids=repr,
)
def test_an_address_that_could_not_keep_a_ledger_is_refused(url):
    with pytest.raises(InvalidArgument) as refusal:
        dpfed.Ledger(url)
    assert refusal.value.argument == "url"
    assert "secret" not in str(refusal.value)


def test_a_password_is_never_shown():
    for url in (
        "postgresql+psycopg://u:s3cret@host/db",
        "mysql://u:s3cret@host/db",
        "postgresql+psycopg://u:s3cret@h:x/d",
    ):
        try:
            shown = Database(url, wait=1.0).shown
        except InvalidArgument as error:
            shown = str(error)
        assert "s3cret" not in shown


@pytest.mark.parametrize("wait", [0, -1, float("nan"), float("inf"), "30", None, True, [1]], ids=repr)
def test_a_wait_that_is_no_time_is_refused(sqlite_url, wait):
    with pytest.raises(InvalidArgument) as refusal:
        dpfed.Ledger(sqlite_url, wait=wait)
    assert refusal.value.argument == "wait"


@pytest.mark.parametrize("wait", [1e-4, 1e9, 1e300])
def test_any_positive_wait_is_understood_by_both_databases(url, wait):
    with dpfed.Ledger(url, wait=wait) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        assert ledger.head().sequence == 1


def test_the_log_of_small_commits_stays_short_on_a_new_ledger(sqlite_url):
    event = Gaussian(100.0)
    with dpfed.Ledger(sqlite_url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        reservation = ledger.reserve({"icu": {event: 1_000}}, run="study-12")
        for _ in range(600):  # of four pages each, and some more
            reservation.commit({"icu": event})
        assert Path(f"{sqlite_path(sqlite_url)}-wal").stat().st_size < 5_000_000


def test_the_log_of_large_commits_goes_to_the_file_less_often(sqlite_url):
    names = [f"a{number}" for number in range(200)]
    with dpfed.Ledger(sqlite_url) as ledger:
        for name in names:
            ledger.open(name, epsilon=8.0, delta=1e-5)
        assert checkpoint_interval(ledger) == 2_000
        ledger.reserve({name: Gaussian(100.0) for name in names}, run="study-12")
        assert checkpoint_interval(ledger) == 16_000


def checkpoint_interval(ledger: dpfed.Ledger) -> int:
    with ledger._store.writing() as journal:
        return journal.link.execute(sa.text("PRAGMA wal_autocheckpoint")).scalar()


def test_a_closed_ledger_opens_again_when_it_is_used(url):
    ledger = dpfed.Ledger(url)
    ledger.open("icu", epsilon=8.0, delta=1e-5)
    ledger.close()
    assert ledger.balance("icu").spent == 0
    ledger.close()


def test_a_ledger_may_be_given_as_a_path(tmp_path):
    with dpfed.Ledger(tmp_path / "a b%20c?d.db") as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["a b%20c?d.db"]


def offences(tree: ast.AST):
    """Calls that hand SQL made of strings to the database."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = [part for part in ast.walk(node.args[0]) if not isinstance(part, ast.expr_context)]
        if name in EXECUTES and _is_made_of_strings(given):
            yield node.lineno


def _is_made_of_strings(parts: list[ast.AST]) -> bool:
    has_text = any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts)
    is_formatted = any(isinstance(part, ast.Attribute) and part.attr in ("format", "join", "replace") for part in parts)
    made = [part for part in parts if isinstance(part, MADE_OF_STRINGS)]
    is_operated = any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod | ast.Add) for part in made)
    return any(isinstance(part, ast.JoinedStr) for part in made) or (has_text and (is_formatted or is_operated))


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.name)
def test_no_sql_is_built_from_strings(path):
    assert list(offences(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "code",
    [
        'link.execute(sa.text(f"SELECT {x}"))',
        'link.exec_driver_sql("SELECT " + x)',
        'link.execute("SELECT %s" % x)',
        'cursor.execute("SELECT {}".format(x))',
        'sa.text(",".join(["a", x]))',
    ],
)
def test_sql_built_from_strings_would_be_found(code):
    assert list(offences(ast.parse(code))) == [1] or len(list(offences(ast.parse(code)))) == 2


def test_hostile_words_reach_the_database_as_values_only(url):
    hostile = "'; DROP TABLE entries; -- \" ` $$ %s :x ? \\ {0}"
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5, owner=hostile, purpose=hostile, labels={"a": hostile})
        ledger.freeze("icu", reason=hostile)
        assert ledger.balance("icu").account.purpose == hostile
        assert ledger.statement("icu").lines[-1].note == hostile
        assert ledger.verify().rows == 2


def test_nobody_else_can_read_a_new_ledger(tmp_path):
    file = tmp_path / "ledger.db"
    with dpfed.Ledger(f"sqlite:///{file}") as ledger:
        ledger.open("icu", epsilon=1.0, delta=1e-5)
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    file.chmod(0o640)
    dpfed.Ledger(f"sqlite:///{file}").close()
    assert file.stat().st_mode & 0o777 == 0o640
