from __future__ import annotations

import json

import pytest


def test_fedavg_has_its_known_answers(dpfed):
    line = "sensitivity fedavg --clip 1 --lr .1 --records 500"
    assert dpfed(line).stdout == "sensitivity ≤ 0.0004 in L1, replace-one\n"
    assert dpfed(f"{line} --adjacency add_remove").stdout == "sensitivity ≤ 0.0002 in L1, add-remove\n"
    assert dpfed(f"{line} --norm l2").stdout == "sensitivity ≤ 0.0004 in L2, replace-one\n"


def test_fedavg_over_several_steps_counts_the_later_ones_in_full(dpfed):
    shown = json.loads(dpfed("sensitivity fedavg --clip 1 --lr .1 --records 500 --local-steps 3 --json").stdout)
    assert shown["sensitivity"] == pytest.approx(2 * 0.1 * (1 / 500 + 2))


def test_iadmm_has_its_known_answers(dpfed):
    line = "sensitivity iadmm --clip 1 --penalty 2 --records 500 --json"
    assert json.loads(dpfed(line).stdout) == {"sensitivity": 0.002, "norm": "l1", "adjacency": "replace_one"}
    assert json.loads(dpfed(f"{line} --proximity 2").stdout)["sensitivity"] == pytest.approx(0.001)
    assert json.loads(dpfed(f"{line} --adjacency add_remove").stdout)["sensitivity"] == pytest.approx(0.001)


@pytest.mark.parametrize("name", ["iadmm", "iceadmm", "iiadmm"])
def test_every_inexact_admm_has_the_same_bound(dpfed, name):
    line = f"sensitivity {name} --clip 1 --penalty 1.5 --proximity .5 --records 500 --norm l2"
    assert dpfed(line).stdout == "sensitivity ≤ 0.002 in L2, replace-one\n"
    assert dpfed(f"{line} --next-penalty 3").stdout == "sensitivity ≤ 0.003 in L2, replace-one\n"


def test_a_pull_scaffold_and_feddyn_have_their_known_answers(dpfed):
    step = "--clip 1 --lr .1 --records 500 --local-steps 3 --json"
    pulled = 2 * 0.1 * (0.25 / 500 + 1.5)
    for line, expected in {
        f"fedavg {step} --pull 5": pulled,
        f"feddyn {step} --alpha 5": pulled,
        f"scaffold {step}": 2 * 0.1 * (1 / 500 + 2),
    }.items():
        assert json.loads(dpfed(f"sensitivity {line}").stdout)["sensitivity"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("unit", "adjacency", "expected"),
    [
        ("record", "add_remove", 2),
        ("person", "add_remove", 2),
        ("client", "add_remove", 1),
        ("client", "replace_one", 2),
    ],
)
def test_a_whole_update_has_a_bound_for_the_unit_that_is_named(dpfed, unit, adjacency, expected):
    shown = dpfed(f"sensitivity update --clip 1 --unit {unit} --adjacency {adjacency}").stdout
    assert shown == f"sensitivity ≤ {expected} in L1, {adjacency.replace('_', '-')}\n"


def test_what_is_printed_is_rounded_up(dpfed):
    assert "≤ 0.3333333334 " in dpfed("sensitivity fedavg --clip 1 --lr .5 --records 3").stdout
    assert "≤ 0.6666666667 " in dpfed("sensitivity fedavg --clip 1 --lr 1 --records 3").stdout


def test_both_cases_stand_side_by_side_and_the_data_dependent_one_is_refused(dpfed):
    line = "sensitivity cases --clip 1 --lr .1 --records 500"
    first, second, third, fourth = dpfed(line).stdout.splitlines()
    assert "refused, because the largest change over your own records depends on them" in first
    assert "refused, because the count changes" in second
    assert "≤ 0.0002 in L1 (Cη/I)" in third
    assert "≤ 0.0004 in L1 (2Cη/I)" in fourth
    shown = json.loads(dpfed(f"{line} --json --norm l2").stdout)
    assert [case["sensitivity"] for case in shown["cases"]] == [
        None,
        None,
        pytest.approx(0.0002),
        pytest.approx(0.0004),
    ]


def test_all_formulas_are_listed_with_their_conditions(dpfed):
    shown = dpfed("sensitivity formulas").stdout
    facts = json.loads(dpfed("sensitivity formulas --json").stdout)
    assert len(facts) >= 14
    for name, formula in facts.items():
        assert f"\n{name}: {formula['release']}\n" in shown
        assert formula["witness"] in shown
        assert all(requirement in shown for requirement in formula["requires"])
