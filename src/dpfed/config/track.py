"""The block ``track:``: a tracker that gets the facts of the shareable report, round by round.

>>> Mlflow(kind="mlflow").experiment
'dpfed'
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dpfed.config.fields import Block, setting

TRACKER = "a tracker that gets the facts of the shareable report after every round, and nothing else"


class Mlflow(Block):
    """A run in MLflow; needs ``pip install dpfed[mlflow]``."""

    kind: Literal["mlflow"] = setting(effect=TRACKER)
    experiment: str = setting("dpfed", effect="the experiment of MLflow that the run belongs to")
    tracking_uri: str | None = setting(
        None, effect="MLflow's server or database; without it, MLflow's own default (MLFLOW_TRACKING_URI)"
    )


class TensorBoard(Block):
    """Event files for TensorBoard; needs ``pip install dpfed[tensorboard]``."""

    kind: Literal["tensorboard"] = setting(effect=TRACKER)
    logs: str | None = setting(
        None,
        effect="a folder for the event files of many runs, each in its own; without it, the run's directory",
    )


Track = Annotated[Mlflow | TensorBoard, Field(discriminator="kind")]
