"""Copies of a SQLite ledger that are whole, checked, and no ledger until they are restored.

A copy that is simply put in place of a ledger forgets what was spent since. So a backup says in its schema's version
that it is one, and is refused as a ledger. Restoring it freezes every account and counts what was reserved as
committed: whoever held it may have spent it before the ledger was lost.

>>> is_backup("0004-backup"), is_backup("0004")
(True, False)
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy.engine import Connection

from dpfed.errors import InvalidArgument, LedgerCorrupted, LedgerUnavailable

_MARK = "-backup"
_BESIDE = ("-wal", "-shm", "-journal")


def is_backup(revision: str | None) -> bool:
    """Return whether a schema's version is that of a backup."""
    return revision is not None and revision.endswith(_MARK)


@contextmanager
def drafting(path: Path) -> Iterator[Path]:
    """Give a new file beside the path to work on; it becomes the path when all went well, and else nothing is left."""
    require_free(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))  # it holds the key of the fingerprints
        yield draft
        _publish(draft, path)
    except (OSError, sqlite3.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidArgument("path", f"{path} cannot be written: {why}") from None
    finally:
        for end in ("", *_BESIDE):
            Path(f"{draft}{end}").unlink(missing_ok=True)


def require_free(path: Path) -> None:
    """Refuse a path at which there is something, or the log of what was there, which SQLite would take for its own."""
    for end in ("", *_BESIDE):
        if os.path.lexists(f"{path}{end}"):
            raise InvalidArgument(
                "path",
                f"{path}{end} is there already, and nothing is overwritten: choose another name, or move it away",
            )


def copy_ledger(link: Connection, draft: Path) -> None:
    """Copy the ledger as the transaction sees it; others may go on writing."""
    source: Any = link.connection.dbapi_connection
    with closing(sqlite3.connect(draft)) as target:
        source.backup(target)


def mark_as_backup(draft: Path) -> None:
    """Make a backup of the copy: a file that no ledger is opened from."""
    with closing(sqlite3.connect(draft)) as link, link:
        link.execute("UPDATE alembic_version SET version_num = version_num || ?", [_MARK])


def copy_backup(backup: Path, draft: Path) -> None:
    """Copy a backup, or the plain copy of a ledger, and make a ledger of it again."""
    for path, is_wanted in [(backup, True), *((Path(f"{backup}{end}"), False) for end in _BESIDE)]:
        if path.exists() != is_wanted:
            what = f"there is no backup at {path}" if is_wanted else f"{path} is there, so that {backup} is not whole"
            raise InvalidArgument("backup", f"{what}: give a file that dpfed ledger backup has made")
    address = f"file:{quote(str(backup.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as source, closing(sqlite3.connect(draft)) as target:
            source.backup(target)
            with target:
                target.execute("UPDATE alembic_version SET version_num = replace(version_num, ?, '')", [_MARK])
    except sqlite3.Error as error:
        raise LedgerCorrupted(f"the backup {backup} is damaged, or is no ledger: {error}") from None


def require_ledger(revision: str | None, shown: str) -> None:
    """Refuse to use a backup as a ledger."""
    if is_backup(revision):
        raise LedgerUnavailable(
            f"the file at {shown} is a backup, and what was spent since it was made is not in it: make a ledger of it "
            "with dpfed ledger restore FILE, which freezes its accounts"
        )


def _publish(draft: Path, path: Path) -> None:
    """Give the draft its name, durably, unless something has got that name meanwhile."""
    _sync(draft)
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        require_free(path)
        draft.rename(path)
    draft.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
