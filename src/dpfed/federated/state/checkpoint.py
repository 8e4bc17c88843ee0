"""Where a run goes on after a crash: the model bit for bit as it was released, and the head of the ledger that paid.

It holds the head and never a balance: what is spent is the ledger's to say. It holds no state of a generator either,
so nothing that is done again can have the same noise. Files are safetensors with a JSON note, for the owner alone: how
often each client took part is in them. The note has digests of the run's other files, and a digest and a seal of all
that is in the checkpoint: a flipped bit is noticed by whoever reads it, a forged one by whoever has the ledger.

>>> import tempfile
>>> folder = Checkpoints(RunDirectory(tempfile.mkdtemp()), Layout(("w",), ((2,),), "float64"), key=b"of the ledger")
>>> folder.write(Checkpoint(3, np.ones(2), "12:ab", {"mean": np.zeros(2)}))
>>> found = folder.newest()
>>> found.round, found.head, found.weights, found.state
(3, '12:ab', array([1., 1.]), {'mean': array([0., 0.])})
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.aggregation import quarantine
from dpfed.aggregation.quarantine import Standings
from dpfed.arrays import Floats
from dpfed.federated.algorithms.protocol import State
from dpfed.federated.state.layout import Layout, Vector
from dpfed.runs import checkpoint_notes, tensor_files
from dpfed.runs.checkpoint_notes import unreadable_error
from dpfed.runs.digests import Seal, digest, digest_arrays
from dpfed.runs.directory import OWNER_ONLY, RunDirectory
from dpfed.runs.rounds import is_head

FORMAT = 2
OLDER_FORMAT = 1  # without digests
KEPT = 2
MODEL, STATE, CENTRE = "model/", "state/", "centre"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The model after some rounds, the head of the ledger, the algorithm's state and the round-by-round constants.

    `clip_norm` is that of the next round where it adapts; `taken` counts the rounds each client took part in.
    `privacy` is a view for readers, as seed 002 wants it: nothing is ever read back from it. `files` are the digests of
    the run's other files. `counted` is, where clients keep state, the last round of each whose update was used: the
    one after which its state is the one to go on with. `centre` is the aggregate that was released last, where a rule
    clips around it, and `standings` are those of clients that were struck or put in quarantine.
    """

    round: int
    weights: Vector
    head: str
    state: State = field(default_factory=dict)
    clip_norm: float | None = None
    taken: Mapping[str, int] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    counted: Mapping[str, int] = field(default_factory=dict)
    centre: Floats | None = None
    standings: Standings = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Clients are given this very array: one that trains in place must not change what was released.
        weights = np.array(self.weights)
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)


class Checkpoints:
    """The last few checkpoints of a run; with the `key` of its ledger their seals are checked."""

    def __init__(self, run: RunDirectory, layout: Layout, key: bytes | None = None) -> None:
        self._run = run
        self._folder = run.folder("checkpoints")
        self._layout = layout
        self._key = key

    def write(self, checkpoint: Checkpoint) -> None:
        """Store the checkpoint durably and remove those that are no longer needed."""
        note: dict[str, Any] = {
            "format": FORMAT,
            "round": checkpoint.round,
            "head": checkpoint.head,
            "layout": asdict(self._layout),
            "clip_norm": checkpoint.clip_norm,
            "taken": dict(checkpoint.taken),
            "privacy": dict(checkpoint.privacy),
            "files": dict(checkpoint.files),
            **({"counted": dict(checkpoint.counted)} if checkpoint.counted else {}),
            **({"standings": quarantine.to_plain(checkpoint.standings)} if checkpoint.standings else {}),
        }
        arrays = {MODEL + name: value for name, value in self._layout.unflatten(checkpoint.weights).items()}
        arrays |= {STATE + name: np.ascontiguousarray(value) for name, value in checkpoint.state.items()}
        arrays |= {} if checkpoint.centre is None else {CENTRE: np.asarray(checkpoint.centre)}
        note["digest"] = _digest(note, arrays)
        note["seal"] = Seal(self._key or b"", checkpoint.head).of(note["digest"])
        path = self._folder / f"round-{checkpoint.round:06d}.safetensors"
        tensor_files.write(path, arrays, note, mode=OWNER_ONLY)
        for old in self._paths()[:-KEPT]:
            old.unlink(missing_ok=True)

    def newest(self) -> Checkpoint | None:
        """Return the last checkpoint; None before the run is reserved."""
        paths = self._paths()
        return self._read(paths[-1]) if paths else None

    def _paths(self) -> list[Path]:
        return checkpoint_notes.list_paths(self._folder)

    def _read(self, path: Path) -> Checkpoint:
        try:
            note, arrays = tensor_files.read(path)
            if note["format"] not in self._formats or Layout(**note["layout"]) != self._layout:
                raise ValueError("it is of another format or model")
            _require_form(note)
            self._require_unchanged(path, note, arrays)
            return Checkpoint(
                round=note["round"],
                weights=self._layout.flatten(_under(MODEL, arrays)),
                head=note["head"],
                state=_under(STATE, arrays),
                clip_norm=note["clip_norm"],
                taken=note["taken"],
                privacy=note["privacy"],
                files=note.get("files", {}),
                counted=note.get("counted", {}),
                centre=arrays.get(CENTRE),
                standings=quarantine.from_plain(note.get("standings", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise unreadable_error(path, error) from None

    @property
    def _formats(self) -> tuple[int, ...]:
        return (OLDER_FORMAT, FORMAT) if self._run.is_older else (FORMAT,)

    def _require_unchanged(self, path: Path, note: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        if path.stem != f"round-{note['round']:06d}":
            raise ValueError("it is of another round")
        if note["format"] == OLDER_FORMAT:
            return
        plain = {name: value for name, value in note.items() if name not in ("digest", "seal")}
        if note["digest"] != _digest(plain, arrays):
            raise ValueError("it does not match its digest")
        if self._key is not None and not Seal(self._key, note["head"]).is_of(note["seal"], note["digest"]):
            raise ValueError("its seal is not of this run in this ledger")


def _digest(note: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    return digest(json.dumps(note, sort_keys=True).encode(), digest_arrays(arrays))


def _require_form(note: Mapping[str, Any]) -> None:
    """Refuse a note that something else wrote, before a round is run on what it says."""
    counts, rounds = note["taken"].values(), note.get("counted", {}).values()
    is_right = {
        "round": type(note["round"]) is int and note["round"] >= 0,
        "head": is_head(note["head"]),
        "clip_norm": note["clip_norm"] is None or isinstance(note["clip_norm"], float | int),
        "taken": all(type(count) is int and count >= 0 for count in counts),
        "privacy": isinstance(note["privacy"], dict),
        "counted": all(type(last) is int and 0 < last <= note["round"] for last in rounds),
    }
    for name, is_so in is_right.items():
        if not is_so:
            raise ValueError(f"its note has an impossible {name}")


def _under(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
