"""Statements of SQLAlchemy Core translated once for each database: for what every single commit does.

Compiling, caching and wrapping the results of a statement costs several times what SQLite needs to run it;
a commit would be dominated by that. Nothing but the speed differs from executing the statement itself.

>>> import sqlalchemy as sa
>>> answer = Prepared(sa.select(sa.bindparam("first", type_=sa.Integer) + sa.bindparam("second", type_=sa.Integer)))
>>> with sa.create_engine("sqlite://").connect() as link:
...     answer.run(link, {"first": 40, "second": 2})
(42,)
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Executable
from sqlalchemy.engine import Connection


class Prepared:
    """A statement whose text is made once for each kind of database."""

    def __init__(self, statement: Executable) -> None:
        self._statement: Any = statement
        self._texts: dict[str, tuple[str, list[str] | None]] = {}

    def run(self, link: Connection, *values: dict[str, Any]) -> Any:
        """The first row; for a statement that gives none, how many rows it changed. Run for each of the values."""
        text, order = self._translated(link)
        given: list[Any] = list(values) if order is None else [[value[name] for name in order] for value in values]
        cursor = link.connection.cursor()
        try:
            if len(given) > 1:
                cursor.executemany(text, given)
            else:
                cursor.execute(text, given[0] if given else ())
            return cursor.fetchone() if cursor.description else cursor.rowcount
        finally:
            cursor.close()

    def _translated(self, link: Connection) -> tuple[str, list[str] | None]:
        if link.dialect.name not in self._texts:
            compiled = self._statement.compile(dialect=link.dialect)
            order = list(compiled.positiontup) if compiled.positional else None
            self._texts[link.dialect.name] = str(compiled), order
        return self._texts[link.dialect.name]
