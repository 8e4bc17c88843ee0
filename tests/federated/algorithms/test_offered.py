"""The table of docs/how-to/admm.md, each cell of it: an algorithm runs in a style with a cohort, or is refused so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms import registry
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "admm.md"
STYLES = ("none", "sample", "user", "hybrid", "local")
COHORTS = {
    "all": All(),
    "poisson": PoissonCohort(0.6),
    "fixed": FixedCohort(2),
    "poisson secret": PoissonCohort(0.6, secret=True),
    "fixed secret": FixedCohort(2, secret=True),
}
OPTIONS = {"fedprox": {"proximal": 0.1}, "feddyn": {"alpha": 1.0}}
OPTIONS |= {name: {"rho": 1.0} for name in ("admm", "iadmm", "iceadmm", "iiadmm")}
WHY = {
    "a": "secret cohort of fixed size",
    "b": "a stale one would contribute again",
    "c": "shows no released primal",
    "d": "no bound on what a record does",
}


def read_cells():
    """Every algorithm, cohort and style of the page, with what it says of them."""
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in PAGE.read_text("utf-8").splitlines()]
    begin = next(number for number, row in enumerate(rows) if row == ["algorithm", "cohort", *STYLES])
    for names, cohorts, *says in (row for row in rows[begin + 2 :] if len(row) == 2 + len(STYLES)):
        for name in names.split(", "):
            for cohort in cohorts.split(", "):
                yield from ((name, cohort, style, say) for style, say in zip(STYLES, says, strict=True))


CELLS = list(read_cells())


def test_every_algorithm_style_and_cohort_is_in_the_table_once():
    expected = {(name, cohort, style) for name in registry.KINDS for cohort in COHORTS for style in STYLES}
    found = [cell[:3] for cell in CELLS]
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize(("name", "cohort", "style", "says"), CELLS)
def test_each_is_offered_or_refused_as_the_table_says(open_study, name, cohort, style, says):
    study = open_study(style, cohort=COHORTS[cohort], weighting="equal", rounds=2)
    study.plan = fit(study.plan, name)
    algorithm = registry.build(name, **OPTIONS.get(name, {}))
    if says != "yes":
        with pytest.raises(InvalidArgument, match=WHY[says]):
            study.federation(algorithm=algorithm)
        assert study.ledger.reservations() == ()
        return
    results = list(study.federation(algorithm=algorithm))
    assert [result.number for result in results] == [1, 2]
    assert np.isfinite(results[-1].weights).all()
    study.require_nothing_free()


def fit(plan, name):
    """The plan with one step, or with those that exact ADMM needs."""
    changed = {"steps": 1} if name == "iadmm" else {}
    if name == "admm":
        changed = {"steps": 40}
    local = {
        client: replace(part, **changed, batch_size=part.size if name == "admm" else part.batch_size)
        for client, part in plan.local.items()
    }
    return replace(plan, local=local)
