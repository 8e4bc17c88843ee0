"""What the last checkpoint of a run says of the other files, for readers that need neither its model nor its ledger.

A round counts once its checkpoint is written: a line that something else has added to rounds.jsonl since then is shown
by nobody. The note stands in the head of a safetensors file, which is JSON after eight bytes that say how long it is.

>>> read_newest(Path("nowhere")) is None
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfed.errors import InvalidArgument

PATTERN = "round-*.safetensors"
LONGEST = 100_000_000  # bytes that the head of a safetensors file may have


@dataclass(frozen=True)
class Note:
    """The number of rounds done, and the digests of the other files then; none in a run of an older version."""

    round: int
    files: Mapping[str, str] = field(default_factory=dict)


def list_paths(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest last."""
    return sorted(folder.glob(PATTERN))


def read_newest(folder: Path) -> Note | None:
    """Return the note of the newest checkpoint in the folder; None before there is any."""
    while found := list_paths(folder):
        try:
            return _read(found[-1])
        except FileNotFoundError:  # a run that goes on has just replaced it by a newer one
            continue
    return None


def unreadable_error(path: Path, error: object) -> InvalidArgument:
    """Return the refusal of a checkpoint that is damaged, changed or forged."""
    remedy = "put back a copy, or remove it and pay for its round again"
    return InvalidArgument("directory", f"{path} cannot be read ({error}): {remedy}")


def _read(path: Path) -> Note:
    try:
        note = json.loads(json.loads(_read_head(path))["__metadata__"]["dpfed"])
        done, files = note["round"], note.get("files", {})
        if type(done) is not int or path.stem != f"round-{done:06d}":
            raise ValueError("it is of another round")
        if not all(isinstance(text, str) for text in files.values()):
            raise ValueError("its note lists files without digests")
        return Note(done, files)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable_error(path, error.strerror) from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise unreadable_error(path, _describe(error)) from None


def _read_head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(min(int.from_bytes(stream.read(8), "little"), LONGEST))


def _describe(error: Exception) -> Any:
    return "it has no note" if isinstance(error, KeyError | TypeError | AttributeError) else error
