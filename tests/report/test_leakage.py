"""Pictures of leakage are drawn from numbers."""

from __future__ import annotations

import pytest

from dpfed.report.leakage import draw_inversions, draw_roc, draw_sweep


def test_curves_are_drawn_with_their_names():
    drawn = draw_roc([("LiRA", [0.0, 0.01, 1.0], [0.0, 0.3, 1.0])])
    assert drawn.rstrip().endswith("</svg>")
    assert "LiRA" in drawn
    assert "members found" in drawn


def test_a_sweep_has_a_row_for_each_setting_and_a_dot_for_each_run():
    drawn = draw_sweep([("ε = 8", 0.9, 0.6, 0.02), ("ε = 8", 0.91, 0.61, 0.02), ("ε = 1", 0.8, 0.5, 0.01)], "accuracy")
    assert drawn.count("ε = 8") == 1
    assert "accuracy" in drawn


def test_pictures_stand_in_rows_with_a_label_each():
    drawn = draw_inversions([("records", [[[0.0, 1.0]], [[1.0, 0.0]]]), ("no noise", [[[0.0, 1.0]], [[1.0, 0.0]]])])
    assert drawn.count("<image") == 4
    assert "no noise" in drawn


@pytest.mark.parametrize(("auc", "failed"), [(None, 2), (0.6, 0)])
def test_a_setting_whose_attacks_failed_keeps_its_row_and_says_so(auc, failed):
    drawn = draw_sweep([("none", 0.9, auc, auc)], "accuracy")
    assert drawn.count(">failed<") == failed
    assert drawn.count(">none<") == 1


def test_a_sweep_of_nothing_is_an_empty_picture():
    assert draw_sweep([], "accuracy").startswith("<?xml")
