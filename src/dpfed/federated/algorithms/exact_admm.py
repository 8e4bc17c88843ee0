"""Exact ADMM, the reference for convex models without privacy: every local problem is solved to convergence.

With a pull ρ a convex loss is ρ-strongly convex. Steps of gradient descent on all records, of a length η of at most
1/(L + ρ) where gradients are L-Lipschitz, therefore come nearer to its minimum by 1 − ηρ each: the plan's steps must be
so many that a millionth is left (`admm` has the equations; Boyd et al. 2011, section 7.1).

>>> ExactAdmm(rho=0.5)
ExactAdmm(rho=0.5, rho_factor=1.0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.admm import Admm, show
from dpfed.plan.local import LocalPlan
from dpfed.plan.plan import Plan

LEFT = 1e-6  # of the distance to the local minimum


@dataclass(frozen=True)
class ExactAdmm(Admm):
    """ADMM whose clients minimise their part exactly, for style `none` alone; the primal leaves a client.

    Privacy: none. How far one record moves the minimum depends on all others, and no bound on it is public here.
    """

    kind: ClassVar[str] = "admm"

    def bound_to(self, plan: Plan) -> Self:
        """Return the algorithm for the plan; refuse one that protects anybody, or stops short of the minimum."""
        if plan.units:
            message = f"exact ADMM has no bound on what a record does to a minimum, so style {plan.style!r} is refused"
            raise InvalidArgument("style", f"{message}: choose kind: iadmm, or style: none")
        made = super().bound_to(plan)
        for part in plan.kinds:
            _require_convergence(part, min(made.rhos))
        return made

    def describe(self) -> str:
        """Return ρ by round: there is no ζ where nothing is approximated."""
        return f"Public penalty ρ by round: {show(self.rhos)}."


def _require_convergence(part: LocalPlan, rho: float) -> None:
    if part.batch_size < part.size:
        message = f"exact ADMM takes steps on all records, and batch_size is {part.batch_size} of {part.size}"
        raise InvalidArgument("batch_size", f"{message}: raise it to the size")
    kept = 1 - part.learning_rate * rho
    need = 1 if kept <= LEFT else math.ceil(math.log(LEFT) / math.log(kept))
    if part.steps < need:
        message = f"{part.steps} steps of learning_rate {part.learning_rate:g} solve no local problem at ρ {rho:g}"
        raise InvalidArgument("steps", f"{message}: take {need}")
