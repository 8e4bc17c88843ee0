"""The tables of a ledger, the same on SQLite and on PostgreSQL.

``entries`` only ever grows; triggers refuse everything else. ``head`` holds the last number and digest and is
the lock that every writer takes. ``sources`` and ``secret`` never leave the database: a fingerprint tells
somebody who has the data that it was used.

>>> [table.name for table in METADATA.sorted_tables]
['entries', 'head', 'secret', 'sources']
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table, Text, text

# The last migration; opening a ledger brings it there.
REVISION = "0004"

METADATA = MetaData()

ENTRIES = Table(
    "entries",
    METADATA,
    # SQLite makes only an INTEGER the row's own address.
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("at", String(32), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("account", String(128)),
    Column("run", String(128)),
    Column("item", BigInteger),
    Column("origin", String(128)),
    Column("event", Text),
    Column("times", BigInteger),
    Column("left", BigInteger),
    Column("cost", Text),
    Column("state", Text),
    Column("body", Text, nullable=False),
    Column("code", String(64), nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    # With the item, so that whoever looks for its last entry from the end of the account reads the index alone.
    Index("entries_of_account", "account", "seq", "item"),
)

# Each commit writes a page for each index it touches, so what only few entries have is indexed for those alone.
# A query that is to use such an index must say the same words, hence the conditions are written out.
OPENED = text("kind = 'opened'")
HELD = text("kind IN ('leased', 'reserved')")
ENDED = text('"left" = 0')  # the last entry of an item, all of which is committed or released
_PARTIAL = (
    (Index("entries_opened", ENTRIES.c.seq), OPENED),
    (Index("entries_ended", ENTRIES.c.item), ENDED),
    (Index("entries_of_run", ENTRIES.c.run, ENTRIES.c.seq), HELD),
)

HEAD = Table(
    "head",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),
)

SOURCES = Table(
    "sources",
    METADATA,
    Column("name", String(128), primary_key=True),
    Column("fingerprint", String(64), nullable=False, unique=True),
)

SECRET = Table(
    "secret",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("key", String(64), nullable=False),
)


def set_conditions(dialect: str) -> None:
    """Say on this database which entries are in each partial index.

    Not above: SQLAlchemy loads the whole dialect of each database that an index names, and a ledger uses one.
    """
    for index, condition in _PARTIAL:
        index.dialect_kwargs[f"{dialect}_where"] = condition
