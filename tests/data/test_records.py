from __future__ import annotations

import numpy as np
import pytest

from dpfed.data.records import Records
from dpfed.errors import InvalidArgument


def test_a_part_keeps_columns_groups_and_classes():
    groups = {"site": np.array(["n", "s", "n"])}
    records = Records(np.eye(3), np.arange(3), ("a", "b", "c"), groups, ("x", "y", "z"))
    part = records.take(np.array([True, False, True]))
    assert part.labels.tolist() == [0, 2]
    assert part.groups["site"].tolist() == ["n", "n"]
    assert (part.columns, part.classes) == (records.columns, records.classes)


def test_the_text_form_does_not_tell_how_many_records_there_are():
    assert repr(Records(np.zeros((17, 1)), np.zeros(17), ("age",))) == "Records(columns=('age',))"


def test_records_cannot_be_changed_in_place():
    mine = np.zeros((2, 2))
    records = Records(mine, [0, 1])
    with pytest.raises(ValueError, match="read-only"):
        records.features[0, 0] = 1.0
    mine[0, 0] = 1.0  # the caller's own array stays writable


@pytest.mark.parametrize(
    ("features", "labels", "what"),
    [
        ([[1.0], [2.0]], [0], "the same length of at least one"),
        (np.zeros((0, 3)), [], "at least one"),
        ([[1.0], [np.inf]], [0, 1], "record 2"),
        ([[1.0], [2.0]], [0.0, np.nan], "record 2, column label"),
        ([["a"], ["b"]], [0, 1], "must be numbers"),
        (3.0, [0], "one entry or row"),
        (np.array([None, None]), [0, 1], "one entry or row"),
    ],
)
def test_records_that_are_not_numbers_or_not_paired_are_refused(features, labels, what):
    with pytest.raises(InvalidArgument, match=what):
        Records(features, labels)


def test_columns_must_name_every_feature():
    with pytest.raises(InvalidArgument, match="1 columns are named"):
        Records([[1.0, 2.0]], [0], ("age",))
