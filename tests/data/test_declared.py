from __future__ import annotations

import pytest

from dpfed.data.declared import Declared, Missing, refuse_missing
from dpfed.errors import InvalidArgument


def test_features_are_named_in_their_order():
    declared = Declared({"sex": ["f", "m"]}, {"age": 1}, ["age"])
    assert declared.name_features("age") == ["age", "age is missing"]
    assert declared.name_features("sex") == ["sex=f", "sex=m"]
    assert declared.name_features("other") == ["other"]


def test_a_category_may_look_like_a_number():
    assert Declared({"ward": ["1", "007"]}, {"ward": "007"}).bears_missing("ward")
    assert Declared({}, {"age": "1e2"}).number("age") == 100


@pytest.mark.parametrize("fill", [{"age": "old"}, {"age": float("inf")}, {"sex": "x"}])
def test_what_cannot_stand_for_a_cell_is_refused(fill):
    with pytest.raises(InvalidArgument, match="write one"):
        Declared({"sex": ["f"]}, fill)


def test_an_indicator_of_numbers_needs_a_number_too():
    assert not Declared(indicator=["age"]).bears_missing("age")
    assert Declared({"sex": ["f"]}, indicator=["sex"]).bears_missing("sex")


def test_the_refusal_has_the_line_to_add():
    text = str(refuse_missing("a.csv", "line", {"age": Missing(3, 7), "y": Missing(1, 9)}, ["age"], Declared()))
    assert "age (3, the first in line 7)" in text
    assert "`fill: {age: NUMBER}`" in text
    assert "fill in y, or leave these records out" in text
