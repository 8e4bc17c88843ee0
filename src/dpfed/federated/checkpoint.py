"""Where a run goes on after a crash: the model bit for bit as it was released, and the head of the ledger that paid.

It holds the head and never a balance: what is spent is the ledger's to say. It holds no state of a generator either,
so nothing that is done again can have the same noise. Files are safetensors with a JSON note, for the owner alone: how
often each client took part is in them.

>>> import tempfile
>>> folder = Checkpoints(RunDirectory(tempfile.mkdtemp()), Layout(("w",), ((2,),), "float64"))
>>> folder.write(Checkpoint(3, np.ones(2), "12:ab", {"mean": np.zeros(2)}))
>>> found = folder.newest()
>>> found.round, found.head, found.weights, found.state
(3, '12:ab', array([1., 1.]), {'mean': array([0., 0.])})
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.protocol import State
from dpfed.federated.weights import Layout, Vector
from dpfed.round_files import is_head
from dpfed.runs import OWNER_ONLY, RunDirectory, write_durably

FORMAT = 1
KEPT = 2
MODEL, STATE = "model/", "state/"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The model after so many rounds, the head of the ledger, the algorithm's state and the round-by-round constants.

    `clip_norm` is that of the next round where it adapts; `taken` counts the rounds each client took part in.
    `privacy` is a view for readers, as seed 002 wants it: nothing is ever read back from it.
    """

    round: int
    weights: Vector
    head: str
    state: State = field(default_factory=dict)
    clip_norm: float | None = None
    taken: Mapping[str, int] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Clients are given this very array: one that trains in place must not change what was released.
        weights = np.array(self.weights)
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)


class Checkpoints:
    """The last few checkpoints of a run."""

    def __init__(self, run: RunDirectory, layout: Layout) -> None:
        self._folder = run.folder("checkpoints")
        self._layout = layout

    def write(self, checkpoint: Checkpoint) -> None:
        """Stores it durably and removes those that are no longer needed."""
        note = {
            "format": FORMAT,
            "round": checkpoint.round,
            "head": checkpoint.head,
            "layout": json.loads(self._layout.to_json()),
            "clip_norm": checkpoint.clip_norm,
            "taken": dict(checkpoint.taken),
            "privacy": dict(checkpoint.privacy),
        }
        arrays = {MODEL + name: value for name, value in self._layout.unflatten(checkpoint.weights).items()}
        arrays |= {STATE + name: np.ascontiguousarray(value) for name, value in checkpoint.state.items()}
        path = self._folder / f"round-{checkpoint.round:06d}.safetensors"
        write_durably(path, to_bytes(arrays, {"dpfed": json.dumps(note)}), mode=OWNER_ONLY)
        for old in self._paths()[:-KEPT]:
            old.unlink(missing_ok=True)

    def newest(self) -> Checkpoint | None:
        """The last one; None before enrolment."""
        paths = self._paths()
        return self._read(paths[-1]) if paths else None

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("round-*.safetensors"))

    def _read(self, path: Path) -> Checkpoint:
        try:
            with safe_open(path, framework="numpy") as file:
                note = json.loads((file.metadata() or {})["dpfed"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict
            if note["format"] != FORMAT or Layout(**note["layout"]) != self._layout:
                raise ValueError("it is of another format or model")
            _require_form(note)
            return Checkpoint(
                round=note["round"],
                weights=self._layout.flatten(_under(MODEL, arrays)),
                head=note["head"],
                state=_under(STATE, arrays),
                clip_norm=note["clip_norm"],
                taken=note["taken"],
                privacy=note["privacy"],
            )
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            message = f"{path} cannot be read ({error}): put back a copy, or remove it and pay for its round again"
            raise InvalidArgument("directory", message) from None


def _require_form(note: Mapping[str, Any]) -> None:
    """Refuse a note that something else wrote, before a round is run on what it says."""
    counts = note["taken"].values()
    is_right = {
        "round": type(note["round"]) is int and note["round"] >= 0,
        "head": is_head(note["head"]),
        "clip_norm": note["clip_norm"] is None or isinstance(note["clip_norm"], float | int),
        "taken": all(type(count) is int and count >= 0 for count in counts),
        "privacy": isinstance(note["privacy"], dict),
    }
    for name, is_so in is_right.items():
        if not is_so:
            raise ValueError(f"its note has no {name} that could be")


def _under(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
