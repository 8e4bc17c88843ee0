"""Addresses: what may stand there, and passwords in whatever form, which nobody ever sees."""

from __future__ import annotations

import contextlib
import logging
import traceback

import pytest
from click.testing import CliRunner
from sqlalchemy.engine import make_url

import dpfed
from dpfed.cli.main import main
from dpfed.config.privacy import LedgerBlock
from dpfed.errors import PrivacyError
from dpfed.ledger.store.address import Address
from dpfed.ledger.store.database import Database

# Nobody listens there, so a connection is refused at once.
NOWHERE = "127.0.0.1:1"
PG = "postgresql+psycopg://"
# Each form of an address with the parts of it that nobody may see.
FORMS = {
    "before the host": (f"{PG}me:s3cr3t@{NOWHERE}/db", ["s3cr3t"]),
    "percent-encoded": (f"{PG}me:s3%40cr%2F3t@{NOWHERE}/db", ["s3%40", "s3@", "cr/3t", "cr%2F3t"]),
    "with an unescaped @": (f"{PG}me:s3@cr3t@{NOWHERE}/db", ["s3@", "cr3t"]),
    "with two unescaped @": (f"{PG}me:s3@cr@3t@{NOWHERE}/db", ["s3@", "cr@"]),
    "with an unescaped slash": (f"{PG}me:s3/cr3t@{NOWHERE}/db", ["s3/", "cr3t"]),
    "with an unescaped ?": (f"{PG}me:s3?cr3t@{NOWHERE}/db", ["s3?", "cr3t"]),
    "with an unescaped #": (f"{PG}me:s3#cr3t@{NOWHERE}/db", ["s3#", "cr3t"]),
    "with a colon": (f"{PG}me:s3:cr3t@{NOWHERE}/db", ["s3:", "cr3t"]),
    "with @ and :": (f"{PG}me:s3@cr3t:x@{NOWHERE}/db", ["s3@", "cr3t"]),
    "in the query": (f"{PG}me@{NOWHERE}/db?password=s3cr3t", ["s3cr3t"]),
    "in the query, encoded": (f"{PG}me@{NOWHERE}/db?password=s3%20cr3t", ["s3%20", "s3 cr", "cr3t"]),
    "in the query, with @": (f"{PG}{NOWHERE}/db?password=s3@cr3t", ["s3@", "cr3t"]),
    "in the query, twice": (f"{PG}{NOWHERE}/db?password=s3cr3t&password=0ther", ["s3cr3t", "0ther"]),
    "as sslpassword": (f"{PG}{NOWHERE}/db?sslpassword=s3cr3t&sslkey=k3y", ["s3cr3t", "k3y"]),
    "under a mistyped key": (f"{PG}{NOWHERE}/db?pasword=s3cr3t", ["s3cr3t"]),
    "as an option's value": (f"{PG}{NOWHERE}/db?channel_binding=s3cr3t", ["s3cr3t"]),
    "in upper case": (f"{PG}{NOWHERE}/db?PASSWORD=s3cr3t", ["s3cr3t"]),
    "as a user": (f"{PG}s3cr3t@{NOWHERE}/db", ["s3cr3t"]),
    "as the database": (f"{PG}/me:s3cr3t@{NOWHERE}/db", ["s3cr3t"]),
    "with a bad port": (f"{PG}me:s3cr3t@127.0.0.1:port/db", ["s3cr3t"]),
    "of another driver": ("mysql://me:s3cr3t@localhost/db", ["s3cr3t"]),
    "of no driver": ("nonsense+more://me:s3cr3t@localhost/db", ["s3cr3t"]),
    "with one slash": (f"postgresql+psycopg:/me:s3cr3t@{NOWHERE}/db", ["s3cr3t"]),
    "without a scheme": (f"me:s3cr3t@{NOWHERE}/db", ["s3cr3t"]),
    "as words of libpq": ("host=127.0.0.1 port=1 password=s3cr3t", ["s3cr3t"]),
    "behind sqlite": (f"sqlite:///me:s3cr3t@{NOWHERE}/db", ["s3cr3t"]),
    "as a host of sqlite": ("sqlite://me:s3cr3t@host/db", ["s3cr3t"]),
    "in an option of sqlite": ("sqlite:///ledger.db?password=s3cr3t", ["s3cr3t"]),
    "alone": ("s3cr3t", ["s3cr3t"]),
    "in a plugin": (f"{PG}{NOWHERE}/db?plugin=s3cr3t", ["s3cr3t"]),
}
SHOWN_AS_A_FILE = "alone"  # it may be the name of a file, which is told by the command line


