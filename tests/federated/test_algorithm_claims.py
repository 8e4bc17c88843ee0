"""The sensitivities that dpfed states for its own algorithms, against a search that runs the algorithms' own code."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithm_claims import CLAIMS, DIMENSION, LocalSteps, build, claim_steps
from dpfed.federated.algorithms.constants import with_constants
from dpfed.federated.algorithms.fedavg import FedAvg
from dpfed.federated.algorithms.feddyn import FedDyn
from dpfed.federated.algorithms.scaffold import Scaffold
from dpfed.federated.messages import Task
from dpfed.mechanisms.claims import Box, check_sensitivity
from dpfed.mechanisms.formulas import FORMULAS
from dpfed.mechanisms.sensitivity import fedavg_step
from dpfed.training.objective import LocalObjective

NORMS, ADJACENCIES = ("l1", "l2"), ("replace_one", "add_remove")
# Every formula under every adjacency for which it has a bound, and pulls that overshoot.
FORMULA_CASES = [
    (formula.name, {**dict(formula.options), "norm": norm, "adjacency": adjacency})
    for formula in FORMULAS.values()
    for norm in NORMS
    for adjacency in ADJACENCIES
    if not getattr(formula, adjacency).startswith("refused")
]
OVERSHOOTING = [("fedprox", {"steps": 3, "proximal": pull, "norm": norm}) for pull, norm in ((3.0, "l2"), (4.0, "l1"))]
BOUNDED = [*FORMULA_CASES, *OVERSHOOTING]
REFUSED = [formula for formula in FORMULAS.values() if formula.add_remove.startswith("refused")]


def describe(case):
    name, options = case
    return "-".join([name, *(f"{value}" for value in options.values())])


every_bound = pytest.mark.parametrize("case", BOUNDED, ids=describe)


@every_bound
def test_the_witness_attains_the_bound(case):
    claim = build(case[0], **case[1])
    assert 1 - 1e-8 < claim.measure(claim.witness) <= 1 + 1e-9


@every_bound
def test_no_neighbours_are_found_that_break_a_bound(case, campaign_scale):
    found = check_sensitivity(build(case[0], **case[1]), trials=10_000 if campaign_scale > 1 else 100, seed=1)
    assert not found.is_refuted, found.verdict
    assert found.ratio > 1 - 1e-8


@every_bound
def test_half_of_a_bound_is_refuted_without_its_witness(case):
    claim = build(case[0], **case[1])
    halved = replace(claim, sensitivity=claim.sensitivity / 2, witness=None)
    found = check_sensitivity(halved, trials=1000 if case[1].get("steps", 1) > 1 else 100)
    assert found.is_refuted, found.verdict


def test_every_claim_is_that_of_a_formula_and_every_formula_has_one():
    assert {formula.name for formula in FORMULAS.values()} == set(CLAIMS)


@pytest.mark.parametrize("formula", REFUSED, ids=lambda formula: formula.release)
def test_a_bound_that_the_table_says_is_refused_is_refused(formula):
    with pytest.raises(InvalidArgument, match="no add/remove bound"):
        build(formula.name, **dict(formula.options), adjacency="add_remove")


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("pull", [0.0, 0.7, 2.0, 3.0, 4.0])
@pytest.mark.parametrize(("rate", "records", "clip"), [(0.5, 4, 1.0), (0.05, 2, 3.0), (0.3, 7, 0.2)])
def test_the_witness_attains_the_bound_with_other_constants(rate, records, clip, pull, steps):
    settings = {"clip_norm": clip, "learning_rate": rate, "records": records, "steps": steps}
    claim = build("fedprox", proximal=pull, **settings)
    assert claim.measure(claim.witness) == pytest.approx(1, rel=1e-8)


def test_a_pull_beyond_two_over_the_learning_rate_moves_further_than_without_one_and_is_refused():
    local = LocalSteps(learning_rate=0.5, records=4, steps=3)
    free = fedavg_step(local.clip_norm, 0.5, 4, steps=3)
    with pytest.raises(InvalidArgument, match="overshoots"):
        build("fedprox", proximal=5.0, steps=3)
    records, newcomer = local.witness("replace_one", pull=5.0)
    ends = [
        local.run(LocalObjective(np.zeros(DIMENSION), pull=5.0), each)
        for each in (records, np.vstack([newcomer, records[1:]]))
    ]
    assert np.abs(ends[0] - ends[1]).sum() > free


def test_an_exact_control_variate_moves_the_second_release_by_more_than_the_bound():
    """It is what `scaffold_step` and `feddyn_step` refuse: here it is part of the release, made by `keeps`."""

    claim, local = build("scaffold"), LocalSteps()
    algorithm = with_constants(Scaffold(), length=0.5)

    def second(records, public):
        task = Task(1, {"weights": public[0], "control": public[1]})
        change = local.run(algorithm.objective(task, {}), records)
        return local.run(algorithm.objective(task, algorithm.keeps(change, task, {})), records * [1, -1, -1])

    found = check_sensitivity(replace(claim, release=second, public=Box((2, 2)), witness=None), trials=500)
    assert found.is_refuted
    assert found.ratio == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("algorithm", [FedAvg(), Scaffold(), FedDyn(alpha=0.5)], ids=lambda each: each.kind)
def test_what_is_sent_and_kept_is_public_in_a_claim(algorithm):
    vectors = {"fedavg": 1, "scaffold": 3, "feddyn": 2}[algorithm.kind]
    claim = claim_steps(algorithm, fedavg_step(1.0, 0.5, 4), LocalSteps())
    assert claim.public.shape == (vectors, DIMENSION)


def test_what_leaves_is_what_the_algorithm_says():
    @dataclass(frozen=True)
    class Tenfold(FedAvg):
        def leaves(self, change, task, state):
            return 10 * change

    found = check_sensitivity(claim_steps(Tenfold(), fedavg_step(1.0, 0.5, 4), LocalSteps()), trials=50)
    assert found.ratio == pytest.approx(10)


def test_the_primal_of_inexact_admm_is_that_of_the_notes():
    claim = build("iadmm", penalty=2.0, proximity=1.0, total_records=3)
    w, dual, previous = public = np.array([[0.3, -0.1], [0.5, 0.2], [-0.4, 0.8]])
    records = np.array([[0.0, 0.25, 0.5], [0.0, -0.5, 0.1], [2.0, 0.0, 0.0]])
    gradient = np.vstack([[0.25, 0.5], [-0.5, 0.1], np.array([-0.8, 1.6]) / 2.4]).sum(axis=0) / 3
    expected = (2.0 * w + dual + 1.0 * previous - gradient) / 3.0
    assert claim.release(records, public) == pytest.approx(expected - w, rel=1e-7)


def test_the_bound_of_the_primal_is_too_small_for_primal_and_dual_in_one_vector():
    primal, both = build("iceadmm"), build("iceadmm", next_penalty=2.0)
    found = check_sensitivity(replace(both, sensitivity=primal.sensitivity), trials=100)
    assert found.ratio == pytest.approx(2, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nonsense", {}, "one of fedavg"),
        ("admm", {}, "check iadmm, iceadmm or iiadmm"),
        ("fedavg", {"depth": 3}, "no option depth: choose among adjacency, clip_norm"),
        ("iadmm", {"rho": 3}, "no option rho: choose among clip_norm, penalty"),
        ("fedavg", {"clipping": "none"}, "clipping"),
        ("fedavg", {"steps": 0}, "steps"),
        ("fedavg", {"norm": "l3"}, "norm"),
        ("scaffold", {"clip_norm": -1.0}, "clip_norm"),
        ("feddyn", {"alpha": 0.0}, "alpha"),
        ("iadmm", {"penalty": 0.0}, "penalty"),
        ("update", {"unit": "site"}, "unit"),
        ("math:pi", {}, "no SensitivityClaim"),
        ("math:pi", {"x": 1}, "takes no options"),
        ("math:sqrt", {}, "cannot be made"),
        ("math:nonsense", {}, "has no nonsense"),
    ],
)
def test_a_claim_that_cannot_be_made_is_refused(name, options, words):
    with pytest.raises(InvalidArgument, match=words):
        build(name, **options)


def test_clients_of_fedopt_are_those_of_fedavg():
    assert build("fedopt", steps=2).sensitivity == build("fedavg", steps=2).sensitivity


def test_a_claim_of_ones_own_is_found_in_a_directory(tmp_path):
    (tmp_path / "claimed_here.py").write_text(
        "from dpfed.mechanisms.claims import Box, SensitivityClaim\n"
        "from dpfed.mechanisms.sensitivity import Sensitivity\n"
        "claim = SensitivityClaim(lambda r, p: r.sum(), Sensitivity(1.0, 'l1', 'add_remove'), Box((1,)))\n"
    )
    assert not check_sensitivity(build("claimed_here:claim", directory=tmp_path), trials=50).is_refuted
