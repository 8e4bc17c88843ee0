"""A plan of each kind that a report tells differently, and how a test finds a part of its page."""

from __future__ import annotations

from dpfed.plan.plan import PoissonCohort
from dpfed.report import documents
from run_directories import plan_of

PLANS = {
    "none": plan_of("none"),
    "sample": plan_of("sample"),
    "user": plan_of("user"),
    "hybrid": plan_of("hybrid"),
    "secret": plan_of("hybrid", cohort=PoissonCohort(rate=0.5, secret=True), rounds=4),
}


def section(page: documents.Document, title: str) -> documents.Section:
    """Return the section of that title."""
    return next(part for part in page.sections if part.title == title)
