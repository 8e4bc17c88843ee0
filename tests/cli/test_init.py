from __future__ import annotations

import json

import pytest

from dpfed.config import RunConfig
from dpfed.config.templates import hospitals
from dpfed.federated.data import prepare
from dpfed.guarantee import Guarantee

CSV = "age,hospital,y\n" + "".join(f"{n},{'north' if n % 2 else 'south'},{n % 3 % 2}\n" for n in range(30))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.csv").write_text(CSV)
    return tmp_path


def test_the_hospitals_are_written(dpfed):
    result = dpfed("init hospitals")
    assert (result.exit_code, result.output) == (0, "wrote hospitals.yaml\n")
    assert RunConfig.read("hospitals.yaml") == hospitals().config


def test_a_csv_file_gets_a_configuration_that_reads_it(dpfed):
    result = dpfed("init my.csv --site-column hospital --label y")
    assert result.exit_code == 0
    assert "sizes: public" in result.output
    config = RunConfig.read("my.yaml")
    assert list(prepare(config.data).clients) == ["north", "south"]


def test_nothing_is_overwritten_without_force(dpfed, here):
    (here / "hospitals.yaml").write_text("mine")
    result = dpfed("init hospitals")
    assert result.exit_code == 2
    assert "--force" in result.output
    assert (here / "hospitals.yaml").read_text() == "mine"
    assert dpfed("init hospitals --force").exit_code == 0
    assert RunConfig.read("hospitals.yaml") == hospitals().config


def test_sizes_can_be_declared(dpfed):
    assert dpfed("init my.csv --site-column hospital --label y --size north=20 --size south=9").exit_code == 0
    assert RunConfig.read("my.yaml").data.declared_sizes == {"north": 20, "south": 9}
    assert dpfed("init my.csv --site-column hospital --label y --size 12 --force --json").exit_code == 0
    assert RunConfig.read("my.yaml").data.declared_sizes == 12


def test_a_column_can_name_the_person_who_is_then_protected(dpfed, here):
    rows = "".join(f"{n},{'north' if n < 40 else 'south'},p{n // 4},{n % 3 % 2}\n" for n in range(80))
    (here / "my.csv").write_text("age,hospital,patient,y\n" + rows)
    line = "init my.csv --site-column hospital --label y --person-column patient"
    assert dpfed(line).exit_code == 0
    config = RunConfig.read("my.yaml")
    assert (config.data.rows_per_person, config.local.batch_size) == (10, 8)
    assert config.guarantees == (Guarantee(4.0, 1e-5, "person", "replace_one"),)
    data = prepare(config.data)
    assert data.sizes == {"north": 8, "south": 8}
    assert data.clients["north"].rows.columns == ("age",)
    assert dpfed(f"{line} --rows-per-person 3 --size 12 --force").exit_code == 0
    data = prepare(RunConfig.read("my.yaml").data)
    assert (data.sizes, data.left_out) == ({"north": 12, "south": 12}, 20)


def test_the_source_is_found_from_where_the_configuration_is(dpfed, here):
    (here / "runs").mkdir()
    assert dpfed("init my.csv --site-column hospital --label y -o runs/a.yaml").exit_code == 0
    config = RunConfig.read("runs/a.yaml")
    assert len(prepare(config.data, here / "runs").clients) == 2


def test_the_configuration_can_be_printed(dpfed, here):
    result = dpfed("init hospitals -o -")
    assert RunConfig.parse(result.output) == hospitals().config
    assert not (here / "hospitals.yaml").exists()


def test_json_says_what_was_written(dpfed):
    facts = json.loads(dpfed("init my.csv --site-column hospital --label y --json").output)
    assert facts == {"file": "my.yaml", "source": "my.csv", "sizes_are_public": True}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("init", "SOURCE"),
        ("init nonsense", "hospitals or a file that ends in .csv"),
        ("init hospitals --label y", "leave --label and the other options of the data out"),
        ("init my.csv --label y", "--label and --site-column"),
        ("init my.csv --label z --site-column hospital", "no column 'z'"),
        ("init no.csv --label z --site-column hospital", "cannot be read"),
        ("init my.csv --label y --site-column hospital --size north", "--size must be"),
        ("init my.csv --label y --site-column hospital --size 0", "--size must be"),
        ("init my.csv --label y --site-column hospital --size 1 --size 2", "--size must be"),
        ("init my.csv --label y --site-column hospital --rows-per-person 3", "goes with --person-column"),
        ("init my.csv --label y --site-column hospital --person-column z", "no column 'z'"),
        (
            "init my.csv --label y --site-column hospital --person-column y",
            "must be another column than that of the label",
        ),
        ("init hospitals --person-column y", "leave --label and the other options of the data out"),
        ("init hospitals -o no/such/place.yaml", "cannot be written"),
    ],
)
def test_what_cannot_be_begun_is_refused_in_one_line(dpfed, here, line, what):
    result = dpfed(line)
    assert result.exit_code == 2
    assert what in result.output
    assert len(result.output.splitlines()) == 1
    assert sorted(path.name for path in here.iterdir()) == ["my.csv"]
