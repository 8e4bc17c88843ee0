"""Whatever a client sends, the round goes on without it, and nobody else's update fares otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.aggregation.screening import REASONS, Arrival, Refusal, UpdateCheck
from dpfed.errors import InvalidArgument

CHECK = UpdateCheck(round=4, shapes={"weight": (2, 2), "bias": (2,)}, clients=["north", "south"], max_norm=10.0)
GOOD = np.arange(6.0)
NAMED = {"weight": np.arange(4.0).reshape(2, 2), "bias": np.array([4.0, 5.0])}


def refused(value=GOOD, client="north", number=4, check=CHECK) -> str:
    outcome = check.check(Arrival(client, number, value))
    assert isinstance(outcome, Refusal), outcome
    assert outcome.reason in REASONS
    return outcome.reason


def test_an_update_comes_in_as_a_vector_or_by_names_and_is_the_same():
    assert CHECK.check(Arrival("north", 4, GOOD)).tolist() == GOOD.tolist()
    shuffled = dict(reversed(NAMED.items()))
    assert CHECK.check(Arrival("north", 4, shuffled)).tolist() == GOOD.tolist()


def test_what_comes_in_is_a_copy():
    sent = GOOD.copy()
    found = CHECK.check(Arrival("north", 4, sent))
    sent[:] = np.nan
    assert np.isfinite(found).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(bad):
    assert refused(np.where(GOOD == 3, bad, GOOD)) == "not_finite"


@pytest.mark.parametrize("shape", [(5,), (7,), (6, 1), (2, 3), ()])
def test_another_shape_is_refused(shape):
    assert refused(np.zeros(shape)) == "shape"


@pytest.mark.parametrize(
    "value",
    [
        GOOD.astype(np.float32),
        GOOD.astype(int),
        GOOD.astype(complex),
        GOOD.astype(object),
        GOOD.astype(np.dtype(float).newbyteorder()),
        np.ma.masked_array(GOOD, mask=[True] + [False] * 5),
        GOOD.tolist(),
        None,
        "update",
        3.0,
    ],
)
def test_another_type_is_refused(value):
    assert refused(value) == "dtype"


def test_float32_is_right_where_the_door_says_so():
    check = UpdateCheck(round=4, shapes={"w": (6,)}, clients=["north"], max_norm=10.0, dtype="float32")
    assert check.check(Arrival("north", 4, GOOD.astype(np.float32))).dtype == np.float64
    assert refused(GOOD, check=check) == "dtype"


def test_buffers_unknown_and_missing_names_are_refused():
    assert refused({**NAMED, "norm.running_mean": np.zeros(2)}) == "names"
    assert refused({"weight": NAMED["weight"]}) == "names"
    assert refused({**NAMED, 3: np.zeros(2)}) == "names"


def test_named_arrays_are_looked_at_one_by_one():
    assert refused({**NAMED, "bias": np.zeros(3)}) == "shape"
    assert refused({**NAMED, "bias": np.array([4, 5])}) == "dtype"
    assert refused({**NAMED, "bias": np.array([4, np.nan])}) == "not_finite"


def test_an_update_of_another_round_is_refused():
    assert refused(number=3) == "wrong_round"
    assert refused(number=5) == "wrong_round"
    assert (
        refused(number=True, check=UpdateCheck(round=1, shapes={"w": (6,)}, clients=["north"], max_norm=10.0))
        == "wrong_round"
    )


@pytest.mark.parametrize("client", ["west", "", None, 3, ["north"]])
def test_a_client_that_was_not_asked_is_refused(client):
    assert refused(client=client) == "unknown_client"


def test_the_first_update_of_a_client_counts_and_no_other():
    screened = CHECK.screen([Arrival("north", 4, GOOD), Arrival("north", 4, GOOD / 2), Arrival("south", 4, GOOD)])
    assert screened.accepted["north"].tolist() == GOOD.tolist()
    assert [(refusal.client, refusal.reason) for refusal in screened.refused] == [("north", "duplicate")]


def test_a_client_that_was_refused_may_try_again():
    screened = CHECK.screen([Arrival("north", 4, GOOD * np.nan), Arrival("north", 4, GOOD)])
    assert list(screened.accepted) == ["north"]


def test_an_update_beyond_the_norm_is_refused_even_if_its_square_overflows():
    assert refused(np.full(6, 4.1)) == "norm"
    assert refused(np.full(6, 1e200)) == "norm"
    assert CHECK.check(Arrival("north", 4, np.full(6, 4.0))).tolist() == [4.0] * 6
    free = UpdateCheck(round=4, shapes={"w": (6,)}, clients=["north"], max_norm=1e201)
    assert free.check(Arrival("north", 4, np.full(6, 1e200))).tolist() == [1e200] * 6


def test_what_a_refusal_says_of_the_data_is_not_in_its_text():
    outcome = CHECK.check(Arrival("north", 4, np.full(6, 100.0)))
    assert "244.9" in outcome.detail
    assert repr(outcome) == "Refusal(client='north', reason='norm')"
    assert "100" not in repr(Arrival("north", 4, np.full(6, 100.0)))


plain = st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.floats())
anything = st.one_of(plain, st.lists(st.floats()), st.dictionaries(st.text(), st.integers()))


@given(st.lists(st.tuples(st.one_of(st.sampled_from(["north", "south"]), anything), anything, anything), max_size=5))
def test_no_arrival_stops_the_round_or_moves_the_update_of_another(strange):
    arrivals = [Arrival(*each) for each in strange] + [Arrival("south", 4, GOOD)]
    screened = CHECK.screen(arrivals)
    assert screened.accepted["south"].tolist() == GOOD.tolist()
    assert len(screened.refused) + len(screened.accepted) == len(arrivals)


@pytest.mark.parametrize("change", [{"dtype": "float16"}, {"max_norm": 0.0}, {"max_norm": np.inf}, {"max_norm": None}])
def test_a_door_that_is_none_is_refused(change):
    with pytest.raises(InvalidArgument):
        UpdateCheck(**{"round": 1, "shapes": {"w": (2,)}, "clients": ["north"], "max_norm": 1.0, **change})
