"""The audits of a run, as lines of its reports: those that may be shared, and those for the owner alone.

>>> import tempfile
>>> run = RunDirectory(tempfile.mkdtemp())
>>> add(run, [{"line": "accounted ε ≤ 4 | audited ε ≥ 1.2"}], is_shareable=True)
>>> read_lines(run)
('accounted ε ≤ 4 | audited ε ≥ 1.2',)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dpfed.errors import InvalidArgument
from dpfed.runs.directory import OWNER_ONLY, RunDirectory, write_durably

AUDITS = "audits.json"  # in the run's folder; under owner/ those made of private values


def add(run: RunDirectory, verdicts: Iterable[Mapping[str, Any]], *, is_shareable: bool) -> None:
    """Add verdicts, each with its `line` and whatever is behind it, to those of the run."""
    path = _find_path(run, is_shareable)
    kept = [*_read(path), *verdicts]
    mode = 0o666 if is_shareable else OWNER_ONLY
    write_durably(path, json.dumps(kept, indent=1, ensure_ascii=False).encode(), mode=mode)


def read_lines(run: RunDirectory, *, is_owner: bool = False) -> tuple[str, ...]:
    """Return the lines of all audits that may be shared, with what is wrong; for the owner, of the others as well."""
    paths = [_find_path(run, True), *([_find_path(run, False)] if is_owner else [])]
    return tuple(_write_line(each) for path in paths for each in _read(path))


def _write_line(verdict: Mapping[str, Any]) -> str:
    is_above = verdict.get("is_refuted") or verdict.get("is_doubtful")
    return f"{verdict['line']}: {verdict.get('remark')}" if is_above else str(verdict["line"])


def _find_path(run: RunDirectory, is_shareable: bool) -> Path:
    return (run.path if is_shareable else run.folder("owner")) / AUDITS


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_bytes())
        if all(isinstance(each["line"], str) for each in found):
            return list(found)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise InvalidArgument("directory", f"{path} holds no audits: put back a copy, or remove it and audit again")
