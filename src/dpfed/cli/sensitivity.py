"""``dpfed sensitivity``: bound how far one record can move what a client sends, for output perturbation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dpfed.cli import options
from dpfed.cli.sections import Command, Group

if TYPE_CHECKING:
    from dpfed.mechanisms.sensitivity import Sensitivity

STEP = "The local step"
DIVISOR = "The public constant that the sum is divided by."

clip = options.option(
    "--clip",
    "clip_norm",
    type=float,
    required=True,
    section=STEP,
    help="Clip norm of each record's gradient.",
)
norm = options.option(
    "--norm",
    type=click.Choice(["l1", "l2"]),
    default="l1",
    show_default=True,
    section=options.METHOD,
    help="Norm of the clip and of the sensitivity: l1 for Laplace noise, l2 for Gaussian.",
)
adjacency = options.option(
    "--adjacency",
    type=click.Choice(["add_remove", "replace_one"]),
    default="replace_one",
    show_default=True,
    section=options.METHOD,
    help="Neighbouring data sets: one record more or less, or one replaced.",
)


@click.group(cls=Group)
def sensitivity() -> None:
    """Bound how far one record can move a client's output.

    The bound holds for all data sets; a maximum computed from your own data would itself be private.
    """


@sensitivity.command(cls=Command)
@clip
@options.option("--lr", "learning_rate", type=float, required=True, section=STEP, help="Learning rate.")
@options.option("--records", type=int, required=True, section=STEP, help=DIVISOR)
@options.option(
    "--local-steps", "steps", type=int, default=1, show_default=True, section=STEP, help="Full-batch steps."
)
@norm
@adjacency
@options.as_json
def fedavg(
    clip_norm: float, learning_rate: float, records: int, steps: int, norm: str, adjacency: str, as_json: bool
) -> None:
    """Bound the sensitivity of a client's model after local steps.

    \b
      dpfed sensitivity fedavg --clip 1 --lr 0.1 --records 500
    """
    from dpfed.mechanisms.sensitivity import fedavg_step

    _show(fedavg_step(clip_norm, learning_rate, records, steps, adjacency=adjacency, norm=norm), as_json)


@sensitivity.command(cls=Command)
@clip
@options.option("--penalty", type=float, required=True, section=STEP, help="The penalty ρ, fixed in advance.")
@options.option("--proximity", type=float, default=0.0, show_default=True, section=STEP, help="The proximal weight ζ.")
@options.option("--records", "total_records", type=int, required=True, section=STEP, help=DIVISOR)
@norm
@adjacency
@options.as_json
def iadmm(
    clip_norm: float,
    penalty: float,
    proximity: float,
    total_records: int,
    norm: str,
    adjacency: str,
    as_json: bool,
) -> None:
    """Bound the sensitivity of the primal after one inexact ADMM step.

    Holds only if the dual and the previous iterate come from released (noisy) values.

    \b
      dpfed sensitivity iadmm --clip 1 --penalty 2 --records 500
    """
    from dpfed.mechanisms.sensitivity import iadmm_step

    _show(iadmm_step(clip_norm, penalty, total_records, proximity, adjacency=adjacency, norm=norm), as_json)


def _show(bound: Sensitivity, as_json: bool) -> None:
    from dpfed.cli.show import print_json, say

    if as_json:
        return print_json({"sensitivity": float(bound), "norm": bound.norm, "adjacency": bound.adjacency})
    return say(f"sensitivity ≤ {float(bound):.10g} in {bound.norm.upper()}, {bound.adjacency.replace('_', '-')}")
