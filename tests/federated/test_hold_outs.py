"""Who is held out depends on that record or person alone, whatever the partition, and stays at its site."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dpfed.config.data import Data
from dpfed.config.run import ConfigFile
from dpfed.federated.data import prepare
from dpfed.federated.launch import create_run, resume_run

HEADER = "x,who,site,y"
# Rows 10 to 19 are ten times the same record, under the names of five persons.
LINES = [f"{10 if 10 <= n < 20 else n},p{n // 2},{'ab'[n // 2 % 2]},{n % 2 * (n > 20)}" for n in range(80)]
TABLES = {  # one table without sites, real sites, and simulations; with sizes that are declared, and true ones
    "one table": {"partition": {"kind": "iid", "clients": 1}, "sizes": 60},
    "one table, public": {"partition": {"kind": "iid", "clients": 1}, "sizes": "public"},
    "sites": {"partition": {"kind": "column", "column": "site"}, "sizes": {"a": 30, "b": 30}},
    "sites, public": {"partition": {"kind": "column", "column": "site"}, "sizes": "public"},
    "dirichlet": {"partition": {"kind": "dirichlet", "clients": 2, "alpha": 1.0}, "sizes": 30},
    "shards": {"partition": {"kind": "shards", "clients": 2}, "sizes": 30},
    "equal parts, public": {"partition": {"kind": "iid", "clients": 2, "minimum": 1}, "sizes": "public"},
}
PERSONS = {"person_column": "who", "rows_per_person": 2}


def hold_out(folder: Path, lines, table: str, **options):
    (folder / "a.csv").write_text("\n".join([HEADER, *lines]))
    unused = [name for name in ("who", "site") if name not in (options.get("person_column"), _site(table))]
    return prepare(
        Data(
            source="a.csv", label="y", classes=["0", "1"], ignore=unused, test_fraction=0.3, **TABLES[table], **options
        ),
        folder,
    )


def _site(table: str) -> str | None:
    return TABLES[table]["partition"].get("column")


def sides(data) -> tuple[Counter, Counter]:
    """What is trained on and what is held out, as records."""
    trained = [row for part in data.clients.values() for row in _rows(part.rows)]
    return Counter(trained), Counter(_rows(data.test))


def _rows(records):
    names = records.groups.get("who", np.zeros(len(records)))
    return zip(records.features.ravel().tolist(), records.labels.tolist(), names.tolist(), strict=True)


def moved(before, after) -> list[int]:
    """How many records each side lost and gained."""
    pairs = zip(sides(before), sides(after), strict=True)
    return [count for old, new in pairs for count in ((old - new).total(), (new - old).total())]


@pytest.mark.parametrize("table", [name for name in TABLES if "public" not in name])
def test_a_record_more_or_less_changes_no_other_ones_side(tmp_path, table):
    before = hold_out(tmp_path, LINES, table)
    assert before.test is not None
    for place in range(0, 80, 7):
        fewer = hold_out(tmp_path, LINES[:place] + LINES[place + 1 :], table)
        more = hold_out(tmp_path, [*LINES[:place], LINES[place], *LINES[place:]], table)  # one that is there twice
        assert sum(moved(before, fewer)) == sum(moved(before, more)) == 1


@pytest.mark.parametrize("table", [name for name in TABLES if "public" in name])
def test_a_record_replaced_where_counts_are_public_moves_one_other_at_most_and_no_count(tmp_path, table):
    before = hold_out(tmp_path, LINES, table)
    for place in (0, 13, 40, 79):
        for value in (10, 999, 1234, 777):  # the one that is there ten times, and others
            line = f"{value},p{place // 2},{'ab'[place // 2 % 2]},0"
            after = hold_out(tmp_path, [*LINES[:place], line, *LINES[place + 1 :]], table)
            found = moved(before, after)
            assert max(found) <= 1
            assert found[0] == found[1]
            assert found[2] == found[3]


@pytest.mark.parametrize("table", ["one table", "sites", "dirichlet"])
def test_a_person_more_or_less_changes_no_other_ones_side_and_keeps_its_rows(tmp_path, table):
    before = hold_out(tmp_path, LINES, table, **PERSONS)
    trained, held_out = sides(before)
    assert not {row[2] for row in trained} & {row[2] for row in held_out}
    for person in ("p0", "p6", "p39"):
        after = hold_out(tmp_path, [line for line in LINES if line.split(",")[1] != person], table, **PERSONS)
        assert sorted(moved(before, after)) == [0, 0, 0, 2]


def test_a_quantity_holds_the_smallest_hashes_out(tmp_path):
    (tmp_path / "a.csv").write_text("\n".join([HEADER, *LINES]))
    block = {"source": "a.csv", "label": "y", "classes": ["0", "1"], "ignore": ["who", "site"]}
    data = prepare(Data(**block, partition={"kind": "quantity", "sizes": [40, 24]}), tmp_path)
    (tmp_path / "a.csv").write_text("\n".join([HEADER, *LINES[::-1]]))
    turned = prepare(Data(**block, partition={"kind": "quantity", "sizes": [40, 24]}), tmp_path)
    assert len(data.test) == 16
    assert sides(data) == sides(turned)


@pytest.mark.parametrize("table", TABLES)
def test_what_is_held_out_stays_at_its_site_with_its_persons(tmp_path, table):
    data = hold_out(tmp_path, LINES, table, **PERSONS)
    found = [row for part in data.held_out.values() for row in _rows(part.rows)]
    assert Counter(found) == sides(data)[1]
    assert set(data.held_out) <= set(data.clients)
    if _site(table):
        assert all(set(part.groups["site"]) == {name} for name, part in data.held_out.items())


def test_a_run_of_the_version_that_shuffled_rows_goes_on_with_its_hold_outs(tmp_path):
    (tmp_path / "a.csv").write_text("\n".join([HEADER, *LINES]))
    (tmp_path / "run.yaml").write_text(
        """
name: wards
data:
  {source: a.csv, label: y, classes: [0, 1], ignore: [who, site], scale: 1,
   partition: {kind: quantity, sizes: [40, 24]}}
model: {kind: logistic}
rounds: 1
local: {steps: 1, batch_size: 5, learning_rate: 0.5}
privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
"""
    )
    launch = create_run(ConfigFile.read(tmp_path / "run.yaml"), tmp_path / "run")
    (tmp_path / "run" / "plan.json").write_text(launch.plan.to_json().replace('"version": 6', '"version": 4'))
    older = resume_run(tmp_path / "run")
    shuffled = np.random.default_rng([0, len(b"held out")]).permutation(80)[:16]
    values = np.array([float(line.split(",")[0]) for line in LINES])
    assert sorted(older.test.features.ravel()) == sorted(values[shuffled])
    assert sorted(launch.test.features.ravel()) != sorted(values[shuffled])
