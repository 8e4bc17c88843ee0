from __future__ import annotations

import pytest

from dpfed.config.data import Data
from dpfed.errors import InvalidArgument
from dpfed.federated.bounds import find_unbounded, refuse_unbounded

FEATURES = ("age", "age is missing", "weight", "sex=f", "sex=m")


def block(**changed):
    values = {"source": "a.csv", "label": "y", "partition": {"kind": "iid", "clients": 1}, "indicator": ["age"]}
    return Data(**values | {"categories": {"sex": ["f", "m"]}} | changed)


def test_numbers_without_a_range_are_found_and_encoded_ones_are_not():
    assert find_unbounded(block(), FEATURES) == ["age", "weight"]
    assert find_unbounded(block(feature_bounds={"age": [0, 1]}), FEATURES) == ["weight"]


@pytest.mark.parametrize(
    "scaled", [{"feature_bounds": [0, 1]}, {"scale": 1}, {"mean": 0}, {"source": "sklearn:iris", "label": None}]
)
def test_any_declared_scale_is_enough(scaled):
    assert find_unbounded(block(**scaled), FEATURES) == []


def test_the_refusal_is_the_line_to_add():
    with pytest.raises(InvalidArgument, match=r"`feature_bounds: \{age: \[LOW, HIGH\], weight: \[LOW, HIGH\]\}`"):
        refuse_unbounded(block(), FEATURES)
    with pytest.raises(InvalidArgument, match=r"to data.feature_bounds add `weight: \[LOW, HIGH\]`"):
        refuse_unbounded(block(feature_bounds={"age": [0, 1]}), FEATURES)


def test_a_range_that_the_run_releases_is_one_and_only_of_numbers():
    refuse_unbounded(block(feature_bounds={"age": [0, 1]}), FEATURES, ("weight",))
    with pytest.raises(InvalidArgument, match="'sex', which is no feature of numbers: name one of age, weight"):
        refuse_unbounded(block(), FEATURES, ("sex",))
