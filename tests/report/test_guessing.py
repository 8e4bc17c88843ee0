from __future__ import annotations

import pytest

from dpfed.config.templates import hospitals
from dpfed.report.guessing import compare_with_guessing, share_of_guessing


def say(counts, metrics):
    config = hospitals().config
    data = config.data.model_copy(update={"class_counts": counts})
    facts = {"directory": "runs/a-1", "metrics": metrics}
    return " ".join(compare_with_guessing(config.model_copy(update={"data": data}), facts))


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
