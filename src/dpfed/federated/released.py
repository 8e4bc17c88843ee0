"""A run's model as a file for everyone: named arrays that safetensors and torch read without dpfed.

The weights are those of the last checkpoint, bit for bit as they were released. The head of the ledger, the state of
the algorithm and how often clients took part stay in the checkpoint.

>>> import tempfile
>>> from dpfed.federated.checkpoint import Checkpoint
>>> run = RunDirectory(tempfile.mkdtemp())
>>> Checkpoints(run, Layout(("w",), ((2,),))).write(Checkpoint(3, np.ones(2, np.float32), "12:ab"))
>>> newest(run).arrays()
{'w': array([1., 1.], dtype=float32)}
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from dpfed.errors import InvalidArgument
from dpfed.federated.checkpoint import Checkpoints
from dpfed.federated.weights import Arrays, Layout, Vector
from dpfed.runs import RunDirectory, write_durably


@dataclass(frozen=True, eq=False)
class Released:
    """The model after so many rounds."""

    round: int
    layout: Layout
    weights: Vector

    def arrays(self) -> Arrays:
        """The weights by the names of the model's parameters."""
        return self.layout.unflatten(self.weights)

    def write(self, path: str | Path, facts: dict[str, str] | None = None) -> str:
        """The SHA-256 of the file that is written: the arrays, and facts that anybody may know."""
        if not np.isfinite(self.weights).all():
            raise InvalidArgument("run", "the model has numbers that are not finite, and is not exported")
        content = to_bytes(self.arrays(), facts or {})
        write_durably(Path(path), content)
        return hashlib.sha256(content).hexdigest()


def newest(run: RunDirectory) -> Released:
    """The run's model after its last round."""
    paths = sorted((run.path / "checkpoints").glob("round-*.safetensors"))
    if not paths:
        raise InvalidArgument("run", f"{run.path} holds no model yet: `dpfed resume {run.path}` makes one")
    try:
        with safe_open(paths[-1], framework="numpy") as file:
            layout = Layout(**json.loads((file.metadata() or {})["dpfed"])["layout"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidArgument("run", f"{paths[-1]} cannot be read ({error}): put back a copy") from None
    checkpoint = Checkpoints(run, layout).newest()
    if checkpoint is None:
        raise InvalidArgument("run", f"{paths[-1]} has just been removed: ask again")
    return Released(checkpoint.round, layout, checkpoint.weights)
