"""Statements of SQLAlchemy Core translated once for each database: for what every single commit does.

Compiling, caching and wrapping the results of a statement costs several times what SQLite needs to run it;
a commit would be dominated by that. Nothing but the speed differs from executing the statement itself.

>>> import sqlalchemy as sa
>>> numbers = sa.Table("numbers", sa.MetaData(), sa.Column("first", sa.Integer), sa.Column("second", sa.Integer))
>>> insert, read = Prepared(sa.insert(numbers)), Prepared(sa.select(numbers))
>>> with sa.create_engine("sqlite://").connect() as link:
...     numbers.create(link)
...     insert.run_each(link, [(40, 2)])
...     read.first(link)
(40, 2)
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.engine import Connection

# How a driver is given values in the statement's order.
_BY_POSITION = {"sqlite": "qmark", "postgresql": "format"}


class Prepared:
    """A statement whose text is made once for each kind of database; it takes values in the order of its columns."""

    def __init__(self, statement: Executable) -> None:
        self._statement: Any = statement
        self._texts: dict[str, str] = {}

    def text(self, link: Connection) -> str:
        """Return the statement as the driver of the connection takes it."""
        return self._texts.get(link.dialect.name) or self._compile(link)

    def first(self, link: Connection) -> Any:
        """Run the statement and return the first row."""
        connection: Any = link.connection.dbapi_connection
        return connection.execute(self.text(link)).fetchone()

    def run_each(self, link: Connection, values: Iterable[tuple[Any, ...]]) -> None:
        """Run the statement for each of the values."""
        connection: Any = link.connection.dbapi_connection
        with closing(connection.cursor()) as many:
            many.executemany(self.text(link), values)

    def _compile(self, link: Connection) -> str:
        of_database: Any = type(link.dialect)
        compiled = self._statement.compile(dialect=of_database(paramstyle=_BY_POSITION[link.dialect.name]))
        self._texts[link.dialect.name] = str(compiled)
        return self._texts[link.dialect.name]
