"""``dpfed sensitivity``: bound how far one record can move what a client sends, for output perturbation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command, Group

if TYPE_CHECKING:
    from dpfed.mechanisms.sensitivity import Sensitivity

STEP = "The local step"
DIVISOR = "The public constant that the sum is divided by."

RHO = "The penalty ρ, fixed in advance."
ADMM = {
    "iadmm": "Bound the sensitivity of the primal after one inexact ADMM step.",
    "iceadmm": "Bound the sensitivity of the primal after one step of ICEADMM.",
    "iiadmm": "Bound the sensitivity of the primal after one step of IIADMM.",
}

clip = options.option(
    "--clip",
    "clip_norm",
    type=float,
    required=True,
    section=STEP,
    help="Clip norm of each record's gradient.",
)
learning_rate = options.option("--lr", "learning_rate", type=float, required=True, section=STEP, help="Learning rate.")
records = options.option("--records", type=int, required=True, section=STEP, help=DIVISOR)
local_steps = options.option(
    "--local-steps", "steps", type=int, default=1, show_default=True, section=STEP, help="Full-batch steps."
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

    The bound holds for all data sets; a maximum computed from your own data would itself be private. `formulas` lists
    all bounds, with what must be public for each and neighbours that attain it.
    """


@sensitivity.command(cls=Command)
@clip
@learning_rate
@records
@local_steps
@options.option(
    "--pull", type=float, default=0.0, show_default=True, section=STEP, help="The proximal weight μ, as of FedProx."
)
@norm
@adjacency
@options.as_json
def fedavg(clip_norm: float, learning_rate: float, records: int, steps: int, as_json: bool, **settings: Any) -> None:
    """Bound the sensitivity of a client's model after local steps.

    \b
      dpfed sensitivity fedavg --clip 1 --lr 0.1 --records 500
      dpfed sensitivity fedavg --clip 1 --lr 0.1 --records 500 --local-steps 5
    """
    from dpfed.mechanisms.sensitivity import fedavg_step

    _show(fedavg_step(clip_norm, learning_rate, records, steps, **settings), as_json)


@sensitivity.command(cls=Command)
@clip
@learning_rate
@records
@local_steps
@norm
@adjacency
@options.as_json
def scaffold(clip_norm: float, learning_rate: float, records: int, steps: int, as_json: bool, **settings: Any) -> None:
    """Bound the sensitivity of a client's change in SCAFFOLD.

    Holds only if the control variates come from released (noisy) changes.

    \b
      dpfed sensitivity scaffold --clip 1 --lr 0.1 --records 500
    """
    from dpfed.mechanisms.sensitivity import scaffold_step

    _show(scaffold_step(clip_norm, learning_rate, records, steps, **settings), as_json)


@sensitivity.command(cls=Command)
@clip
@learning_rate
@records
@options.option("--alpha", type=float, required=True, section=STEP, help="FedDyn's α, which pulls to the model sent.")
@local_steps
@norm
@adjacency
@options.as_json
def feddyn(clip_norm: float, learning_rate: float, as_json: bool, **settings: Any) -> None:
    """Bound the sensitivity of a client's change in FedDyn.

    Holds only if the gradient of earlier rounds comes from released (noisy) changes.

    \b
      dpfed sensitivity feddyn --clip 1 --lr 0.1 --records 500 --alpha 0.5
    """
    from dpfed.mechanisms.sensitivity import feddyn_step

    _show(feddyn_step(clip_norm, learning_rate, **settings), as_json)


@sensitivity.command(cls=Command)
@options.option(
    "--clip", "clip_norm", type=float, required=True, section=STEP, help="Clip norm S of a client's whole update."
)
@options.option(
    "--unit",
    type=click.Choice(["record", "person", "client"]),
    required=True,
    section=options.METHOD,
    help="Who is protected: a client, or a record or person inside one.",
)
@norm
@adjacency
@options.as_json
def update(clip_norm: float, as_json: bool, **settings: str) -> None:
    """Bound the sensitivity of a client's whole update, clipped.

    \b
      dpfed sensitivity update --clip 1 --unit record --adjacency add_remove
    """
    from dpfed.mechanisms.sensitivity import clipped_update

    _show(clipped_update(clip_norm, **settings), as_json)


