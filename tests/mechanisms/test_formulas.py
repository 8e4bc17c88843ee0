from __future__ import annotations

import pytest

from dpfed.mechanisms.formulas import CASES, FORMULAS, LEGEND
from dpfed.mechanisms.sensitivity import clipped_update, fedavg_step, feddyn_step, iadmm_step, scaffold_step

C, RATE, COUNT, E, PULL, RHO, ZETA = 0.7, 0.2, 40, 3, 4.0, 2.0, 0.5
R = abs(1 - RATE * PULL)
NUMBERS = {
    "2Cη/I": 2 * C * RATE / COUNT,
    "Cη/I": C * RATE / COUNT,
    "2Cη(1/I + E − 1)": 2 * C * RATE * (1 / COUNT + E - 1),
    "2Cη(rᴱ⁻¹/I + 1 + r + … + rᴱ⁻²)": 2 * C * RATE * (R**2 / COUNT + 1 + R),
    "2CηE": 2 * C * RATE * E,
    "2C/(I(ρ + ζ))": 2 * C / (COUNT * (RHO + ZETA)),
    "C/(I(ρ + ζ))": C / (COUNT * (RHO + ZETA)),
    "(1 + ρ/ρ′)·2C/(I(ρ + ζ))": 4 * C / (COUNT * (RHO + ZETA)),
    "(1 + ρ/ρ′)·C/(I(ρ + ζ))": 2 * C / (COUNT * (RHO + ZETA)),
    "2S": 2 * C,
    "S": C,
}
CALLS = {
    "fedavg": lambda **how: fedavg_step(C, RATE, COUNT, **how),
    "fedprox": lambda **how: fedavg_step(C, RATE, COUNT, pull=PULL, **how),
    "scaffold": lambda **how: scaffold_step(C, RATE, COUNT, **how),
    "feddyn": lambda **how: feddyn_step(C, RATE, COUNT, PULL, **how),
    "iadmm": lambda **how: iadmm_step(C, RHO, COUNT, ZETA, **how),
    "iceadmm": lambda **how: iadmm_step(C, RHO, COUNT, ZETA, **how),
    "iiadmm": lambda **how: iadmm_step(C, RHO, COUNT, ZETA, **how),
    "update": lambda **how: clipped_update(C, **how),
}


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_text_of_a_formula_is_what_is_computed(name, adjacency):
    formula = FORMULAS[name]
    text = getattr(formula, adjacency)
    if not text.startswith("refused"):
        bound = CALLS[formula.name](adjacency=adjacency, **dict(formula.options))
        assert float(bound) == pytest.approx(NUMBERS[text], rel=1e-12)


@pytest.mark.parametrize("name", FORMULAS)
def test_every_formula_says_what_must_be_public_and_who_attains_it(name):
    assert FORMULAS[name].requires
    assert FORMULAS[name].witness


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_has_a_bound_or_is_refused_with_a_reason(case):
    assert (case.bound == "refused") == (case.adjacency is None)
    assert case.why
    if case.adjacency is not None:
        assert float(fedavg_step(C, RATE, COUNT, adjacency=case.adjacency)) == pytest.approx(NUMBERS[case.bound])


def test_the_legend_explains_every_letter():
    assert all(letter in LEGEND for letter in "CSηIEμrρζ")
