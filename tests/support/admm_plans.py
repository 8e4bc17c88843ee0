"""Plans for ADMM algorithms: four clients with all their records in every step."""

from __future__ import annotations

from dataclasses import replace

from convex import RECORDS
from dpfed.plan.plan import LocalPlan, Plan

RHO = 1.0
STEPS = {"admm": 30, "iadmm": 1, "iceadmm": 5, "iiadmm": 5}


def a_plan(name, rounds=2, clients="abcd", **changed):
    local = LocalPlan(size=RECORDS, batch_size=RECORDS, steps=STEPS[name], learning_rate=0.4)
    options = {"style": "none", "weighting": "equal", **changed}
    return Plan("study", rounds, dict.fromkeys(clients, local), **options)


def small(name, rate=0.2, **changed):
    plan = a_plan(name, **changed)
    return replace(plan, local={key: replace(part, learning_rate=rate) for key, part in plan.local.items()})
