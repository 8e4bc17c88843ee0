from __future__ import annotations

from pathlib import Path

from alembic.script import ScriptDirectory

from dpfed.ledger.store import database
from dpfed.ledger.store.schema import REVISION


def test_the_code_knows_the_last_migration():
    scripts = ScriptDirectory(str(Path(database.__file__).parent / "migrations"))
    assert scripts.get_heads() == [REVISION]
    assert all(revision.revision <= REVISION for revision in scripts.walk_revisions())
