"""The sensitivities that are known, each with what must be public for it and neighbours that attain it.

A formula without its conditions is how a wrong ε comes about. `dpfed.mechanisms.sensitivity` computes these bounds,
``dpfed sensitivity formulas`` shows them, and ``dpfed check algorithm NAME`` looks for neighbours that break them.

>>> FORMULAS["iadmm"].replace_one, FORMULAS["iadmm"].add_remove
('2C/(I(ρ + ζ))', 'C/(I(ρ + ζ))')
>>> [case.bound for case in CASES]
['refused', 'refused', 'Cη/I', '2Cη/I']
"""

from __future__ import annotations

from dataclasses import dataclass

from dpfed.checks import ADD_REMOVE, REPLACE_ONE

LEGEND = (
    "C is the clip norm of a record's gradient, S that of a whole update, in L1 or L2; η the learning rate, I a public "
    "constant, E the number of steps, μ a pull, r = |1 − ημ|; of ADMM ρ is the penalty, ρ′ that of the next round, ζ "
    "the proximity."
)
NO_BOUND = "refused: the number of records, and with it every later step, has no bound"
PUBLIC = ("the model that was sent", "C, η and I, fixed before the data are seen")
SEVERAL = "I is no less than the number of records"
PLAIN = "plain steps: no momentum, no adaptive optimizer"
OPPOSITE = "two records with opposite gradients beyond the clip; under add/remove one of them"
TURNING = (
    "two records with opposite gradients in the first step, and losses that are not convex: every later gradient has "
    "the sign that drives the two models apart"
)


@dataclass(frozen=True)
class Formula:
    """A bound on what a release moves by: under both adjacencies, what it requires, and neighbours that attain it.

    `name` is that of its claim in ``dpfed check algorithm``, `options` those of the claim.
    """

    release: str
    replace_one: str
    add_remove: str
    requires: tuple[str, ...]
    witness: str
    name: str
    options: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Case:
    """A way to choose a sensitivity for one step of FedAvg: what is bounded, by how much, and why.

    `adjacency` is that of the bound, None where there is none.
    """

    name: str
    neighbours: str
    bound: str
    adjacency: str | None
    why: str


def _admm(name: str, dual: str) -> Formula:
    release = f"the primal of {name.upper()}"
    return Formula(release, "2C/(I(ρ + ζ))", "C/(I(ρ + ζ))", (*_ADMM, dual), OPPOSITE, name)


def _unit(unit: str, add_remove: str, witness: str) -> Formula:
    requires = ("S, fixed before the data are seen", "the clip is the last thing before the noise")
    return Formula(
        f"a whole update clipped to S, unit {unit}", "2S", add_remove, requires, witness, "update", (("unit", unit),)
    )


_ADMM = (
    "w, λ and z_prev are made of noisy released values",
    "C, I, ρ (or its schedule) and ζ, fixed before the data are seen",
    "one plain local step",
)
_TURNED = "an update clipped at S, which one more {} turns around to −S"
_STATE = "made of noisy released changes, never of exact ones"
_GEOMETRIC = "2Cη(rᴱ⁻¹/I + 1 + r + … + rᴱ⁻²)"

FORMULAS = {
    "fedavg": Formula("one full-batch step", "2Cη/I", "Cη/I", PUBLIC, OPPOSITE, "fedavg"),
    "fedavg, E steps": Formula(
        "E full-batch steps",
        "2Cη(1/I + E − 1)",
        NO_BOUND,
        (*PUBLIC, SEVERAL, PLAIN),
        TURNING
        + "; loose by up to I for smooth convex losses within the clip and a small η (Hardt et al. 2016: 2CηE/I)",
        "fedavg",
        (("steps", 3),),
    ),
    "fedavg, batch clip": Formula(
        "E steps, each step's whole gradient clipped to C",
        "2CηE",
        "2CηE",
        (*PUBLIC, PLAIN),
        "a record that turns the sum of the others around, whether it came or was replaced",
        "fedavg",
        (("steps", 3), ("clipping", "batch")),
    ),
    "fedprox, E steps": Formula(
        "E full-batch steps with a pull μ towards a public model",
        _GEOMETRIC,
        NO_BOUND,
        (*PUBLIC, SEVERAL, PLAIN, "μ and the anchor, with 0 ≤ ημ ≤ 2"),
        TURNING,
        "fedprox",
        (("steps", 3),),
    ),
    "scaffold": Formula(
        "one step of SCAFFOLD", "2Cη/I", "Cη/I", (*PUBLIC, f"c and cᵢ, {_STATE}"), OPPOSITE, "scaffold"
    ),
    "scaffold, E steps": Formula(
        "E steps of SCAFFOLD",
        "2Cη(1/I + E − 1)",
        NO_BOUND,
        (*PUBLIC, SEVERAL, PLAIN, f"c and cᵢ, {_STATE}"),
        TURNING,
        "scaffold",
        (("steps", 3),),
    ),
    "feddyn": Formula("one step of FedDyn", "2Cη/I", "Cη/I", (*PUBLIC, f"gᵢ, {_STATE}"), OPPOSITE, "feddyn"),
    "feddyn, E steps": Formula(
        "E steps of FedDyn, μ = α",
        _GEOMETRIC,
        NO_BOUND,
        (*PUBLIC, SEVERAL, PLAIN, f"gᵢ, {_STATE}", "0 ≤ ηα ≤ 2"),
        TURNING,
        "feddyn",
        (("steps", 3),),
    ),
    "iadmm": _admm("iadmm", "the exact dual never leaves: with the released primal it gives the exact one away"),
    "iceadmm": _admm("iceadmm", "the dual that is sent is computed from the noisy primal"),
    "iceadmm, one vector": Formula(
        "primal and dual of ICEADMM in one vector, z − λ′/ρ′",
        "(1 + ρ/ρ′)·2C/(I(ρ + ζ))",
        "(1 + ρ/ρ′)·C/(I(ρ + ζ))",
        (*_ADMM, "ρ′, the penalty of the next round, fixed as well"),
        OPPOSITE,
        "iceadmm",
        (("next_penalty", 2.0),),
    ),
    "iiadmm": _admm("iiadmm", "both sides compute the dual from the noisy primal; none is sent"),
    "update of a record": _unit("record", "2S", _TURNED.format("record")),
    "update of a person": _unit("person", "2S", _TURNED.format("person")),
    "update of a client": _unit("client", "S", "two clients with opposite updates; under add/remove one of them"),
}

CASES = (
    Case(
        "Case 1, over the actual data",
        "a record left out",
        "refused",
        None,
        "the largest change over your own records depends on them: the noise would tell of them, and protects nobody",
    ),
    Case(
        "Case 1, mean over the true count",
        "a record left out",
        "refused",
        None,
        "the count changes with the record; divide by a public constant",
    ),
    Case(
        "Case 1, over all data sets",
        "a record left out",
        "Cη/I",
        ADD_REMOVE,
        "each gradient is clipped to C, and the sum divided by a public I",
    ),
    Case(
        "Case 2, over all data sets",
        "a record replaced",
        "2Cη/I",
        REPLACE_ONE,
        "the old gradient and the new one, each at most C, in opposite directions; I is public",
    ),
)
