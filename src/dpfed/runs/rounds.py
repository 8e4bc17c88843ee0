"""The records of rounds.jsonl and owner.jsonl, each checked when it is read: who resumes or reports relies on them.

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
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.runs.digests import digest

_DIGEST = re.compile(rb', "digest": "([0-9a-f]{64})"}')  # the end of a line
HEAD = re.compile(r"\d{1,18}:\S+")
PUBLIC = ("round", "status", "spent", "metrics", "head")  # what a whole record for everyone has
OWNER = ("round", "seconds", "metrics", "refused")  # and one for the owner
RARE = ("breakdown", "quarantine")  # what a record of the owner has only where there is something to say


class ScoreRecord(TypedDict):
    """One number about a model, null if it was not finite, and the mark that says whether a guarantee covers it."""

    value: float | None
    mark: str


class StatementRecord(TypedDict):
    """A guarantee as plain values."""

    epsilon: float
    delta: float
    unit: str
    adjacency: str


class FigureRecord(TypedDict):
    """A released figure, null if the noise left none, and its interval at 95 %."""

    value: float | None
    low: float
    high: float


class ReleasedRecord(TypedDict):
    """What was released about a model: noised counts in steps of a grid, by their kind, and figures of them."""

    kind: str
    grid: int
    counts: list[int]
    figures: dict[str, FigureRecord]


class RoundRecord(TypedDict, total=False):
    """A line of rounds.jsonl: what everyone may see of a round. `noise` is there if the noise can be predicted.

    `simulation` is there if clients were made to attack, for a test: nothing that it led to is for use.
    """

    round: int
    status: str
    cost: list[StatementRecord]
    spent: list[StatementRecord]
    worst_client: str | None
    metrics: dict[str, ScoreRecord]
    head: str | None
    noise: str
    simulation: str
    released: ReleasedRecord


class OwnerRecord(TypedDict, total=False):
    """A line of owner.jsonl: what only the owner may see of a round. Those of an older version have no errors."""

    round: int
    seconds: float
    metrics: dict[str, ScoreRecord]
    contributed: list[str]
    reused: list[str]
    exhausted: list[str]
    failed: list[str]
    refused: dict[str, str]
    errors: dict[str, str]
    breakdown: str
    quarantine: list[dict[str, Any]]


@dataclass(frozen=True)
class Participation:
    """Who did what in a round: the owner's view. `reused` are updates stored before a crash.

    `errors` are what failed clients raised. Their texts may hold records, so only the names of their types are written
    down, and these are what is read back, with the number of the round and its seconds. `breakdown` says why the model
    was left as it is where too few updates came for the rule; `quarantine` has every decision, with its reason.
    """

    contributed: tuple[str, ...] = ()
    reused: tuple[str, ...] = ()
    exhausted: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, BaseException | str] = field(default_factory=dict, repr=False, compare=False)
    breakdown: str = ""
    quarantine: tuple[Mapping[str, Any], ...] = ()
    round: int = field(default=0, kw_only=True, compare=False)
    seconds: float = field(default=math.nan, kw_only=True, compare=False, repr=False)

    @classmethod
    def of(cls, record: OwnerRecord) -> Participation:
        """Return who did what by a line of owner.jsonl."""
        return cls(
            contributed=tuple(record.get("contributed", ())),
            reused=tuple(record.get("reused", ())),
            exhausted=tuple(record.get("exhausted", ())),
            failed=tuple(record.get("failed", ())),
            refused=dict(record["refused"]),
            errors=dict(record.get("errors", {})),
            breakdown=record.get("breakdown", ""),
            quarantine=tuple(record.get("quarantine", ())),
            round=record["round"],
            seconds=record["seconds"],
        )

    @property
    def is_unanswered(self) -> bool:
        """Whether clients were asked and all of them failed or were refused."""
        return bool(self.failed or self.refused) and not (self.contributed or self.reused)

    @property
    def error_types(self) -> dict[str, str]:
        """The names of the types of errors, by client."""
        return {
            client: error if isinstance(error, str) else type(error).__name__ for client, error in self.errors.items()
        }

    def to_record(self) -> dict[str, Any]:
        """Return the participation's part of a line of owner.jsonl."""
        often = {**vars(self), "errors": self.error_types}
        return {name: value for name, value in often.items() if value or name not in RARE}


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
                raise changed_error(path, f"line {number} has no digest")
            body, known = line, digest(content[:place])
        else:
            body = line[: end.start()] + b"}"
            known, may_lack = _digest_of(known, body), False
            if end.end() != len(line) or end[1].decode() != known:
                raise changed_error(path, f"line {number} does not match its digest")
        found.append((_parse_record(body, f"{path}, line {number}", needed), known))
    return found


def drop_repeated(lines: Sequence[tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
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


def changed_error(path: Path, why: str) -> InvalidArgument:
    """Return the refusal of a file that is not what the run has written."""
    return InvalidArgument("directory", f"{path} is not what this run wrote ({why}): put back a copy")


def _end_of_whole_lines(stream: Any, place: int) -> int:
    """Return where the last line that ends before that place ends, reading only the end of the file."""
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


def _parse_record(line: bytes, place: str, needed: Sequence[str]) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):
        raise _record_error(place, "it is no JSON") from None
    missing = [name for name in needed if not isinstance(record, dict) or name not in record]
    if missing:
        raise _record_error(place, f"it has no {missing[0]}")
    for name, has_form in FORMS.items():
        if name in record and not has_form(record[name]):
            raise _record_error(place, f"see {name}")
    return record


def _record_error(place: str, what: str) -> InvalidArgument:
    remedy = "put back a copy of the file, or begin another run"
    return InvalidArgument("directory", f"{place} is no record of a round ({what}): {remedy}")


def is_head(value: Any) -> bool:
    """Return whether the value is the head of a ledger, as text."""
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


def _is_figure(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"value", "low", "high"}:
        return False
    return (value["value"] is None or _is_number(value["value"])) and _is_number(value["low"] + value["high"])


def _is_released(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"kind", "grid", "counts", "figures"}:
        return False
    counts = value["counts"]
    has_counts = isinstance(counts, list) and all(type(each) is int for each in counts) and _is_whole(value["grid"])
    return has_counts and _is_text(value["kind"]) and _is_mapping_to(_is_figure)(value["figures"])


def _is_promises(value: Any) -> bool:
    try:
        return isinstance(value, list) and all(isinstance(Guarantee(**each), Guarantee) for each in value)
    except (TypeError, ValueError):
        return False


def _is_decision(value: Any) -> bool:
    texts = ("client", "kind", "reason")
    return isinstance(value, dict) and _is_whole(value.get("round")) and all(_is_text(value.get(key)) for key in texts)


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
    "simulation": _is_text,
    "breakdown": _is_text,
    "released": _is_released,
    "quarantine": lambda value: isinstance(value, list) and all(map(_is_decision, value)),
    **dict.fromkeys(("contributed", "reused", "exhausted", "failed"), _is_texts),
    **dict.fromkeys(("refused", "errors"), _is_mapping_to(_is_text)),
}
