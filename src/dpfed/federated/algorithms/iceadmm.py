"""ICEADMM, inexact and communication-efficient: several local steps, one message of primal and dual (Zhou, Li 2021).

A client takes its steps as in `iadmm`, from its own last primal, and sends z − λ/ρ′ − w, the paper's zᵢ = xᵢ + πᵢ/σᵢ
with π = −λ and σ = ρ, as it lies from the model that was sent. So the server averages, and keeps no dual. There λ
changes at each of the local steps; here once a round, by the vector as it left the client: what changes in between
would be a dual of un-noised steps. The public system that sends both apart (APPFL) gives the un-noised primal away by
the difference of two duals.

>>> Iceadmm(rho=(1.0, 2.0))
Iceadmm(rho=(1.0, 2.0), rho_factor=1.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from dpfed.federated.algorithms.admm import Admm, require_all_clients
from dpfed.federated.algorithms.constants import with_constants
from dpfed.plan.plan import Plan


@dataclass(frozen=True)
class Iceadmm(Admm):
    """ICEADMM: some steps of every client a round; primal and dual leave as one vector.

    Privacy: that of `Admm`. The dual in what leaves is made of earlier vectors as they left, so it tells no more of
    them; one clip and one noise are for the whole vector.
    """

    kind: ClassVar[str] = "iceadmm"
    goes_on: ClassVar[bool] = True

    def bound_to(self, plan: Plan) -> Self:
        """Return the algorithm for the plan; refuse one without some client in some round."""
        require_all_clients(plan, self.kind)
        return with_constants(super().bound_to(plan), combines=True)
