"""Which command a configuration is for, where it is given to another one: one sentence in place of a dozen.

>>> explain_other_kind("RunConfig", {"name": "wards", "teachers": {}, "public": "open.csv"}, "wards.yaml")
'wards.yaml describes a study by PATE (it has public and teachers) and not a run: type `dpfed pate run wards.yaml`'
>>> explain_other_kind("RunConfig", {"name": "wards", "rounds": 3, "teachers": {}}, "wards.yaml") is None
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class _Kind(NamedTuple):
    """A kind of file: what it describes, the keys that no other kind has, and the command that takes it."""

    what: str
    keys: tuple[str, ...]
    command: str


KINDS = {
    "RunConfig": _Kind("a run", ("model", "rounds", "cohort", "local", "algorithm"), "run"),
    "PateConfig": _Kind("a study by PATE", ("public", "teachers", "vote", "student_steps"), "pate run"),
    "Sweep": _Kind("a sweep", ("base", "variants"), "sweep"),
}


def explain_other_kind(wanted: str, values: Any, file: str = "") -> str | None:
    """Return what to type for a file of another kind than is wanted; None if it has keys of that one, or of none."""
    if wanted not in KINDS or not isinstance(values, Mapping) or _find_keys(KINDS[wanted], values):
        return None
    found = {name: keys for name, kind in KINDS.items() if (keys := _find_keys(kind, values))}
    if len(found) != 1:
        return None
    ((name, keys),) = found.items()
    path = file or "FILE"
    what = f"{file or 'the file'} describes {KINDS[name].what} (it has {' and '.join(keys[:2])})"
    return f"{what} and not {KINDS[wanted].what}: type `dpfed {KINDS[name].command} {path}`"


def _find_keys(kind: _Kind, values: Mapping[str, Any]) -> list[str]:
    return [key for key in kind.keys if key in values]
