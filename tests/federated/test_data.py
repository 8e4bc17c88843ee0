from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.config.data import Data
from dpfed.config.templates import hospitals
from dpfed.data import partition
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument
from dpfed.federated.data import hash_records, hold_out_by_hash, hold_out_of_each, prepare

SITES = "x,site,y\n" + "".join(f"{n},{'north' if n % 3 else 'south'},{n % 2}\n" for n in range(60))
COLUMN = {"source": "a.csv", "label": "y", "partition": {"kind": "column", "column": "site"}}


@pytest.fixture
def here(tmp_path):
    (tmp_path / "a.csv").write_text(SITES)
    return tmp_path


def test_the_five_hospitals_have_what_they_declare():
    data = prepare(hospitals().config.data)
    assert {name: len(records) for name, records in data.clients.items()} == data.sizes
    assert data.sizes == {"north": 182, "south": 114, "east": 68, "west": 55, "harbour": 36}
    assert len(data.test) == 114
    assert (data.sizes_are_public, data.test_is_public) == (False, True)
    assert all(np.abs(records.features).max() <= 1 for records in data.clients.values())
    assert data.classes == ("malignant", "benign")


@pytest.mark.parametrize(
    "kind",
    [
        {"kind": "iid", "clients": 7},
        {"kind": "dirichlet", "clients": 7, "alpha": 0.3},
        {"kind": "shards", "clients": 7},
        {"kind": "class", "clients": 7, "classes_per_client": 2},
    ],
)
def test_clients_and_test_set_together_have_every_record_once(kind):
    data = prepare(Data(source="sklearn:digits", partition=kind, test_fraction=0.25, shape=[1, 8, 8], sizes=192))
    parts = [*data.clients.values(), data.test]
    assert sum(map(len, parts)) == 1797
    assert len({row.tobytes() for part in parts for row in part.features}) == 1797
    assert list(data.clients) == list("1234567")
    assert data.test.features.shape[1:] == (1, 8, 8)
    assert data.sizes == dict.fromkeys("1234567", 192)


def test_a_size_is_never_the_number_of_records_unless_the_file_says_public(here):
    assert prepare(Data(**COLUMN), here).sizes is None
    assert prepare(Data(**COLUMN, sizes={"north": 1, "south": 7}), here).sizes == {"north": 1, "south": 7}
    public = prepare(Data(**COLUMN, sizes="public"), here)
    assert (
        public.sizes == {name: len(records) for name, records in public.clients.items()} == {"north": 32, "south": 16}
    )
    assert public.sizes_are_public


def rows(records):
    return {(*row, label) for row, label in zip(records.features.tolist(), records.labels.tolist(), strict=True)}


def held_out_by_content(records, fraction, seed):
    return hold_out_by_hash(hash_records(records, None, seed), fraction)


@given(st.integers(0, 59), st.integers(0, 2**60))
def test_a_record_removed_moves_no_other_in_or_out_where_sizes_are_declared(removed, seed):
    everyone = Records(np.arange(60.0)[:, None], np.arange(60) % 2)
    others = everyone.take(np.arange(60) != removed)
    kept = rows(everyone.take(~held_out_by_content(everyone, 0.3, seed)))
    left = rows(others.take(~held_out_by_content(others, 0.3, seed)))
    assert left == kept - {(float(removed), removed % 2)}


@given(st.integers(0, 59), st.permutations(range(60)), st.integers(0, 2**60))
def test_a_record_replaced_replaces_one_where_counts_are_public_in_whatever_order(place, order, seed):
    def trained(values, order):
        sites = partition.by_column(["north" if n % 3 else "south" for n in order])
        ordered = values[np.array(order)]
        found = hash_records(Records(ordered[:, None], np.zeros(60)), None, seed)
        return set(ordered[~hold_out_of_each(found, sites.values(), 0.3)].tolist())

    values = np.arange(60.0)
    before = trained(values, range(60))
    after = trained(np.where(values == place, -1.0, values), order)
    assert len(before) == len(after) == 42
    assert len(before - after) <= 1