def everything_said(error: BaseException) -> str:
    """The error in every form in which it reaches somebody, with all that it came from."""
    said, waiting, seen = [], [error], set()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            said += [str(each), repr(each), str(each.args), *traceback.format_exception(each)]
            waiting += [each.__cause__, each.__context__]
    return "\n".join(said)


@pytest.mark.parametrize("form", FORMS)
def test_no_error_name_log_or_chain_of_causes_shows_a_password(form, caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url, hidden = FORMS[form]
    said = []
    with caplog.at_level(logging.DEBUG):
        for given in (url, *([make_url(url)] if is_taken(url) else [])):
            try:
                ledger = dpfed.Ledger(given, wait=2.0, create=False)
            except PrivacyError as error:
                said.append(everything_said(error))
            else:
                said += [repr(ledger), str(ledger), ledger.address]
            with contextlib.suppress(PrivacyError):
                database = Database(given, wait=2.0)
                said += [repr(database), str(database), database.shown, repr(database.address), str(database.address)]
    for secret in hidden:
        assert secret not in "\n".join(said), form
        assert secret not in caplog.text, form
    assert said


def is_taken(url: str) -> bool:
    try:
        Address(url)
    except PrivacyError:
        return False
    return True


@pytest.mark.parametrize("form", [form for form in FORMS if form != SHOWN_AS_A_FILE])
@pytest.mark.parametrize("command", [["ledger", "show"], ["ledger", "verify", "--json"], ["doctor"]], ids=" ".join)
def test_no_command_shows_a_password(form, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url, hidden = FORMS[form]
    found = CliRunner().invoke(main, [*command, "--ledger", url])
    assert found.exit_code in (1, 2), found.output
    assert found.exception is None or isinstance(found.exception, SystemExit)
    for secret in hidden:
        assert secret not in found.output


def test_a_configuration_with_a_password_does_not_show_it_in_its_repr():
    block = LedgerBlock(url=f"{PG}me:s3cr3t@{NOWHERE}/db", account="icu")
    assert "s3cr3t" not in repr(block) + str(block)


def test_a_password_is_used_and_not_shown_by_a_ledger_that_works(postgres, new_database, caplog):
    url = f"{PG}dpfed:s3cr3t@/{new_database()}?host={postgres.directory}&sslpassword=k3y"
    with caplog.at_level(logging.DEBUG), dpfed.Ledger(url) as ledger:
        account = ledger.open("icu", epsilon=8.0, delta=1e-5)
        said = [repr(ledger), ledger.address, repr(account), ledger._store.database.shown]
        with pytest.raises(PrivacyError) as refusal:
            ledger.require("1:" + "0" * 64)
        said.append(everything_said(refusal.value))
    for secret in ("s3cr3t", "k3y"):
        assert secret not in "\n".join(said) + caplog.text


@pytest.mark.parametrize("password", ["a", "5432", "127.0.0.1"])
def test_a_password_that_a_driver_repeats_by_chance_hides_what_it_said(password):
    address = Address(f"{PG}me:{password}@{NOWHERE}/db")
    error = RuntimeError(f"connection to 127.0.0.1:5432 failed for {password}")
    error.__cause__ = ValueError(f"said {password}")
    address.clean(error)
    assert "not shown" in str(error)
    assert "not shown" in str(error.__cause__)


def test_what_a_driver_says_is_kept_where_it_repeats_no_secret():
    error = RuntimeError("connection refused")
    Address(f"{PG}me:s3cr3t@{NOWHERE}/db").clean(error)
    assert str(error) == "connection refused"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///ledger.db", "sqlite:///ledger.db"),
        ("sqlite:////srv/data/ledger.db", "sqlite:////srv/data/ledger.db"),
        (f"{PG}me:pw@db.example:5433/ledger?sslmode=require", f"{PG}db.example:5433/ledger"),
        (f"{PG}me@/ledger?host=/run/postgresql", f"{PG}/ledger"),
    ],
)
def test_what_is_shown_tells_where_the_ledger_is(url, shown):
    assert Address(url).shown == shown
