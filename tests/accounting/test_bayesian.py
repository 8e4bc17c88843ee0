"""Posterior sampling as an event, and the owner's diagnostic, which is a guarantee nowhere."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfed
from dpfed.accounting import epsilon
from dpfed.accounting.bayesian import (
    OwnersDiagnostic,
    bernoulli_ratio,
    bounded_ratio,
    diagnose,
    posterior_sampling_event,
    tempering_power,
)
from dpfed.accounting.notions import compare
from dpfed.errors import InvalidArgument
from dpfed.events import Gaussian, PoissonSampled, PureDP, Repeated
from dpfed.guarantee import Guarantee

CASES = json.loads((Path(__file__).parents[1] / "reference" / "shuffle.json").read_text(encoding="utf-8"))
SOURCE = Path(dpfed.__file__).parent
# Who may ask for the diagnostic: the comparison of notions, in which it is marked.
MAY_ASK = {"accounting/notions.py"}


def cases(group: str) -> list[Any]:
    return [pytest.param(case["inputs"], case, id=case["id"]) for case in CASES if case["group"] == group]


def distances_of(text: str) -> np.ndarray:
    scale = float(text.split("*")[0]) if "*" in text else 1.0
    return scale * np.linspace(0, 1, 101)


@pytest.mark.parametrize(("given", "case"), cases("bayesian_accountant"))
def test_the_diagnostic_is_that_of_its_authors(given: Any, case: Any) -> None:
    assert given["steps"] == given["total_steps"]
    found = diagnose(
        distances_of(given["dist"]),
        noise_multiplier=given["sigma"],
        sample_rate=given["q"],
        steps=given["steps"],
        delta=given["delta"],
        confidence=given["conf"],
    )
    assert found.epsilon == pytest.approx(case["expected"], rel=case["tol"])


@pytest.mark.parametrize(("given", "case"), cases("posterior_sampling"))
def test_a_draw_from_a_truncated_posterior_costs_the_known_epsilon(given: Any, case: Any) -> None:
    event = posterior_sampling_event(bernoulli_ratio(given["a"]))
    assert epsilon(event, 0.0, adjacency="replace_one") == pytest.approx(case["expected"], rel=case["tol"])


def test_no_records_change_a_posterior_on_a_grid_by_more_than_epsilon() -> None:
    theta = np.linspace(0.1, 0.9, 41)

    def draw(ones: int, records: int) -> np.ndarray:
        weights = theta**ones * (1 - theta) ** (records - ones)
        return weights / weights.sum()

    event = posterior_sampling_event(bernoulli_ratio(0.1))
    for records in (1, 2, 5, 30):
        for ones in range(records):
            ratio = np.abs(np.log(draw(ones, records) / draw(ones + 1, records))).max()
            assert ratio <= event.epsilon


def test_a_bounded_log_likelihood_costs_four_times_its_bound() -> None:
    assert posterior_sampling_event(bounded_ratio(0.5)).epsilon == pytest.approx(2.0, rel=1e-12)
    assert isinstance(posterior_sampling_event(0.5), PureDP)
    assert posterior_sampling_event(0.5).adjacency == "replace_one"


@pytest.mark.parametrize("asked", [0.01, 1.0, 3.0])
def test_tempering_meets_the_epsilon_asked_for(asked: float) -> None:
    ratio = bounded_ratio(1.5)
    power = tempering_power(asked, ratio)
    assert asked * (1 - 1e-12) <= posterior_sampling_event(ratio, power).epsilon <= asked
    assert tempering_power(100.0, ratio) == 1.0


@pytest.mark.parametrize("edge", [0.0, 0.51, 0.9])
def test_an_untruncated_prior_is_refused(edge: float) -> None:
    with pytest.raises(InvalidArgument, match="edge"):
        bernoulli_ratio(edge)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"distances": [0.1, 0.2]}, "distances"),
        ({"distances": [0.1, 0.2, -1.0]}, "distances"),
        ({"confidence": 0.9}, "confidence"),
        ({"delta": 0.0}, "delta"),
        ({"steps": 0}, "steps"),
        ({"sample_rate": 0.0}, "sample_rate"),
    ],
)
def test_nonsense_is_refused_by_name(changed: dict[str, Any], name: str) -> None:
    given = {"distances": [0.1, 0.2, 0.3], "noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 5, "delta": 1e-5}
    with pytest.raises(InvalidArgument) as caught:
        diagnose(**{**given, **changed})
    assert caught.value.argument == name


def test_distances_that_are_all_alike_are_one_number_without_a_spread() -> None:
    found = diagnose([1.0] * 50, noise_multiplier=1.0, sample_rate=0.01, steps=100, delta=1e-5)
    assert math.isfinite(found.epsilon)
    # With gradients that are all a clip norm apart nothing is typical, and nothing is gained.
    assert found.epsilon > epsilon(Repeated(PoissonSampled(Gaussian(1.0), 0.01), 100), 1e-5)


def test_the_diagnostic_is_no_guarantee_and_says_so() -> None:
    found = diagnose([0.1, 0.2, 0.3], noise_multiplier=1.0, delta=1e-5)
    assert isinstance(found, OwnersDiagnostic)
    assert not isinstance(found, Guarantee)
    assert "not a guarantee" in str(found)


def importing(name: str) -> set[str]:
    """The modules of dpfed that import that name, or something of the module of that name."""
    module, _, last = name.rpartition(".")
    found = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        nodes = ast.walk(ast.parse(text)) if module in text else ()
        for node in nodes:
            froms = isinstance(node, ast.ImportFrom) and (
                node.module == name or (node.module == module and last in {each.name for each in node.names})
            )
            if froms or (isinstance(node, ast.Import) and name in {each.name for each in node.names}):
                found.add(path.relative_to(SOURCE).as_posix())
    return found


def test_no_report_plan_or_ledger_can_ask_for_the_diagnostic() -> None:
    """In the shareable report it cannot be: nothing that makes one imports it, or the comparison that shows it."""
    assert importing("dpfed.accounting.bayesian") == MAY_ASK
    assert importing("dpfed.accounting.notions.compare") == {"cli/compare.py"}


def test_in_a_comparison_it_is_marked_as_the_owners() -> None:
    run = Repeated(PoissonSampled(Gaussian(1.0), 0.01), 100)
    row = next(row for row in compare(run, 1e-5, distances=[0.1, 0.2, 0.2]) if row.notion == "bayesian")
    assert row.epsilon is not None
    assert "not a guarantee" in row.remark
    assert next(row for row in compare(run, 1e-5) if row.notion == "bayesian").epsilon is None
