"""A run's directory: the plan, what every round released, and where to go on after a crash.

Only released values and facts of the ledger are in it, so all of it may be shown. A file appears whole or not at
all (written beside, synced, renamed), and no pickle is ever read::

    plan.json                     the plan, constants only
    rounds.jsonl                  one line per round: who contributed, the ledger's head
    released/round-0006-02.npz    the noised update of the plan's third client (by name) and the head it was charged at
    checkpoints/round-0006.npz    the model after round 6 and the head

>>> import tempfile
>>> import numpy as np
>>> run = RunDirectory(tempfile.mkdtemp())
>>> run.write_checkpoint(Checkpoint(round=3, weights=np.zeros(2), head="12:ab34"))
>>> run.checkpoint()
Checkpoint(round=3, weights=array([0., 0.]), head='12:ab34')
"""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.errors import InvalidArgument
from dpfed.plan import Plan
from dpfed.structure import Floats


@dataclass(frozen=True)
class Checkpoint:
    """The model after so many rounds, and the head of the ledger that paid for them (never a balance)."""

    round: int
    weights: Floats
    head: str


@dataclass(frozen=True)
class Update:
    """What one client released, already noised, and the ledger's head when it was charged."""

    client: str
    value: Floats
    head: str


class RunDirectory:
    """Reads and writes one run's files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._released, self._checkpoints = self.path / "released", self.path / "checkpoints"
        for part in (self._released, self._checkpoints):
            part.mkdir(parents=True, exist_ok=True)

    def begin(self, plan: Plan) -> None:
        """Writes the plan; a directory that already holds another one is refused."""
        if not (self.path / "plan.json").exists():
            write_durably(self.path / "plan.json", plan.to_json().encode())
        elif self.plan != plan:
            message = f"{self.path} holds another plan than this one: go on with that one or choose a new directory"
            raise InvalidArgument("directory", message)

    @cached_property
    def plan(self) -> Plan:
        """The plan of this run."""
        return Plan.from_json((self.path / "plan.json").read_text(encoding="utf-8"))

    def write_update(self, round_number: int, update: Update) -> None:
        """Stores what a client released; from here on the round may use it for nothing, also after a crash."""
        path = self._update_path(round_number, update.client)
        write_durably(path, _packed(value=update.value, head=np.array(update.head)))

    def updates(self, round_number: int) -> dict[str, Update]:
        """What was stored of that round, by client."""
        paths = {client: self._update_path(round_number, client) for client in self.plan.local}
        return {client: Update(client, *_unpacked(path, "value")) for client, path in paths.items() if path.exists()}

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Stores the model after a round."""
        path = self._checkpoints / f"round-{checkpoint.round:04d}.npz"
        write_durably(path, _packed(weights=checkpoint.weights, head=np.array(checkpoint.head)))

    def checkpoints(self) -> Iterator[Checkpoint]:
        """The models of all rounds so far, the first before any training."""
        for path in sorted(self._checkpoints.glob("round-*.npz")):
            yield Checkpoint(int(path.stem.removeprefix("round-")), *_unpacked(path, "weights"))

    def checkpoint(self) -> Checkpoint | None:
        """The newest model; None before enrolment."""
        return max(self.checkpoints(), key=lambda checkpoint: checkpoint.round, default=None)

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds the public record of a round to rounds.jsonl, durably; half a line of a crash is cut off first."""
        path = self.path / "rounds.jsonl"
        with path.open("a+b") as stream:
            stream.seek(0)
            stream.truncate(stream.read().rfind(b"\n") + 1)
            stream.write(json.dumps(dict(record), sort_keys=True, allow_nan=False).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

    def rounds(self) -> list[dict[str, Any]]:
        """The records of all rounds in order; a round that was written twice because of a crash counts once."""
        path = self.path / "rounds.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        records = {record["round"]: record for record in map(json.loads, lines)}
        return [records[number] for number in sorted(records)]

    def follow(self, poll_seconds: float = 0.2) -> Iterator[dict[str, Any]]:
        """The records of a run as they are written, to its last round; works from another process."""
        seen, last = 0, self.plan.rounds
        while seen < last:
            for record in self.rounds()[seen:]:
                seen = record["round"]
                yield record
            if seen < last:
                time.sleep(poll_seconds)

    def _update_path(self, round_number: int, client: str) -> Path:
        # By number: a client's name may be any text, and a file's may not.
        return self._released / f"round-{round_number:04d}-{sorted(self.plan.local).index(client):02d}.npz"


def sequence(head: str) -> int:
    """The number of the ledger's entry that a head names; none comes twice in a ledger."""
    return int(head.partition(":")[0])


def _packed(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _unpacked(path: Path, name: str) -> tuple[Floats, str]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return arrays[name], str(arrays["head"])
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        message = f"{path} cannot be read ({error}): put back a copy, or remove it and pay for its round again"
        raise InvalidArgument("directory", message) from None


def write_durably(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Puts the content there whole and durably, or not at all; nobody beyond `mode` and the umask ever reads it."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
