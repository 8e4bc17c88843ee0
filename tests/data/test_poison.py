"""Poisoned records are as many as before, of the same shape, and wrong."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.data.poison import add_trigger, flip_labels, measure_backdoor, plant_backdoor, poison
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument


def make_records():
    return Records(np.arange(40.0).reshape(10, 4), np.arange(10) % 3)


def test_labels_are_turned_around_and_features_stay():
    records = make_records()
    flipped = flip_labels(records, classes=3)
    assert flipped.labels.tolist() == [2 - label for label in records.labels]
    assert (flipped.features == records.features).all()


def test_a_backdoor_is_in_a_share_of_the_records():
    records = make_records()
    poisoned = plant_backdoor(records, target=2, share=0.4, value=9.0)
    assert (poisoned.features[:4, :3] == 9).all()
    assert (poisoned.features[4:] == records.features[4:]).all()
    assert poisoned.labels[:4].tolist() == [2] * 4
    assert (records.features == make_records().features).all()


def test_a_trigger_is_set_in_pictures_too():
    marked = add_trigger(np.zeros((2, 3, 3)))
    assert marked.reshape(2, -1)[:, :3].all()
    assert marked.sum() == 6


@pytest.mark.parametrize("name", ["label_flip", "backdoor"])
def test_an_attack_on_records_is_for_classes_alone(name):
    assert len(poison(name, make_records(), 3)) == 10
    with pytest.raises(InvalidArgument, match="choose an attack on updates"):
        poison(name, Records(np.ones((2, 2)), np.array([0.5, 1.5])), 3)


def test_the_success_of_a_backdoor_is_counted_on_records_of_other_classes_with_the_trigger():
    records = Records(np.zeros((4, 5)), np.array([0, 1, 2, 2]))
    seen = []

    def predict(features):
        seen.append(features)
        return np.array([0, 0, 2])

    assert measure_backdoor(predict, records) == pytest.approx(2 / 3)
    assert seen[0].tolist() == [[1, 1, 1, 0, 0]] * 3
    assert not records.features.any()
    assert measure_backdoor(lambda features: np.array([1, 0]), records, target=2) == 0


def test_a_backdoor_to_the_only_class_has_no_success_to_measure():
    with pytest.raises(InvalidArgument, match="give records of other classes"):
        measure_backdoor(lambda features: features, Records(np.zeros((2, 5)), np.array([0, 0])))
