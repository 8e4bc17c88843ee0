"""How hard the tests try, and what a skip means.

``DPFED_CAMPAIGN=1`` makes random tests draw many more, and fresh, examples; without it they are few
and always the same.

``DPFED_NO_SKIP=1`` turns every skip into a failure: a laptop may skip with one line of reason, CI may not.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

CAMPAIGN = os.environ.get("DPFED_CAMPAIGN") == "1"
NO_SKIP = os.environ.get("DPFED_NO_SKIP") == "1"
SCALE = 10

# Two workers share two cores: threads of torch that wait for each other take seven times as long there.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A red run must be the change's fault and not chance's, so both profiles always take the same cases; DPFED_RANDOM=1
# takes new ones, for whoever goes hunting. No deadline: a slow machine is not a bug, and how fast the accountant is
# belongs to benchmarks/.
settings.register_profile("short", deadline=None, max_examples=50, derandomize=True)
settings.register_profile(
    "campaign",
    deadline=None,
    max_examples=50 * SCALE,
    derandomize=os.environ.get("DPFED_RANDOM") != "1",
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("campaign" if CAMPAIGN else "short")


@pytest.fixture(scope="session")
def campaign_scale() -> int:
    """How many times more cases a random test takes than on a laptop: 1, or 10 in a campaign."""
    return SCALE if CAMPAIGN else 1


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"DPFED_NO_SKIP=1, but {report.nodeid} was skipped. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid_skip(report)
    return report
