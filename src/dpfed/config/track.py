"""The block ``track:``: a tracker that is told what the report to share holds, round by round.

>>> Mlflow(kind="mlflow").experiment
'dpfed'
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dpfed.config.fields import Block, setting

TRACKER = "who is told of every round what the report to share holds, and nothing else"


class Mlflow(Block):
    """A run in MLflow; needs ``pip install dpfed[mlflow]``."""

    kind: Literal["mlflow"] = setting(effect=TRACKER)
    experiment: str = setting("dpfed", effect="the experiment of MLflow that the run is filed under")
    tracking_uri: str | None = setting(
        None, effect="MLflow's server or database; without it, where MLflow looks by itself (MLFLOW_TRACKING_URI)"
    )


class TensorBoard(Block):
    """Event files for TensorBoard; needs ``pip install dpfed[tensorboard]``."""

    kind: Literal["tensorboard"] = setting(effect=TRACKER)
    logs: str | None = setting(
        None, effect="a folder of many runs' event files, each in its own; without it, they are in the run's directory"
    )


Track = Annotated[Mlflow | TensorBoard, Field(discriminator="kind")]
