"""Inexact ADMM: one step in place of each local minimum (seed 004, example 2; Ryu and Kim 2022).

The loss is replaced by its gradient g at the last primal z and ζ/2·‖z_new − z‖², which gives::

    z_new = (ρ·w + λ + ζ·z − g) / (ρ + ζ)

and that is one step of length η = 1/(ρ + ζ) on the loss with a pull ρ towards w and a shift −λ. So ζ = 1/η − ρ is not a
setting of its own: it follows from the learning rate. The seed has ζ = 0, where η = 1/ρ. Its sum over all I records is
the mean over each client's records here, so its ρ is N times smaller for N clients. What follows is in `admm`.

>>> Iadmm(rho=1.0, rho_factor=1.1)
Iadmm(rho=1.0, rho_factor=1.1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.admm import Admm, require_all_clients
from dpfed.federated.algorithms.constants import with_constants
from dpfed.plan.plan import Plan


@dataclass(frozen=True)
class Iadmm(Admm):
    """IADMM: one step of every client a round, from its own last primal.

    Privacy: that of `Admm`. The primal leaves where clients add the noise. Where the server does (`user`, `hybrid`)
    primal and dual leave as one clipped vector, and every client is in every round. A record moves the primal by the
    learning rate times what it does to the mean gradient: 2C/(b·(ρ + ζ)) if one of b is replaced, at a clip norm of C,
    because λ and z are released values.
    """

    kind: ClassVar[str] = "iadmm"
    goes_on: ClassVar[bool] = True

    def bound_to(self, plan: Plan) -> Self:
        """Return the algorithm for the plan; refuse more than one local step."""
        if any(part.steps != 1 for part in plan.kinds):
            message = "iadmm takes one local step a round, which is what its equation is for"
            raise InvalidArgument("steps", f"{message}: write steps: 1, or choose kind: iceadmm or iiadmm")
        if plan.server_noises:
            require_all_clients(plan, self.kind)
        return with_constants(super().bound_to(plan), combines=plan.server_noises)
