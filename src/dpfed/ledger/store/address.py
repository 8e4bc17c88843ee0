"""A ledger's address: what a driver connects to, and the little of it that may be shown.

A password can stand before the host, in the query, or where it does not belong because an @ was not escaped. So no part
is shown that was not recognised as something else, and what a driver says is kept only if it repeats no secret.

>>> Address("postgresql+psycopg://study:s3cret@db.example/ledger?sslpassword=s3cret")
postgresql+psycopg://db.example/ledger
>>> Address("mysql://study:s3cret@localhost/ledger")
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: url must begin with sqlite:/// or postgresql+psycopg://, got one that begins with mysql://
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from dpfed.errors import InvalidArgument

CONSENT = ("network_disk", "i-know")
HIDDEN = "what was said is not shown here, because it repeats a part of the address"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9]{0,20}(\+[A-Za-z0-9]{1,20})?://")
# What a name of a host or of a database is made of, where it is nothing else.
_PLAIN = re.compile(r"[A-Za-z0-9_.\[\]:-]*")
# A path that may be an address typed wrongly: u:password@host, password=…
_SUSPECT = re.compile(r"[@=]|:/")
# Keys of a PostgreSQL address whose values its driver may repeat.
_OPEN_KEYS = {"host", "hostaddr", "port", "dbname", "user", "sslmode", "connect_timeout", "application_name"}


class Address:
    """The address of a ledger, with its secrets kept out of every text."""

    def __init__(self, given: str | Path | URL) -> None:
        parsed = _parse(given)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self.accepts_network = dict(parsed.query) == dict([CONSENT])
        self.shown = _hide_secrets(parsed)
        self._secrets = tuple(_find_secrets(parsed))
        # Absolute from now on: a process that changes its directory keeps its ledger.
        self.url = (
            parsed.set(database=str(Path(str(parsed.database)).absolute()), query={}) if self.is_sqlite else parsed
        )

    @property
    def file(self) -> Path:
        """The file of a SQLite ledger."""
        return Path(str(self.url.database))

    def clean(self, error: BaseException) -> None:
        """Remove from the error, and from all that it came from, whatever repeats a secret."""
        for each in _walk_chain(error):
            said = [str(each), *map(str, each.args)]
            if any(secret in text for secret in self._secrets for text in said):
                each.args = (HIDDEN,)

    def __repr__(self) -> str:
        return self.shown


def _parse(given: str | Path | URL) -> URL:
    """Return the address if a ledger can be there."""
    if isinstance(given, Path):
        given = URL.create("sqlite", database=str(given))
    parsed = _read(given)
    if parsed is None:
        raise InvalidArgument(
            "url",
            f"url must be a database URL such as sqlite:///ledger.db, got {_describe(given)} (its text is not shown)",
        )
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise InvalidArgument(
            "url",
            f"url must begin with sqlite:/// or postgresql+psycopg://, got {_describe(f'{parsed.drivername}://')}",
        )
    (_require_file if parsed.get_backend_name() == "sqlite" else _require_server)(given, parsed)
    return parsed


def _read(given: object) -> URL | None:
    try:
        return make_url(given) if isinstance(given, str | URL) else None
    except (ArgumentError, NoSuchModuleError, ValueError, AttributeError):
        return None


def _describe(given: object) -> str:
    """Describe what was given, without its content."""
    scheme = _SCHEME.match(given) if isinstance(given, str) else None
    if scheme:
        return f"one that begins with {scheme[0]}"
    return "text that is none" if isinstance(given, str) else f"a {type(given).__name__}"


def _require_file(given: str | URL, parsed: URL) -> None:
    """Refuse addresses of SQLite that are not a plain file."""
    del given
    if (parsed.database or "").startswith("file:"):
        raise InvalidArgument("url", "a ledger is a plain file: give its path, sqlite:///ledger.db, and no file: URI")
    if parsed.database in (None, "", ":memory:"):
        raise InvalidArgument("url", "a ledger in memory would forget what was spent: give a file, sqlite:///ledger.db")
    if parsed.host or "\0" in str(parsed.database):
        raise InvalidArgument(
            "url", "url must name a file after sqlite:/// (three slashes), such as sqlite:///ledger.db"
        )
    if parsed.query and dict(parsed.query) != dict([CONSENT]):
        raise InvalidArgument(
            "url", f"a SQLite url takes no options except ?{'='.join(CONSENT)}: leave out what stands behind the ?"
        )


def _require_server(given: str | URL, parsed: URL) -> None:
    """Refuse addresses of PostgreSQL in which a password may have been taken for something else."""
    before, _, rest = str(given).partition("://")[2].partition("/") if isinstance(given, str) else ("", "", "")
    authority, _, query = before.partition("?")
    if authority.count("@") > 1 or "@" in query + rest or "@" in f"{parsed.host or ''}{parsed.database or ''}":
        raise InvalidArgument(
            "url",
            "url has an @ besides the one before the host (its text is not shown): write %40 for any other",
        )
    if "plugin" in parsed.query:
        raise InvalidArgument("url", "url must not load a plugin: leave out ?plugin=")


def _hide_secrets(parsed: URL) -> str:
    if parsed.get_backend_name() == "sqlite":
        path = str(parsed.database)
        return f"{parsed.drivername}:///{'***' if _SUSPECT.search(path) else path}"
    port = "" if parsed.port is None else f":{parsed.port}"
    return f"{parsed.drivername}://{_plain(parsed.host)}{port}/{_plain(parsed.database)}"


def _plain(name: str | None) -> str:
    return (name or "") if _PLAIN.fullmatch(name or "") else "***"


def _find_secrets(parsed: URL) -> Iterator[str]:
    """Yield each secret in the forms in which an error may repeat it."""
    values = [str(parsed.password or "")]
    for key, value in parsed.query.items():
        given = (value,) if isinstance(value, str) else value
        values += [each for each in given if key not in _OPEN_KEYS or "@" in each]
    if parsed.get_backend_name() == "sqlite":
        values = [str(parsed.database)] if _SUSPECT.search(str(parsed.database)) else []
    for value in filter(None, values):
        yield from dict.fromkeys((value, quote(value, safe=""), quote_plus(value), repr(value)[1:-1]))


def _walk_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and all that it came from, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__, getattr(each, "orig", None)]
