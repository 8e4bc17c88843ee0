"""A run's model as a file for everyone: named arrays that safetensors and torch read without dpfed.

The weights are those of the last checkpoint, bit for bit as they were released. The head of the ledger, the state of
the algorithm and how often clients took part stay in the checkpoint.

>>> import tempfile
>>> from dpfed.federated.state.checkpoint import Checkpoint
>>> run = RunDirectory(tempfile.mkdtemp())
>>> Checkpoints(run, Layout(("w",), ((2,),))).write(Checkpoint(3, np.ones(2, np.float32), "12:ab"))
>>> newest(run).arrays()
{'w': array([1., 1.], dtype=float32)}
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpfed.errors import InvalidArgument
from dpfed.federated.state.checkpoint import Checkpoints
from dpfed.federated.state.layout import Arrays, Layout, Vector
from dpfed.runs import checkpoint_notes, tensor_files
from dpfed.runs.directory import CHECKPOINTS, RunDirectory


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """The model of a run after some rounds, for everyone."""

    round: int
    layout: Layout
    weights: Vector

    def arrays(self) -> Arrays:
        """Return the weights by the names of the model's parameters."""
        return self.layout.unflatten(self.weights)

    def write(self, path: str | Path, facts: dict[str, str] | None = None, *, mode: int = 0o666) -> str:
        """Write the weights with facts that anybody may know, and return the file's SHA-256."""
        if not np.isfinite(self.weights).all():
            message = "the model has numbers that are not finite, so nobody could use it"
            raise InvalidArgument("run", f"{message}: go on from an earlier run, with smaller steps")
        return tensor_files.export(Path(path), self.arrays(), facts or {}, mode=mode)


def newest(run: RunDirectory) -> ExportedModel:
    """Return the run's model after its last round."""
    paths = checkpoint_notes.list_paths(run.path / CHECKPOINTS)
    if not paths:
        raise InvalidArgument("run", f"{run.path} holds no model yet: `dpfed resume {run.path}` makes one")
    try:
        layout = Layout(**tensor_files.read(paths[-1])[0]["layout"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument("run", f"{paths[-1]} cannot be read ({error}): put back a copy") from None
    checkpoint = Checkpoints(run, layout).newest()
    if checkpoint is None:
        raise InvalidArgument("run", f"{paths[-1]} has just been removed: ask again")
    return ExportedModel(checkpoint.round, layout, checkpoint.weights)
