"""The triggers by which a database refuses to rewrite a ledger: `verify` sees whether they are as they were made.

Whoever dropped one may have put it back after rewriting, and the chain tells that. But a ledger without them takes
whatever comes next, so it is not sound.

>>> sorted(TRIGGERS)
['postgresql', 'sqlite']
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dpfed.errors import LedgerCorrupted

# The beginning of the digest of what each trigger does.
TRIGGERS = {
    "sqlite": {
        "entries_continue": "074f36825b50b98b",
        "entries_move_head": "d909797ca767ac26",
        "entries_no_delete": "0d121f21ac878e07",
        "entries_no_update": "0da01d71478515bc",
        "head_no_delete": "38b3d4f328da08d6",
        "head_no_replace": "007383f5f62e69dd",
        "head_only_grows": "a66d700ac43104c5",
        "secret_no_delete": "9726261e89971dc4",
        "secret_no_replace": "fd2c3adf68610b70",
        "secret_no_update": "d68518ce4b45825b",
        "sources_no_delete": "40d9e0ba35658133",
        "sources_no_replace": "aaf9f4e21fa44898",
        "sources_no_update": "50e86e83ab4014ac",
    },
    "postgresql": {
        "entries_append_only": "fd07e336e7379b28",
        "entries_continue": "520d49fc3639e5d1",
        "head_no_delete": "49cced772df5aa0c",
        "head_only_grows": "2e6bbb00e0d71890",
        "secret_append_only": "f4d8fb7b7d8a3dec",
        "sources_append_only": "5d6f30c13aac7522",
    },
}
_QUERIES = {
    "sqlite": sa.text("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'"),
    "postgresql": sa.text(
        "SELECT t.tgname, c.relname, concat_ws(' ', t.tgtype, t.tgenabled, p.proname, p.prosrc, t.tgqual, t.tgattr) "
        "FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid "
        "WHERE NOT t.tgisinternal AND c.relnamespace = current_schema()::regnamespace"
    ),
}


def require_sound(link: Connection) -> None:
    """Refuse a ledger whose triggers are not those that it was made with."""
    expected, found = TRIGGERS[link.dialect.name], dict(_read_triggers(link))
    for name in sorted({*expected, *found}):
        if found.get(name) != expected.get(name):
            what = "is missing" if name not in found else "was changed" if name in expected else "is not the ledger's"
            raise LedgerCorrupted(
                f"the trigger {name} of the ledger {what}, so entries can be rewritten or slipped in from now on: "
                "find out who did it, and restore the ledger from a backup"
            )


def _read_triggers(link: Connection) -> Iterator[tuple[str, str]]:
    for name, table, text in link.execute(_QUERIES[link.dialect.name]):
        words = " ".join(str(text).split())
        shown = words if link.dialect.name == "sqlite" else f"{table} {words}"
        yield str(name), hashlib.sha256(shown.encode()).hexdigest()[:16]
