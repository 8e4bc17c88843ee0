from __future__ import annotations

import pytest
from pydantic import ValidationError

from dpfed.config.data import HASHED, ROWS, SITES, Data

IID = {"kind": "iid", "clients": 2}


def data(**settings) -> Data:
    return Data(**{"source": "sklearn:digits", "partition": IID, **settings})


@pytest.mark.parametrize(
    ("settings", "dealing"),
    [
        ({"sizes": 10}, HASHED),
        ({"sizes": "public"}, ROWS),
        ({"partition": {**IID, "minimum": 1}}, ROWS),
        ({"partition": {"kind": "dirichlet", "clients": 2, "alpha": 1.0}}, ROWS),
        ({"partition": {"kind": "column", "column": "site"}}, SITES),
    ],
)
def test_records_are_dealt_by_their_own_hash_only_where_no_other_record_decides(settings, dealing):
    assert data(**settings).dealing == dealing


def test_clients_are_those_named_or_counted_and_of_a_column_those_with_sizes():
    column = {"kind": "column", "column": "site"}
    assert data().clients == ("1", "2")
    assert data(names=["north", "south"]).clients == ("north", "south")
    assert data(partition=column, sizes={"south": 3, "north": 2}).clients == ("north", "south")
    assert data(partition=column).clients is None


def test_declared_sizes_are_never_the_true_counts():
    quantity = {"kind": "quantity", "sizes": [80, 40]}
    assert data(partition=quantity, names=["north", "south"]).declared_sizes == {"north": 80, "south": 40}
    assert data(sizes=7).declared_sizes == 7
    assert (data(sizes="public").declared_sizes, data(sizes="public").sizes_are_public) == (None, True)


@pytest.mark.parametrize(
    "settings",
    [
        {"feature_bounds": [0, 1], "mean": 0.5},
        {"scale": 0},
        {"scale": [1.0, -1.0]},
        {"source": "a.csv"},
        {"feature_bounds": [1, 0]},
        {"sizes": 0},
        {"rows_per_person": 0},
        {"names": ["north"]},
        {"names": ["north", "north"]},
    ],
)
def test_what_contradicts_itself_is_refused(settings):
    with pytest.raises(ValidationError):
        data(**settings)
