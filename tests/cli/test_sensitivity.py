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
