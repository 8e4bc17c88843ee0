"""Statements of SQLAlchemy Core translated once for each database: for what every single commit does.

Compiling, caching and wrapping the results of a statement costs several times what SQLite needs to run it;
a commit would be dominated by that. Nothing but the speed differs from executing the statement itself.

>>> import sqlalchemy as sa
>>> from collections import namedtuple
>>> question = namedtuple("Question", "first second")(first=40, second=2)
>>> answer = Prepared(sa.select(sa.bindparam("first", type_=sa.Integer) + sa.bindparam("second", type_=sa.Integer)))
>>> with sa.create_engine("sqlite://").connect() as link:
...     answer.run(link, question)
(42,)
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.engine import Connection


class Prepared:
    """A statement whose text is made once for each kind of database."""

    def __init__(self, statement: Executable) -> None:
        self._statement: Any = statement
        self._texts: dict[str, tuple[str, tuple[str, ...] | None]] = {}

    def run(self, link: Connection, *values: Any) -> Any:
        """The first row; for a statement that gives none, how many rows it changed. Run for each of the values.

        Values are named tuples.
        """
        text, order = self._texts.get(link.dialect.name) or self._translated(link)
        connection: Any = link.connection.dbapi_connection
        if len(values) > 1:
            with closing(connection.cursor()) as many:
                many.executemany(text, [_given(value, order) for value in values])
                return many.rowcount
        cursor = connection.execute(text, _given(values[0], order) if values else ())
        return cursor.fetchone() if cursor.description else cursor.rowcount

    def _translated(self, link: Connection) -> tuple[str, tuple[str, ...] | None]:
        compiled = self._statement.compile(dialect=link.dialect)
        order = tuple(compiled.positiontup) if compiled.positional else None
        self._texts[link.dialect.name] = str(compiled), order
        return self._texts[link.dialect.name]


def _given(value: Any, order: tuple[str, ...] | None) -> Any:
    """The value as the database's driver wants it: by name, or in the statement's order."""
    if order is None:
        return value._asdict()
    return value if order == value._fields else [getattr(value, name) for name in order]
