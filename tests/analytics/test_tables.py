"""Columns of a table by site and person: one record or person moves a released vector by no more than is charged."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.analytics.queries import Histogram
from dpfed.analytics.sites import ColumnStudy, Owner
from dpfed.analytics.tables import read_parts
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.data.tables import TextTable
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from studies import SilentSource, committed

NAMES = ("age", "pay", "ward", "patient")
ROWS = [
    ("31", "900", "a", "ann"),
    ("55", "", "a", "ann"),
    ("72", "1700", "b", "ben"),
    ("18", "high", "a", "cleo"),
    ("-4", "1e400", "b", "dan"),
]
NEW = {
    "record": [[("99", "12", "a", "ann")], [("nan", "0.5", "b", "eve")], [("text", "", "a", "fay")]],
    "person": [
        [("99", "12", "a", "eve")],
        [("99", "12", "a", "eve"), ("1", "", "a", "eve"), ("2", "3000", "a", "eve")],
        [("99", str(number), "b", "eve") for number in range(300)],
    ],
}
QUERY = Histogram(((0.0, 20.0, 40.0, 80.0), (1.0, 10.0, 1000.0, 2000.0)))


def make_table(rows):
    return TextTable("ward.csv", dict(zip(NAMES, zip(*rows, strict=True), strict=True)), range(2, len(rows) + 2))


@pytest.fixture
def ask(tmp_path_factory):
    def run(rows, unit: str, adjacency: str, source=None):
        person = "patient" if unit == "person" else None
        parts = read_parts(make_table(rows), ["age", "pay"], sites=["a", "b"], site_column="ward", person_column=person)
        with Ledger(tmp_path_factory.mktemp("asked") / "ledger.db") as ledger:
            for site in parts:
                ledger.open(site, epsilon=9.0, delta=1e-5, unit=unit, adjacency=adjacency)
            owners = {site: Owner(site, part.values, part.rows) for site, part in parts.items()}
            promise = Guarantee(1.0, 1e-5, unit, adjacency)
            return ColumnStudy("ask", QUERY, owners, ledger, source=source).ask(record=promise), committed(ledger)

    return run


@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_at_zero_noise_one_unit_more_moves_the_release_by_the_norm_at_most(ask, unit, place):
    before = ask(ROWS, unit, ADD_REMOVE, SilentSource())[0].counts
    after = ask([*NEW[unit][place], *ROWS], unit, ADD_REMOVE, SilentSource())[0].counts
    assert np.linalg.norm(after - before) <= QUERY.norm


@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_at_zero_noise_one_unit_replaced_moves_the_release_by_twice_the_norm_at_most(ask, unit, place):
    rest = ROWS[1:] if unit == "record" else ROWS[2:]
    before = ask(ROWS, unit, REPLACE_ONE, SilentSource())[0].counts
    after = ask([*NEW[unit][place], *rest], unit, REPLACE_ONE, SilentSource())[0].counts
    assert np.linalg.norm(after - before) <= 2 * QUERY.norm


def test_what_is_charged_under_replacement_has_noise_for_twice_the_norm(ask):
    (added,) = ask(ROWS, "record", ADD_REMOVE)[1]["a"]
    (replaced,) = ask(ROWS, "record", REPLACE_ONE)[1]["a"]
    assert replaced.noise_multiplier == pytest.approx(2 * added.noise_multiplier)


def test_cells_that_are_no_finite_numbers_are_read_as_missing_and_refuse_nothing():
    found = read_parts(make_table(ROWS), ["pay"])["owner"].values[:, 0]
    assert np.array_equal(found, [900, np.nan, 1700, np.nan, np.nan], equal_nan=True)


def test_the_rows_of_a_person_stay_together_in_whatever_order_the_file_is():
    mixed = [ROWS[0], ROWS[3], ROWS[1]]
    part = read_parts(make_table(mixed), ["age"], person_column="patient")["owner"]
    assert part.values.ravel().tolist() == [31, 55, 18]
    assert part.rows.tolist() == [2, 1]


def test_a_declared_site_without_records_has_an_empty_part_and_releases_zeros():
    part = read_parts(make_table(ROWS), ["age", "pay"], sites=["a", "b", "c"], site_column="ward")["c"]
    assert not QUERY.add_up(part.values, part.rows).any()


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (["age", "age"], {}, "different"),
        ([], {}, "different"),
        (["ward"], {"site_column": "ward"}, "different"),
        (["agee"], {}, "age"),
        (["age"], {"site_column": "ward", "sites": ["a"]}, "not declared"),
    ],
)
def test_what_cannot_be_asked_is_refused(columns, options, says):
    with pytest.raises(InvalidArgument, match=says):
        read_parts(make_table(ROWS), columns, **options)


def test_a_person_at_more_sites_than_is_said_is_refused():
    rows, same = [*ROWS, ("1", "2", "b", "ann")], {"sites": ["a", "b"], "site_column": "ward"}
    with pytest.raises(InvalidArgument, match="max_sites_per_person"):
        read_parts(make_table(rows), ["age"], **same, person_column="patient")
    found = read_parts(make_table(rows), ["age"], **same, person_column="patient", max_sites_per_person=2)
    assert [part.rows.sum() for part in found.values()] == [3, 3]


def test_rows_without_a_person_are_refused():
    with pytest.raises(InvalidArgument, match="patient"):
        read_parts(make_table([*ROWS, ("1", "2", "b", "")]), ["age"], person_column="patient")
