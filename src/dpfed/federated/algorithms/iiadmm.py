"""IIADMM: several local steps, and duals that both sides follow on their own and nobody sends (Ryu and Kim 2022).

From z = w a client takes K steps z ← (ρ·w + λ + ζ·z − g(z))/(ρ + ζ), which are steps of length 1/(ρ + ζ) as in `iadmm`;
its primal leaves; client and server then both do λ ← λ + ρ·(w − z) (the paper's Algorithm 1). The mean of the duals is
all that the next model needs, so that is what the server keeps. The public system (APPFL) updates the client's dual
before it adds noise to the primal: the two sides then differ, and the noise never leaves the server's.

>>> Iiadmm(rho=0.5)
Iiadmm(rho=0.5, rho_factor=1.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.admm import Admm
from dpfed.plan.plan import Plan


@dataclass(frozen=True)
class Iiadmm(Admm):
    """IIADMM: some steps of each client a round from the model that was sent; the primal leaves.

    Privacy: that of `Admm`. Refused where the server adds the noise (`user`, `hybrid`): there no client's primal is
    released, so the server has nothing to follow its dual by.
    """

    kind: ClassVar[str] = "iiadmm"

    def bound_to(self, plan: Plan) -> Self:
        """Return the algorithm for the plan; refuse one whose server adds the noise."""
        if plan.server_noises:
            message = f"iiadmm has duals at the server, to which style {plan.style!r} shows no released primal"
            raise InvalidArgument("style", f"{message}: choose kind: iceadmm or iadmm")
        return super().bound_to(plan)
