"""The lines of rounds.jsonl and owner.jsonl, each checked when it is read: whoever resumes or reports relies on them.

A line that something else wrote, or that a disk has damaged, is refused with its number, before a round is run.

>>> from pathlib import Path
>>> _ = Path("rounds.jsonl").write_text('{"round": 1, "head": "3:ab"}\\n{"round": "two"}\\n')
>>> read_records(Path("rounds.jsonl"))
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: rounds.jsonl, line 2 is no record of a round (see round): put back a copy of the file, ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee

HEAD = re.compile(r"\d{1,18}:\S+")
PUBLIC = ("round", "status", "spent", "metrics", "head")  # what a whole record for everyone has
OWNER = ("round", "seconds", "metrics", "refused")  # and one for the owner


def read_records(path: Path, needed: Sequence[str] = ("round",)) -> list[dict[str, Any]]:
    """Return the records in order; a round that was written twice because of a crash counts once.

    Each must have what is `needed`, and whatever it has must have the form that dpfed writes.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # what has no end is half a line of a crash
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        record = _record(line, f"{path}, line {number}", needed)
        while records and records[-1]["round"] >= record["round"]:  # done again after a crash, and all that followed
            records.pop()
        records.append(record)
    return records


def _record(line: bytes, place: str, needed: Sequence[str]) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):
        raise _refusal(place, "it is no JSON") from None
    missing = [name for name in needed if not isinstance(record, dict) or name not in record]
    if missing:
        raise _refusal(place, f"it has no {missing[0]}")
    for name, has_form in FORMS.items():
        if name in record and not has_form(record[name]):
            raise _refusal(place, f"see {name}")
    return record


def _refusal(place: str, what: str) -> InvalidArgument:
    remedy = "put back a copy of the file, or begin another run"
    return InvalidArgument("directory", f"{place} is no record of a round ({what}): {remedy}")


def is_head(value: Any) -> bool:
    """Whether the value is the head of a ledger, as text."""
    return isinstance(value, str) and HEAD.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_mapping_to(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(is_one, value.values()))


def _is_score(value: Any) -> bool:
    if not isinstance(value, dict) or not {"value", "mark"} <= set(value):
        return False
    return (value["value"] is None or _is_number(value["value"])) and _is_text(value["mark"])


def _is_promises(value: Any) -> bool:
    try:
        return isinstance(value, list) and all(isinstance(Guarantee(**each), Guarantee) for each in value)
    except (TypeError, ValueError):
        return False


FORMS: dict[str, Callable[[Any], bool]] = {
    "round": _is_whole,
    "status": _is_text,
    "head": lambda value: value is None or is_head(value),
    "worst_client": lambda value: value is None or _is_text(value),
    "noise": _is_text,
    "cost": _is_promises,
    "spent": _is_promises,
    "metrics": _is_mapping_to(_is_score),
    "seconds": _is_number,
    **dict.fromkeys(("contributed", "reused", "exhausted", "failed"), _is_texts),
    **dict.fromkeys(("refused", "errors"), _is_mapping_to(_is_text)),
}
