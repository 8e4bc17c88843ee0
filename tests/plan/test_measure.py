"""Every record is in one cell at most, whatever a model says of it, and figures are those of the counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.errors import InvalidArgument
from dpfed.mechanisms.counts import add_records
from dpfed.plan.measure import Measurement

TWO = {"epsilon": 0.2, "rounds": (3,), "classes": 2}
ANY = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize(
    ("metrics", "classes", "kind", "size"),
    [
        (("accuracy",), 10, "hits", 2),
        (("accuracy",), 2, "confusion", 4),
        (("accuracy", "confusion_matrix"), 10, "confusion", 100),
        (("sensitivity", "specificity"), 2, "confusion", 4),
        (("accuracy", "auc"), 2, "scores", 24),
    ],
)
def test_as_few_numbers_are_released_as_the_metrics_need(metrics, classes, kind, size):
    found = Measurement(metrics, 0.2, (3,), classes)
    assert (found.kind, found.size) == (kind, size)


@given(st.lists(st.tuples(ANY, ANY, st.integers(-3, 5)), min_size=1, max_size=20), st.sampled_from(["auc", "accuracy"]))
def test_every_record_is_in_one_cell_whatever_the_outputs_are_and_none_with_a_label_that_is_no_class(rows, metric):
    measurement = Measurement((metric,), **TWO)
    outputs, labels = np.array([row[:2] for row in rows]), np.array([row[2] for row in rows])
    cells = measurement.find_cells(outputs, labels)
    assert ((cells >= 0) == ((labels == 0) | (labels == 1))).all()
    assert cells.max() < measurement.size
    alone = [measurement.find_cells(outputs[[place]], labels[[place]])[0] for place in range(len(rows))]
    assert cells.tolist() == alone  # whatever the others are


def test_figures_without_noise_are_those_of_the_records():
    draws = np.random.default_rng(2)
    labels = draws.integers(0, 2, 500)
    outputs = np.stack([np.zeros(500), draws.normal(size=500) + 1.5 * labels - 0.75], axis=1)
    said = outputs.argmax(axis=1)
    exact = {
        "accuracy": np.mean(said == labels),
        "sensitivity": np.mean(said[labels == 1]),
        "specificity": np.mean(1 - said[labels == 0]),
    }
    for metrics in (tuple(exact), (*exact, "auc")):
        measurement = Measurement(metrics, **TWO)
        found = measurement.find_figures(add_records(measurement.find_cells(outputs, labels), measurement.size), 0.0)
        assert {name: found[name].value for name in exact} == pytest.approx(exact)
    pairs = outputs[labels == 1][:, None, 1] - outputs[labels == 0][None, :, 1]
    assert found["auc"].value == pytest.approx(np.mean(pairs > 0), abs=0.015)  # bins make it a little smaller
    assert all(figure.low < exact[name] < figure.high for name, figure in found.items() if name in exact)


def test_one_output_stands_for_the_second_of_two_classes():
    measurement = Measurement(("accuracy",), **TWO)
    assert measurement.find_cells(np.array([[-1.0], [2.0]]), np.array([0, 0])).tolist() == [0, 1]
    assert measurement.find_cells(np.array([[1.0, -1.0], [0.0, 2.0]]), np.array([0, 0])).tolist() == [0, 1]


def test_outputs_that_are_no_classes_of_records_are_refused():
    measurement = Measurement(("accuracy",), **TWO)
    for outputs in (np.zeros((3, 5)), np.zeros((3, 2, 4, 4))):
        with pytest.raises(InvalidArgument, match="leave metrics out"):
            measurement.require_outputs(outputs, np.zeros(3))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"metrics": ()}, "metrics must be of"),
        ({"metrics": ("f1",)}, "metrics must be of"),
        ({"metrics": ("auc",), "classes": 3}, "auc is for two classes"),
        ({"rounds": ()}, "rounds must name one"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"classes": 2000, "metrics": ("accuracy",)}, "at most 1000"),
        ({"fraction": 1.5}, "fraction"),
    ],
)
def test_a_measurement_that_is_none_is_refused(wrong, why):
    with pytest.raises(InvalidArgument, match=why):
        Measurement(**{"metrics": ("accuracy",), **TWO, **wrong})


def test_what_comes_after_a_shorter_plan_is_measured_at_its_end():
    assert Measurement(("accuracy",), 0.2, (2, 5, 9), 2).within(5).rounds == (2, 5)


def test_the_plain_form_reads_as_the_same():
    one = Measurement(("accuracy", "auc"), 0.2, (2, 5), 2, 0.3, 12)
    assert Measurement.from_plain(one.to_plain()) == one
