"""What every ADMM has in common: consensus of all clients' models by duals and a penalty ρ that is public.

The mean of the clients' losses f_p is minimised as min Σ f_p(z_p) such that w = z_p. A dual λ_p says how much client p
disagrees. With ρ and ρ′ the penalties of this round and of the next one (seed 004; Ryu and Kim 2022)::

    client   z_p: f_p(z) − ⟨λ_p, z⟩ + ρ/2·‖w − z‖², minimised exactly or by some steps;   λ_p ← λ_p + ρ·(w − z_p)
    server   w ← mean of z_p − λ_p/ρ′

z_p is the *released* primal, clipped and noised as it left the client, on both sides: an exact dual would give the
un-noised primal away as (λ_p after − λ_p before)/ρ. One vector leaves a client, and there are two forms of it:

- the primal, z_p − w. The server then follows the mean dual by constants of the plan, with m of N clients in a round:
  λ̄ ← λ̄ − ρ·(m/N)·mean and w ← w + mean − λ̄/ρ′. Clients who are not drawn stay in λ̄.
- primal and dual combined, z_p − λ_p/ρ′ − w with the dual after the round: w ← w + mean, and no dual is at the server.
  Where it adds noise (`user`, `hybrid`) a mean dual would add up the noise of all rounds. All clients must be in it.

ρ follows a public schedule. Balanced by residuals, as is usual, it would be made of un-noised data.

>>> make_schedule(2.0, 0.5, 3), make_schedule((1.0, 2.0), 1.0, 2)
((2.0, 1.0, 0.5), (1.0, 2.0))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.constants import share_of_clients, with_constants
from dpfed.federated.algorithms.protocol import WEIGHTS, LocalObjective, ModelChange, State, Task
from dpfed.plan.plan import Plan

PRIMAL, DUAL, ROUNDS = "primal", "dual", "rounds"


@dataclass(frozen=True)
class Admm(ModelChange):
    """The penalty ρ, a number or one for each round, and the two forms of what leaves a client.

    Privacy: one vector leaves a client, clipped and noised as the plan says; what it keeps is made of that vector as it
    left, and what the server keeps of the noised mean. So all of it is post-processing, and ρ is public.
    """

    kind: ClassVar[str]
    keeps_state: ClassVar[bool] = True
    needs_plain_sgd: ClassVar[bool] = True
    goes_on: ClassVar[bool] = False  # whether steps begin at the client's last primal, not at w
    rho: float | Sequence[float]
    rho_factor: float = 1.0
    share: float = field(default=np.nan, init=False, repr=False)  # m/N
    combines: bool = field(default=False, init=False, repr=False)
    rhos: tuple[float, ...] = field(default=(), init=False, repr=False)  # by round
    rates: tuple[float, ...] = field(default=(), init=False, repr=False)  # the clients' learning rates

    def __post_init__(self) -> None:
        if isinstance(self.rho, list):
            object.__setattr__(self, "rho", tuple(self.rho))
        make_schedule(self.rho, self.rho_factor, len(_listed(self.rho)) or 1)

    def bound_to(self, plan: Plan) -> Self:
        """Return the algorithm with the plan's schedule of ρ; every step must keep a share of where it began."""
        rhos, share = make_schedule(self.rho, self.rho_factor, plan.rounds), share_of_clients(plan, self.kind)
        rates = tuple(sorted({part.learning_rate for part in plan.kinds}))
        require_short_steps(max(rhos), rates[-1])
        return with_constants(self, rhos=rhos, share=share, rates=rates)

    def describe(self) -> str:
        """Return ρ and ζ by round, in words."""
        rates = self.rates if len(self.rates) == 1 else (self.rates[0], self.rates[-1])
        zetas = "; ".join(f"at learning rate {rate:g}: {show([1 / rate - rho for rho in self.rhos])}" for rate in rates)
        return f"Public penalty ρ by round: {show(self.rhos)}. Proximal ζ = 1/learning_rate − ρ, {zetas}."

    def start(self, weights: Floats) -> State:
        """Return the model; where the server keeps a mean dual it is zero, after no round."""
        return {WEIGHTS: weights} | ({} if self.combines else {DUAL: np.zeros(len(weights)), ROUNDS: np.zeros(1)})

    def objective(self, task: Task, state: State) -> LocalObjective:
        """Return the loss with a pull ρ towards the model that was sent, and a shift by −λ_p."""
        shift = -state[DUAL] if DUAL in state else None
        return LocalObjective(state.get(PRIMAL, task.weights), task.weights, self._rho(task.round), shift)

    def leaves(self, change: Floats, task: Task, state: State) -> Floats:
        """Return the primal as it lies from the model that was sent, combined with the dual where the form is so."""
        apart = change + (state[PRIMAL] - task.weights) if PRIMAL in state else change
        if not self.combines:
            return apart
        rho, after = self._rho(task.round), self._rho(task.round + 1)
        return np.asarray((1 + rho / after) * apart - state.get(DUAL, 0.0) / after)

    def keeps(self, left: Floats, task: Task, state: State) -> State:
        """Return the client's dual, and its primal if it goes on from it: those of the vector as it left."""
        dual, rho = state.get(DUAL, 0.0), self._rho(task.round)
        apart = left
        if self.combines:
            after = self._rho(task.round + 1)
            apart = np.asarray((left + dual / after) / (1 + rho / after))
        primal = {PRIMAL: task.weights + apart} if self.goes_on else {}
        return {DUAL: np.asarray(dual - rho * apart), **primal}

    def step(self, state: State, mean: Floats) -> State:
        """Return the next model; where the server keeps the mean dual, with that one and the rounds done."""
        if self.combines:
            return {WEIGHTS: state[WEIGHTS] + mean}
        number = int(state[ROUNDS][0]) + 1
        dual = state[DUAL] - self._rho(number) * self.share * mean
        moved = state[WEIGHTS] + mean - dual / self._rho(number + 1)
        return {WEIGHTS: moved, DUAL: dual, ROUNDS: np.array([float(number)])}

    def _rho(self, number: int) -> float:
        return self.rhos[min(number, len(self.rhos)) - 1]


