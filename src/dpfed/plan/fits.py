"""What a plan would look like within another budget: with more noise, or with fewer rounds.

>>> from dpfed.guarantee import Guarantee
>>> from dpfed.plan.plan import LocalPlan, Plan
>>> ward = LocalPlan(size=100, batch_size=10, steps=5, clip_norm=1.0)
>>> plan = Plan("study", rounds=10, local={"ward": ward}).calibrated(Guarantee(epsilon=4.0, delta=1e-5))
>>> fit = fit_budget(plan, Guarantee(epsilon=2.0, delta=1e-5))
>>> round(fit.noise_multiplier, 2), fit.rounds
(1.75, 1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpfed.accounting.search import largest_count
from dpfed.errors import InfeasibleTarget
from dpfed.guarantee import Guarantee
from dpfed.plan.cohort import All
from dpfed.plan.plan import Plan

MOST_ROUNDS = 100_000


@dataclass(frozen=True)
class Fit:
    """Two ways into a budget: the noise multiplier that all rounds need, or the rounds that the present noise allows.

    There is no noise multiplier where no noise is enough. Of unequal sites it is that of the one that needs most.
    """

    budget: Guarantee
    noise_multiplier: float | None
    rounds: int


def fit_budget(plan: Plan, budget: Guarantee) -> Fit:
    """Return what fits within the budget, which is for one of the plan's units."""
    return Fit(budget, _find_noise(plan, budget), _find_rounds(plan, budget))


def _find_noise(plan: Plan, budget: Guarantee) -> float | None:
    try:
        found = _keep_binding(_drop_guarantees(plan), budget).calibrated(budget)
    except InfeasibleTarget:
        return None
    if budget.unit == "client":
        return found.client.noise if found.client is not None else None
    return max(part.noise for part in found.kinds)


def _find_rounds(plan: Plan, budget: Guarantee) -> int:
    """Return the most rounds at the plan's own noise, up to 100,000: more rounds never cost less.

    A tree over the rounds is made for those of its plan: they fit, or none do. Of a noise schedule it is the first
    rounds that are counted, and there are no more than it has.
    """
    if plan.client is not None and plan.client.tree is not None:
        return plan.rounds if _epsilon(plan, plan.rounds, budget) <= budget.epsilon else 0
    return largest_count(lambda rounds: _epsilon(plan, rounds, budget), budget.epsilon, start=plan.rounds)


def _epsilon(plan: Plan, rounds: int, budget: Guarantee) -> float:
    if rounds > MOST_ROUNDS or (plan.noise_schedule is not None and rounds > plan.rounds):
        return math.inf
    most = plan.max_participations
    most = None if most is None else min(most, rounds)
    schedule = None if plan.noise_schedule is None else plan.noise_schedule[:rounds]
    measured = None if plan.measurement is None else plan.measurement.within(rounds)
    tried = replace(
        _drop_guarantees(plan),
        rounds=rounds,
        max_participations=most,
        noise_schedule=schedule,
        measurement=measured,
    )
    return tried.client_epsilon(budget.delta) if budget.unit == "client" else tried.record_epsilon(budget.delta)


def _keep_binding(plan: Plan, budget: Guarantee) -> Plan:
    """Return the plan with the sites that need most noise, where that is known without the accountant.

    Of sites that differ in their sampling rate alone it is those with the highest: a larger Poisson sample dominates.
    """
    is_plain = budget.unit != "client" and plan.max_sites_per_person == 1 and plan.client is None
    alike = {replace(part, size=1, batch_size=1, noise_multiplier=None, learning_rate=1.0) for part in plan.kinds}
    if not is_plain or len(alike) > 1 or not isinstance(plan.cohort, All):
        return plan
    highest = max(part.sample_rate for part in plan.kinds)
    name = next(name for name, part in plan.local.items() if part.sample_rate == highest)
    return replace(plan, local={name: plan.local[name]})


def _drop_guarantees(plan: Plan) -> Plan:
    """Return the plan without its guarantees, which another number of rounds would not keep."""
    return replace(plan, guarantee=None, client_guarantee=None)
