from __future__ import annotations

import pytest

from dpfed.config.templates import hospitals
from dpfed.report.guessing import compare_with_guessing, share_of_guessing


def say(counts, metrics, released=None):
    config = hospitals().config
    data = config.data.model_copy(update={"class_counts": counts})
    facts = {"directory": "runs/a-1", "metrics": metrics}
    return " ".join(compare_with_guessing(config.model_copy(update={"data": data}), facts, released=released))


def test_the_share_is_that_of_the_most_frequent_class():
    assert share_of_guessing({"a": 1, "b": 3}) == 0.75
    assert share_of_guessing({}) is None


@pytest.mark.parametrize(
    ("score", "what"), [(0.8, "better than guessing: right in 80.00%"), (0.75, "NO BETTER THAN GUESSING")]
)
def test_a_public_score_is_held_against_declared_counts(score, what):
    assert what in say({"a": 1, "b": 3}, {"accuracy": {"value": score, "mark": ""}})


def test_what_is_not_public_is_left_to_the_owner():
    assert "dpfed evaluate runs/a-1" in say({}, {})
    assert "75.00%" in say({"a": 1, "b": 3}, {})


@pytest.mark.parametrize(
    ("low", "value", "what"),
    [(0.72, 0.8, "The model is better than"), (0.6, 0.8, "NOTHING SHOWS"), (0.5, 0.6, "NOTHING SHOWS")],
)
@pytest.mark.parametrize(
    ("kind", "counts"), [("confusion", [20, 10, 10, 60]), ("scores", [30, *[0] * 11, *[6] * 11, 4])]
)
def test_a_released_accuracy_is_held_against_released_counts_of_the_classes(kind, counts, low, value, what):
    figures = {"accuracy": {"low": low, "value": value, "high": 0.9}}
    said = say({}, {}, {"kind": kind, "counts": counts, "figures": figures})
    assert what in said
    assert "the most frequent class in 70.0% (released counts, with noise)" in said
    assert "released counts" not in say({"a": 1, "b": 3}, {}, {"kind": kind, "counts": counts, "figures": figures})


def test_a_released_accuracy_that_is_below_guessing_says_so_and_a_useless_one_says_nothing():
    made = {"kind": "confusion", "counts": [20, 10, 10, 60]}
    below = made | {"figures": {"accuracy": {"low": 0.5, "value": 0.6, "high": 0.69}}}
    assert "NO BETTER THAN GUESSING" in say({}, {}, below)
    for useless in ({"low": 0.0, "value": 0.5, "high": 1.0}, {"low": 0.0, "value": None, "high": 1.0}):
        assert "70" not in say({}, {}, made | {"figures": {"accuracy": useless}})


def test_hits_alone_and_noise_alone_say_nothing_of_classes():
    figures = {"accuracy": {"low": 0.5, "value": 0.6, "high": 0.7}}
    assert "for the owner alone" in say({}, {}, {"kind": "hits", "counts": [3, 9], "figures": figures}).lower()
    assert (
        "for the owner alone"
        in say({}, {}, {"kind": "confusion", "counts": [-1, 0, 0, -2], "figures": figures}).lower()
    )