def make_schedule(rho: Any, factor: float, rounds: int) -> tuple[float, ...]:
    """Return ρ by round, from a number and a factor or from one number for each round; refuse what is not above 0."""
    factor, listed = checks.positive(rho_factor=factor), _listed(rho)
    if listed and (factor != 1 or len(listed) != rounds):
        message = f"rho has {len(listed)} numbers for {rounds} rounds, and rho_factor is {factor:g}"
        raise InvalidArgument("rho", f"{message}: give one number for each round and no factor, or one number")
    with np.errstate(over="ignore", under="ignore"):
        rhos = listed or (np.float64(checks.positive(rho=rho)) * np.float64(factor) ** np.arange(rounds)).tolist()
    return tuple(checks.positive(rho=each) for each in rhos)


def require_short_steps(rho: float, rate: float) -> None:
    """Refuse steps that go further than ρ allows: ζ = 1/learning_rate − ρ would be below 0."""
    if rate * rho > 1:
        message = f"learning_rate × rho must be at most 1, got {rate:g} × {rho:g}: steps would leave where they began"
        raise InvalidArgument("rho", f"{message}, as ζ = 1/learning_rate − rho < 0; choose less of one of them")


def require_all_clients(plan: Plan, name: str) -> None:
    """Refuse a cohort without some client: what it sent before would have to stand in, and is a contribution too."""
    if plan.cohort.chance(len(plan.local)) < 1:
        message = f"{name} in style {plan.style!r} needs the dual of every client in every mean, and a stale one would"
        raise InvalidArgument("cohort", f"{message} contribute again without a charge: write cohort: {{kind: all}}")


def _listed(rho: Any) -> tuple[Any, ...]:
    return tuple(rho) if isinstance(rho, list | tuple) else ()


def show(values: Sequence[float]) -> str:
    """Return values by round in few letters: one if all are equal, the first and the last if there are many."""
    if len(set(values)) == 1:
        return f"{values[0]:g}"
    shown = [f"{value:.4g}" for value in values]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:3], "…", *shown[-2:]])