def trained_on(directory, lines, sizes):
    (directory / "a.csv").write_text("\n".join(lines))
    data = prepare(Data(**COLUMN, sizes=sizes, test_fraction=0.3), directory)
    return {name: rows(records) for name, records in data.clients.items()}


def test_the_clients_of_neighbouring_files_are_neighbours(here):
    header, *lines = SITES.splitlines()
    for place in (0, 1, 17, 59):
        declared = {"north": 40, "south": 20}
        before = trained_on(here, [header, *lines], declared)
        after = trained_on(here, [header, *lines[:place], *lines[place + 1 :]], declared)
        moved = [before[site] ^ after[site] for site in before]
        assert sum(map(len, moved)) <= 1
        replaced = "-5,north,1" if "north" in lines[place] else "-5,south,1"
        before = trained_on(here, [header, *lines], "public")
        after = trained_on(here, [header, *lines[:place], replaced, *lines[place + 1 :]], "public")
        assert {site: len(part) for site, part in before.items()} == {site: len(part) for site, part in after.items()}
        assert sum(len(before[site] - after[site]) for site in before) <= 1


def test_about_the_share_asked_for_is_held_out():
    # A sum of 20,000 coins of probability 0.2: five standard deviations (283) are left with probability 6e-7.
    records = Records(np.arange(20_000.0)[:, None], np.zeros(20_000))
    assert abs(held_out_by_content(records, 0.2, 1).sum() - 4000) < 283
    assert not held_out_by_content(records, 0.0, 1).any()
    assert (held_out_by_content(records, 0.2, 1) != held_out_by_content(records, 0.2, 2)).any()


def test_nothing_is_held_out_unless_asked(here):
    data = prepare(Data(**COLUMN, test_fraction=0), here)
    assert data.test is None
    assert sum(map(len, data.clients.values())) == 60


def test_mean_and_scale_are_the_declared_ones(here):
    raw = prepare(Data(**COLUMN, test_fraction=0), here).clients["north"].features
    scaled = prepare(Data(**COLUMN, test_fraction=0, mean=[30], scale=10), here).clients["north"].features
    assert np.allclose(scaled, (raw - 30) / 10)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"sizes": {"north": 5, "east": 5}}, "for the sites of column site: it has no record of east$"),
        ({"sizes": {"north": 5}}, "it has a site that is not named$"),
        ({"shape": [2, 2]}, "shape must hold the 1 features"),
        ({"partition": {"kind": "quantity", "sizes": [5, 5]}, "ignore": ["site"]}, "add up to all 48 records"),
        ({"partition": {"kind": "column", "column": "ward"}}, "no column 'ward'"),
        ({"feature_bounds": {"z": [0, 1]}}, "names 'z'"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(here, change, what):
    with pytest.raises(InvalidArgument, match=what):
        prepare(Data(**{**COLUMN, **change}), here)


def test_a_loader_of_parts_by_client_needs_the_column_client(tmp_path):
    (tmp_path / "own_parts_c.py").write_text("def load():\n    return {'a': ([[1.0]], [0]), 'b': ([[2.0]], [1])}\n")
    config = {"source": "own_parts_c:load", "test_fraction": 0}
    data = prepare(Data(**config, partition={"kind": "column", "column": "client"}), tmp_path)
    assert list(data.clients) == ["a", "b"]
    with pytest.raises(InvalidArgument, match="name one of client"):
        prepare(Data(**config, partition={"kind": "column", "column": "site"}), tmp_path)


def test_sites_that_share_one_declared_size_are_named():
    column = {"kind": "column", "column": "site"}
    config = Data(source="a.csv", label="y", partition=column, sizes=20, names=["south", "north"])
    assert config.clients == ("south", "north")
    with pytest.raises(ValueError, match="the sites that the column of the partition may name"):
        Data(source="a.csv", label="y", partition=column, sizes=20)


def test_ten_thousand_clients_are_dealt():
    labels = np.arange(30_000) % 10
    parts = partition.dirichlet(labels, 10_000, 0.1, seed=1)
    assert min(map(len, parts)) == 1
    assert len(partition.by_column(np.arange(30_000) // 3)) == 10_000
