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


ALL = "--bounds age=0:100 --public classes,sites,sizes"


def test_a_csv_file_gets_a_configuration_that_reads_it(dpfed):
    result = dpfed(f"init my.csv --site-column hospital --label y {ALL}")
    assert result.exit_code == 0
    assert "Next: dpfed run my.yaml" in result.output
    assert "The true sizes are published" in result.output
    config = RunConfig.read("my.yaml")
    assert list(prepare(config.data).clients) == ["north", "south"]
    assert config.data.feature_bounds == {"age": (0, 100)}


def test_yes_publishes_nothing_that_was_read(dpfed, here):
    result = dpfed("init my.csv --site-column hospital --label y --yes")
    assert result.exit_code == 0
    written = (here / "my.yaml").read_text()
    (here / "my.csv").write_text(CSV + "999,east,7\n,west,8\nx,west,9\n")  # one record more, and more of them
    assert dpfed("init my.csv --site-column hospital --label y --yes --force").exit_code == 0
    assert (here / "my.yaml").read_text() == written
    for found in ("north", "south", "29"):
        assert found not in written.replace("{north: 180, south: 60}", "").replace("[north, south]", "")
    assert "--bounds age=LOW:HIGH" in result.output
    refused = dpfed("run my.yaml")
    assert refused.exit_code == 2
    assert "is not declared yet" in refused.output


def test_no_count_is_printed_into_a_pipe(dpfed, here):
    (here / "my.csv").write_text(CSV + ",north,1\n")
    result = dpfed(f"init my.csv --site-column hospital --label y {ALL}")
    assert "what stands for its missing cells: --fill age=VALUE" in result.output
    assert not set(map(str, (31, 30, 15, 16))) & set(result.output.split())


def test_the_next_command_declares_what_is_open(dpfed):
    line = "init my.csv --site-column hospital --label y --classes 0,1 --ignore age"
    (told,) = [each for each in dpfed(line).output.splitlines() if each.startswith("Next: ")]
    assert "--sites A,B --size N" in told
    typed = told.removeprefix("Next: dpfed ").replace("--sites A,B --size N", "--sites north,south --size 12")
    assert dpfed(typed).exit_code == 0


def test_one_owner_needs_no_column_of_sites(dpfed, here):
    (here / "my.csv").write_text("age;y\n" + "".join(f"{n},5;{n % 2}\n" for n in range(30)))
    assert dpfed("init my.csv --label y --bounds age=0:40 --classes 0,1 --size 24").exit_code == 0
    assert list(prepare(RunConfig.read("my.yaml").data).clients) == ["owner"]


def test_a_column_that_looks_like_a_persons_id_asks_for_the_option(dpfed, here):
    (here / "my.csv").write_text("patient,age,y\n" + "".join(f"P{n // 2:03},{n},{n % 2}\n" for n in range(60)))
    line = "init my.csv --label y --public bounds,categories,classes,sizes"
    assert "does it name the person of each row? --person-column patient" in dpfed(line).output
    assert dpfed(f"{line} --force --person-column patient").exit_code == 0
    assert RunConfig.read("my.yaml").guarantees == (Guarantee(4.0, 1e-5, "person", "replace_one"),)


def test_a_column_that_is_ignored_says_why(dpfed, here):
    rows = "".join(f"2024-01-{n % 28 + 1:02},{'inf' if n == 3 else n},some words {n},{n % 2}\n" for n in range(60))
    (here / "my.csv").write_text(f"seen,crp,note,y\n{rows}")
    output = dpfed("init my.csv --label y --public bounds,categories,classes,sizes --bounds crp=0:9").output
    assert "ignored: a date" in output
    assert "but some cells are infinite" in output
    assert "ignored: too many different texts" in output


def test_a_label_with_a_declared_range_is_a_quantity_and_nothing_is_read_for_it(dpfed, here):
    result = dpfed("init my.csv --label age --bounds age=0:100 --bounds y=0:1 --ignore hospital --size 30 --yes")
    assert "Next: dpfed run my.yaml" in result.output
    data = RunConfig.read("my.yaml").data
    assert (data.classes, data.label_bounds, data.feature_bounds) == ((), (0, 100), {"y": (0, 1)})


def test_nothing_is_overwritten_without_force(dpfed, here):
    (here / "hospitals.yaml").write_text("mine")
    result = dpfed("init hospitals")
    assert result.exit_code == 2
    assert "--force" in result.output
    assert (here / "hospitals.yaml").read_text() == "mine"
    assert dpfed("init hospitals --force").exit_code == 0
    assert RunConfig.read("hospitals.yaml") == hospitals().config


def test_sizes_can_be_declared(dpfed):
    line = "init my.csv --site-column hospital --label y --bounds age=0:100 --public classes,sites"
    assert dpfed(f"{line} --size north=20 --size south=9").exit_code == 0
    assert RunConfig.read("my.yaml").data.declared_sizes == {"north": 20, "south": 9}
    assert dpfed(f"{line} --size 12 --force --json").exit_code == 0
    assert RunConfig.read("my.yaml").data.declared_sizes == 12


def test_a_column_can_name_the_person_who_is_then_protected(dpfed, here):
    rows = "".join(f"{n},{'north' if n < 40 else 'south'},p{n // 4},{n % 3 % 2}\n" for n in range(80))
    (here / "my.csv").write_text("age,hospital,patient,y\n" + rows)
    line = (
        "init my.csv --site-column hospital --label y --person-column patient --bounds age=0:99 --public classes,sites"
    )
    assert dpfed(f"{line},sizes").exit_code == 0
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
    assert dpfed(f"init my.csv --site-column hospital --label y {ALL} -o runs/a.yaml").exit_code == 0
    config = RunConfig.read("runs/a.yaml")
    assert len(prepare(config.data, here / "runs").clients) == 2


def test_the_configuration_can_be_printed(dpfed, here):
    result = dpfed("init hospitals -o -")
    assert RunConfig.parse(result.output) == hospitals().config
    assert not (here / "hospitals.yaml").exists()


def test_json_says_what_was_written_and_what_is_open(dpfed):
    facts = json.loads(dpfed(f"init my.csv --site-column hospital --label y {ALL} --json").output)
    assert facts.pop("next") == "dpfed run my.yaml"
    assert facts == {"file": "my.yaml", "source": "my.csv", "sizes_are_public": True, "to_declare": []}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("init", "SOURCE"),
        ("init nonsense", "hospitals or a file that ends in .csv, .tsv, .parquet"),
        ("init hospitals --label y", "leave --label and the other options of the data out"),
        ("init my.csv", "--label COLUMN"),
        ("init my.csv --label y --bounds age=1", "--bounds must be COLUMN=LOW:HIGH"),
        ("init my.csv --label y --public all", "--public takes bounds, categories"),
        ("init my.csv --label z --site-column hospital", "no column 'z'"),
        ("init no.csv --label z --site-column hospital", "cannot be read"),
        ("init my.csv --label y --site-column hospital --size north", "--size must be"),
        ("init my.csv --label y --site-column hospital --size 0", "--size must be"),
        ("init my.csv --label y --site-column hospital --size 1 --size 2", "--size must be"),
        ("init my.csv --label y --site-column hospital --rows-per-person 3", "goes with --person-column"),
        ("init my.csv --label y --site-column hospital --person-column z", "no column 'z'"),
        (
            "init my.csv --label y --site-column hospital --person-column y",
            "must be different columns",
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
