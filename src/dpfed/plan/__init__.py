"""The plan of a run: frozen values that say what is released, how often, with which noise and at what cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed.names import load_lazily

if TYPE_CHECKING:
    from dpfed.aggregation.rules import Mean as Mean
    from dpfed.plan.adaptive import AdaptiveClip as AdaptiveClip
    from dpfed.plan.algorithm import Algorithm as Algorithm
    from dpfed.plan.client import ClientPlan as ClientPlan
    from dpfed.plan.cohort import All as All
    from dpfed.plan.cohort import FixedCohort as FixedCohort
    from dpfed.plan.cohort import Participant as Participant
    from dpfed.plan.cohort import PoissonCohort as PoissonCohort
    from dpfed.plan.local import LocalPlan as LocalPlan
    from dpfed.plan.plan import Plan as Plan
    from dpfed.plan.population import Population as Population
    from dpfed.plan.server import ClientRelease as ClientRelease
    from dpfed.plan.server import Released as Released
    from dpfed.plan.server import ServerRelease as ServerRelease

_HOME = {
    "AdaptiveClip": "dpfed.plan.adaptive",
    "Algorithm": "dpfed.plan.algorithm",
    "All": "dpfed.plan.cohort",
    "ClientPlan": "dpfed.plan.client",
    "ClientRelease": "dpfed.plan.server",
    "FixedCohort": "dpfed.plan.cohort",
    "LocalPlan": "dpfed.plan.local",
    "Mean": "dpfed.aggregation.rules",
    "Participant": "dpfed.plan.cohort",
    "Plan": "dpfed.plan.plan",
    "PoissonCohort": "dpfed.plan.cohort",
    "Population": "dpfed.plan.population",
    "Released": "dpfed.plan.server",
    "ServerRelease": "dpfed.plan.server",
}

__all__ = [*_HOME]

__getattr__, __dir__ = load_lazily(__name__, _HOME)
