"""Directories of runs that have begun, whose rounds a test writes and confirms by itself."""

from __future__ import annotations

import numpy as np

from dpfed.federated.state.checkpoint import Checkpoint, Checkpoints
from dpfed.federated.state.layout import Layout
from dpfed.plan.plan import LocalPlan, Plan
from dpfed.runs.directory import RunDirectory

LOCAL = LocalPlan(size=100, batch_size=16, steps=2, learning_rate=0.5, clip_norm=1.0, noise_multiplier=1.5)


def plan(*clients: str, rounds: int = 3) -> Plan:
    """Return a plan of two clients, or of those named."""
    return Plan("study", rounds=rounds, local=dict.fromkeys(clients or ("north", "west"), LOCAL))


def confirm(run: RunDirectory, done: int, *, has_ended: bool = False, terms: str = "") -> None:
    """Write a checkpoint after so many rounds, without which none of them counts."""
    layout = Layout(("w",), ((1,),), "float64")
    Checkpoints(run, layout).write(
        Checkpoint(done, np.zeros(1), "1:a", files=run.digests({}, terms, has_ended=has_ended))
    )