def _add_admm(name: str, sentence: str) -> None:
    @sensitivity.command(
        name,
        cls=Command,
        help=f"""{sentence}

    Holds only if the dual and the previous iterate come from released (noisy) values.

    \b
      dpfed sensitivity {name} --clip 1 --penalty 2 --records 500
    """,
    )
    @clip
    @options.option("--penalty", type=float, required=True, section=STEP, help=RHO)
    @options.option(
        "--proximity", type=float, default=0.0, show_default=True, section=STEP, help="The proximal weight ζ."
    )
    @options.option(
        "--next-penalty",
        type=float,
        section=STEP,
        help="The penalty ρ′ of the next round, if the dual over ρ′ leaves in the same vector.",
    )
    @options.option("--records", "total_records", type=int, required=True, section=STEP, help=DIVISOR)
    @norm
    @adjacency
    @options.as_json
    def _bound(clip_norm: float, penalty: float, as_json: bool, **settings: Any) -> None:
        from dpfed.mechanisms.sensitivity import iadmm_step

        _show(iadmm_step(clip_norm, penalty, **settings), as_json)


for _name, _sentence in ADMM.items():
    _add_admm(_name, _sentence)


@sensitivity.command(cls=Command)
@clip
@learning_rate
@records
@norm
@options.as_json
def cases(clip_norm: float, learning_rate: float, records: int, norm: str, as_json: bool) -> None:
    """Compare a record left out with one replaced, for one step of FedAvg.

    A bound over all data sets is a number; the largest change over your own data is refused, with the reason.

    \b
      dpfed sensitivity cases --clip 1 --lr 0.1 --records 500
    """
    from dpfed.cli.show import print_json, say
    from dpfed.mechanisms.formulas import CASES
    from dpfed.mechanisms.sensitivity import fedavg_step

    found = [
        None
        if case.adjacency is None
        else float(fedavg_step(clip_norm, learning_rate, records, adjacency=case.adjacency, norm=norm))
        for case in CASES
    ]
    if as_json:
        facts = [{**vars(case), "sensitivity": bound} for case, bound in zip(CASES, found, strict=True)]
        return print_json({"norm": norm, "cases": facts})
    for case, bound in zip(CASES, found, strict=True):
        shown = case.bound if bound is None else f"≤ {_format(bound)} in {norm.upper()} ({case.bound})"
        say(f"{case.name}, {case.neighbours}: {shown}, because {case.why}")
    return None


@sensitivity.command(cls=Command)
@options.as_json
def formulas(as_json: bool) -> None:
    """List all bounds, what must be public, and neighbours that attain them.

    \b
      dpfed sensitivity formulas
    """
    from dpfed.cli.show import print_json, say
    from dpfed.mechanisms.formulas import FORMULAS, LEGEND

    if as_json:
        return print_json(
            {name: vars(formula) | {"options": dict(formula.options)} for name, formula in FORMULAS.items()}
        )
    say(LEGEND)
    for name, formula in FORMULAS.items():
        say(f"\n{name}: {formula.release}")
        say(f"  replace-one  {formula.replace_one}")
        say(f"  add/remove   {formula.add_remove}")
        say(f"  requires     {'; '.join(formula.requires)}")
        say(f"  attained by  {formula.witness}")
    return None


def _show(bound: Sensitivity, as_json: bool) -> None:
    from dpfed.cli.show import print_json, say

    if as_json:
        return print_json({"sensitivity": float(bound), "norm": bound.norm, "adjacency": bound.adjacency})
    return say(f"sensitivity ≤ {_format(bound)} in {bound.norm.upper()}, {bound.adjacency.replace('_', '-')}")


def _format(bound: float) -> str:
    """Return ten digits, rounded up: whoever copies them adds no less noise. 0.1 as a float is above 0.1 by less."""
    from dpfed.rounding import decimal_up

    return decimal_up(bound * (1 - 1e-15), 10)
