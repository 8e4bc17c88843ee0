"""The lines of rounds.jsonl and owner.jsonl, each checked when it is read: whoever resumes or reports relies on them.

Every line ends in a digest of itself and of all before it. One that something else wrote or changed, or that a disk has
damaged, is refused with its number, before a round is run.

>>> from pathlib import Path
>>> path = Path("rounds.jsonl")
>>> append(path, {"round": 1, "head": "3:ab"}, mode=0o600)
>>> [record for record, _ in read(path)]
[{'head': '3:ab', 'round': 1}]
>>> _ = path.write_text(path.read_text().replace("3:ab", "3:cd"))
>>> read(path)
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: rounds.jsonl is not what this run wrote (line 1 does not match its digest): put back ...
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfed.digests import digest
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee

_DIGEST = re.compile(rb', "digest": "([0-9a-f]{64})"}')  # the end of a line
HEAD = re.compile(r"\d{1,18}:\S+")
PUBLIC = ("round", "status", "spent", "metrics", "head")  # what a whole record for everyone has
OWNER = ("round", "seconds", "metrics", "refused")  # and one for the owner


def append(path: Path, record: Mapping[str, Any], mode: int) -> None:
    """Add a record to the file, durably; half a line of a crash is taken away."""
    body = json.dumps(dict(record), sort_keys=True, allow_nan=False).encode()
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, mode), "r+b") as stream:
        end = _end_of_whole_lines(stream, stream.seek(0, os.SEEK_END))
        known = _digest_before(stream, end)
        stream.seek(end)
        stream.truncate()
        stream.write(body[:-1] + f', "digest": "{_digest_of(known, body)}"}}\n'.encode())
        stream.flush()
        os.fsync(stream.fileno())


def read(path: Path, needed: Sequence[str] = ("round",), *, may_lack: bool = False) -> list[tuple[dict[str, Any], str]]:
    """Return the records in the file's whole lines, each with the digest of all up to it.

    Each must have what is `needed`, and whatever it has must have the form that dpfed writes. Lines of an older version
    have no digest (`may_lack`), and stand before all others.
    """
    content = path.read_bytes() if path.exists() else b""
    found: list[tuple[dict[str, Any], str]] = []
    known, place = digest(), 0
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        place += len(line) + 1
        end = _DIGEST.search(line)
        if end is None:
            if not may_lack:
                raise changed(path, f"line {number} has no digest")
            body, known = line, digest(content[:place])
        else:
            body = line[: end.start()] + b"}"
            known, may_lack = _digest_of(known, body), False
            if end.end() != len(line) or end[1].decode() != known:
                raise changed(path, f"line {number} does not match its digest")
        found.append((_record(body, f"{path}, line {number}", needed), known))
    return found


def last_of_each(lines: Sequence[tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
    """Return the records in order; a round that was written twice because of a crash counts once."""
    records: list[dict[str, Any]] = []
    for record, _ in lines:
        while records and records[-1]["round"] >= record["round"]:  # done again after a crash, and all that followed
            records.pop()
        records.append(record)
    return records


def last_digest(path: Path) -> str:
    """Return the digest of all whole lines of the file."""
    if not path.exists():
        return digest()
    with path.open("rb") as stream:
        return _digest_before(stream, _end_of_whole_lines(stream, stream.seek(0, os.SEEK_END)))


def changed(path: Path, why: str) -> InvalidArgument:
    """Return the refusal of a file that is not what the run has written."""
    return InvalidArgument("directory", f"{path} is not what this run wrote ({why}): put back a copy")


def _end_of_whole_lines(stream: Any, place: int) -> int:
    """Where the last line that ends before that place ends; only the end of the file is read."""
    while place:
        start = max(0, place - 4096)
        stream.seek(start)
        found = stream.read(place - start).rfind(b"\n")
        if found >= 0:
            return int(start + found + 1)
        place = start
    return 0


def _digest_of(before: str, body: bytes) -> str:
    return digest(before.encode(), body)


def _digest_before(stream: Any, end: int) -> str:
    """Return the digest of all lines up to `end`: that of the last, or of all bytes where an older version wrote it."""
    start = _end_of_whole_lines(stream, end - 1) if end else 0
    stream.seek(start)
    found = _DIGEST.search(stream.read(end - start))
    if found is not None:
        return found[1].decode()
    stream.seek(0)
    return digest(stream.read(end)) if end else digest()


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
