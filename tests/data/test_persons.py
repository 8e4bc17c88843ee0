"""Rows of one person are one record: kept together, in the order of the data, whoever else is in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.config.data import Data
from dpfed.config.run import RunConfig
from dpfed.data.persons import Persons, grouped, most_sites
from dpfed.data.records import Records
from dpfed.data.sources import load
from dpfed.errors import InvalidArgument
from dpfed.federated.data import hash_records, hold_out_by_hash, prepare

NAMES = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=40)


def visits(names, **groups):
    rows = np.arange(len(names), dtype=float)[:, None]
    return Records(rows, np.zeros(len(names), int), ("time",), {"patient": np.array(list(names)), **groups})


def rows_by_name(persons):
    ends = np.cumsum(persons.counts)
    parts = np.split(persons.rows.features.ravel(), ends[:-1])
    return {str(name): part.tolist() for name, part in zip(persons.groups["patient"], parts, strict=True)}


@given(names=NAMES, most=st.integers(1, 5))
def test_a_person_keeps_its_first_rows_and_nothing_of_others(names, most):
    found, left_out = grouped(visits(names), "patient", most)
    wanted = {name: [float(n) for n, other in enumerate(names) if other == name] for name in dict.fromkeys(names)}
    assert rows_by_name(found) == {name: rows[:most] for name, rows in wanted.items()}
    assert left_out == sum(max(len(rows) - most, 0) for rows in wanted.values())
    assert list(found.groups["patient"]) == list(dict.fromkeys(names))


@given(names=NAMES, most=st.integers(1, 5))
def test_without_one_person_all_others_have_the_same_rows_in_the_same_order(names, most):
    gone, records = names[0], visits(names)
    left = np.array([name != gone for name in names])
    if not left.any():
        return
    before = rows_by_name(grouped(records, "patient", most).persons)
    after = rows_by_name(grouped(records.take(left), "patient", most).persons)
    assert list(before.items())[1:] == list(after.items())


def test_persons_are_in_the_order_in_which_they_are_met_so_that_one_replaced_moves_no_other():
    first, second = (grouped(visits(names), "patient", 9).persons for names in ("mbba", "zbba"))
    assert list(first.groups["patient"]) == ["m", "b", "a"]
    assert list(second.groups["patient"]) == ["z", "b", "a"]


def test_a_person_at_two_sites_is_one_record_at_each():
    records = visits("aabb", site=np.array(["n", "s", "n", "n"]))
    found = grouped(records, "patient", 9, site="site").persons
    assert list(zip(found.groups["patient"], found.groups["site"], found.counts, strict=True)) == [
        ("a", "n", 1), ("a", "s", 1), ("b", "n", 2),
    ]  # fmt: skip
    assert most_sites(found, "patient") == 2
    assert most_sites(grouped(records, "patient", 9).persons, "patient") == 1


def test_a_part_has_all_rows_of_its_persons():
    found = grouped(visits("abacb"), "patient", 9).persons
    assert rows_by_name(found.take(np.array([2, 0]))) == {"c": [3.0], "a": [0.0, 2.0]}
    assert rows_by_name(found.take(np.array([False, True, False]))) == {"b": [1.0, 4.0]}


def test_who_is_held_out_depends_on_the_name_and_the_seed_alone():
    def held_out_by_name(names, share, seed):
        persons = grouped(visits(names), "patient", 1).persons
        return hold_out_by_hash(hash_records(persons, "patient", seed), share)

    names = [f"id-{number}" for number in range(4000)]
    held_out = held_out_by_name(names, 0.25, seed=1)
    assert (held_out_by_name(names[::-1], 0.25, seed=1)[::-1] == held_out).all()
    assert (held_out_by_name(names[7:], 0.25, seed=1) == held_out[7:]).all()
    assert (held_out_by_name(names, 0.25, seed=2) != held_out).any()
    assert abs(held_out.mean() - 0.25) < 0.035  # five standard deviations


@pytest.mark.parametrize(
    ("records", "column", "what"),
    [
        (visits("ab"), "doctor", "no column 'doctor' to name the person: write one of patient"),
        (visits("ab"), "time", "column time names the person, so it must not be a feature"),
        (visits("ab", ward=np.array([1.0, np.nan])), "ward", "by a text or a whole number, got float64"),
        (visits("ab", ward=["x", ""]), "ward", "rows without a name"),
        (visits("ab", ward=["x", "nan"]), "ward", "rows without a name"),
        (visits("ab", ward=np.array([b"x", b"None"])), "ward", "rows without a name"),
    ],
)
def test_columns_that_cannot_name_a_person_are_refused(records, column, what):
    with pytest.raises(InvalidArgument, match=what):
        grouped(records, column, 3)


@pytest.mark.parametrize("counts", [[2, 1], [4], [3, 0], [1.5, 1.5], []])
def test_counts_that_do_not_fit_the_rows_are_refused(counts):
    with pytest.raises(InvalidArgument, match="counts must"):
        Persons(visits("abcd").take(np.arange(3 + (counts == [2, 1]))), np.array(counts))


# ---- through the data: block ----

CSV = "x,site,patient,y\n" + "".join(
    f"{n},{'north' if n // 5 % 3 else 'south'},p{n // 5},{n // 5 % 2}\n" for n in range(300)
)
COLUMN = {"source": "a.csv", "label": "y", "person_column": "patient", "rows_per_person": 4}
SITES = {"partition": {"kind": "column", "column": "site"}}


@pytest.fixture
def here(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    return tmp_path


@pytest.mark.parametrize(
    "kind",
    [
        {"kind": "iid", "clients": 4},
        {"kind": "quantity", "sizes": [30, 18]},
        {"kind": "dirichlet", "clients": 4, "alpha": 0.5},
        {"kind": "shards", "clients": 4},
        {"kind": "class", "clients": 4},
        {"kind": "column", "column": "site"},
    ],
)
def test_every_person_is_whole_and_in_one_place(here, kind):
    sizes = {"partition": kind, "sizes": "public"} if kind["kind"] == "column" else {"partition": kind, "sizes": 20}
    data = prepare(Data(**COLUMN, **sizes, ignore=["site"]), here)
    parts = [*(part.rows for part in data.clients.values()), data.test]
    owners = [set(part.groups["patient"].tolist()) for part in parts]
    assert sum(map(len, owners)) == len(set().union(*owners)) == 60
    assert {len(part) for part in parts} <= {4 * len(names) for names in owners}
    assert all(part.columns == ("x",) for part in parts)
    assert (data.left_out, data.sites_per_person) == (60, 1)


def test_sizes_count_persons(here):
    public = prepare(Data(**COLUMN, **SITES, sizes="public", test_fraction=0), here)
    assert public.sizes == {"south": 20, "north": 40}
    declared = prepare(Data(**COLUMN, partition={"kind": "quantity", "sizes": [40, 8]}, ignore=["site"]), here)
    assert declared.sizes == {"1": 40, "2": 8} == {name: len(part) for name, part in declared.clients.items()}


def test_a_person_less_moves_nobody_else_between_training_and_test(here):
    config = Data(**COLUMN, **SITES, sizes={"north": 40, "south": 20}, test_fraction=0.3)
    before = set(prepare(config, here).test.groups["patient"].tolist())
    lines = [line for line in CSV.splitlines(keepends=True) if ",p7," not in line]
    (here / "a.csv").write_text("".join(lines))
    assert set(prepare(config, here).test.groups["patient"].tolist()) == before - {"p7"}


@pytest.mark.parametrize("seed", range(8))
def test_a_person_in_place_of_another_replaces_one_in_training_wherever_its_rows_are(here, seed):
    config = Data(**COLUMN, **SITES, sizes="public", test_fraction=0.3, seed=seed)
    before = prepare(config, here)
    first, *lines = CSV.splitlines(keepends=True)
    others = [line for line in lines if ",p7," not in line]
    for place in (0, len(others) // 2, len(others)):
        (here / "a.csv").write_text("".join([first, *others[:place], "1,north,new,0\n", *others[place:]]))
        after = prepare(config, here)
        assert after.sizes == before.sizes
        changed = [
            set(one.groups["patient"].tolist()) - set(other.groups["patient"].tolist())
            for one, other in zip(before.clients.values(), after.clients.values(), strict=True)
        ]
        assert sum(map(len, changed)) <= 1


def test_data_by_client_keep_the_groups_that_all_clients_have():
    parts = {"north": visits("ab"), "south": visits("bc")}
    assert load(parts).groups["patient"].tolist() == ["a", "b", "b", "c"]
    assert "patient" not in load({**parts, "east": ([[1.0]], [0])}).groups


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rows_per_person": None}, "rows_per_person is missing"),
        ({"person_column": None}, "person_column is missing"),
        ({"person_column": "y"}, "person_column must be another column than that of the label"),
        ({"person_column": "site"}, "person_column must be another column than that of the site"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, what):
    run = {
        "name": "visits",
        "data": {**COLUMN, **SITES, "sizes": "public", **changes},
        "model": {"kind": "logistic"},
        "rounds": 1,
        "local": {"steps": 1, "batch_size": 4, "learning_rate": 1},
        "privacy": {"style": "sample", "person": {"epsilon": 4, "delta": 1e-5, "clip_norm": 1}},
    }
    with pytest.raises(InvalidArgument, match=what):
        RunConfig.of(run)


def test_a_person_column_with_categories_would_be_a_feature_and_is_refused(here):
    with pytest.raises(InvalidArgument, match=r"column patient of a\.csv is the label, a group or ignored: leave its"):
        prepare(Data(**COLUMN, **SITES, sizes="public", categories={"patient": ["p1"]}), here)
