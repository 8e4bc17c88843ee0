from __future__ import annotations

import pytest

from dpfed.analytics.queries import FIXED
from dpfed.config import RunConfig
from dpfed.config.bounds import BoundsBlock
from dpfed.errors import InvalidArgument

TABLE = {"source": "wards.csv", "label": "ill", "classes": ["0", "1"], "names": ["owner"], "sizes": 140}
ONE = TABLE | {"partition": {"kind": "iid", "clients": 1}}
BLOCK = {"release": ["pay"], "epsilon": 0.5}


def test_without_a_grid_cells_are_powers_of_two():
    block = BoundsBlock(release=["age", "pay"], epsilon=1, grid={"age": [0, 100, 2]})
    assert block.find_edges() == ((0.0, 50.0, 100.0), FIXED)


@pytest.mark.parametrize(
    "grid", [{"pay": [0, 9, 0]}, {"pay": [9, 0, 3]}, {"age": [0, 9, 3]}, {"pay": [0, 9]}, {"pay": 3}]
)
def test_a_grid_that_is_none_is_refused(plain, grid):
    with pytest.raises(InvalidArgument, match="grid"):
        RunConfig.of(plain({"data": ONE, "bounds": BLOCK | {"grid": grid}}))


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"bounds": BLOCK | {"epsilon": 4}}, "below the promised epsilon"),
        ({"bounds": BLOCK, "metrics": {"release": ["accuracy"], "epsilon": 3.6}}, "below the promised epsilon"),
        ({"bounds": BLOCK, "data": ONE | {"feature_bounds": {"pay": [0, 9]}}}, "leave one out"),
        ({"bounds": BLOCK, "data": ONE | {"feature_bounds": [0, 9]}}, "by column only"),
        ({"bounds": BLOCK, "data": ONE | {"scale": 2}}, "by column only"),
        (
            {"bounds": BLOCK, "data": ONE | {"partition": {"kind": "iid", "clients": 2}, "names": ["a", "b"]}},
            "one owner",
        ),
        ({"bounds": BLOCK, "data": ONE | {"source": "sklearn:digits"}}, "of a table's columns"),
        ({"bounds": BLOCK | {"release": ["pay", "pay"]}}, "each once"),
        (
            {"bounds": BLOCK, "privacy": {"style": "user", "client": {"epsilon": 4, "delta": 1e-5, "clip_norm": 1}}},
            "style sample",
        ),
    ],
)
def test_ranges_that_no_run_releases_are_refused_with_what_to_do(plain, changed, match):
    with pytest.raises(InvalidArgument, match=match):
        RunConfig.of(plain({"data": ONE} | changed))


def test_released_ranges_are_as_if_anybody_had_known_them(plain):
    config = RunConfig.of(plain({"data": ONE | {"feature_bounds": {"age": [0, 120]}}, "bounds": BLOCK}))
    assert not config.has_ranges
    made = config.with_ranges({"pay": (0.0, 9.0)})
    assert made.has_ranges
    assert made.data.feature_bounds == {"age": (0.0, 120.0), "pay": (0.0, 9.0)}
    assert made.terms != config.terms
