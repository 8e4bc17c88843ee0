from __future__ import annotations

import pytest

from dpfed.config import RunConfig
from dpfed.config.templates import from_csv, hospitals
from dpfed.errors import InvalidArgument
from dpfed.federated.data import prepare

ROWS = [f"{30 + n}.5,{'f' if n % 2 else 'm'},id-{n},{'north' if n % 3 else 'south'},{'ill' if n % 4 else 'well'}"
        for n in range(60)]  # fmt: skip
TEXT = "\n".join(["age,sex,patient,hospital,y", *ROWS])


@pytest.fixture
def csv(tmp_path):
    (tmp_path / "my.csv").write_text(TEXT)
    return tmp_path / "my.csv"


def test_the_hospitals_round_trip_and_are_those_of_the_design():
    config = RunConfig.parse(hospitals().to_yaml())
    assert config == hospitals().config
    assert (config.rounds, config.privacy.record.epsilon, config.local.batch_size) == (10, 4.0, 16)


def test_a_csv_file_gives_a_configuration_that_reads_it(csv):
    config = RunConfig.parse(from_csv(csv, "y", "hospital", source="my.csv").to_yaml())
    assert config.data.classes == ("ill", "well")
    assert config.data.categories == {"sex": ("f", "m")}
    assert config.data.ignore == ("patient",)
    data = prepare(config.data, csv.parent)
    assert data.sizes == {"north": 32, "south": 16}
    assert data.clients["north"].columns == ("age", "sex=f", "sex=m")


def test_no_value_of_a_numeric_column_and_no_count_is_written(csv):
    text = from_csv(csv, "y", "hospital").to_yaml().replace(str(csv), "")  # a temporary folder may have any number
    assert "sizes: public" in text
    for secret in ("30.5", "89.5", "id-", "60", "40", "20,"):
        assert secret not in text.replace("{north: 180, south: 60}", "").replace("client_timeout: 3600.0", "")


def test_what_is_found_is_written_with_a_warning(csv):
    lines = from_csv(csv, "y", "hospital").to_yaml().splitlines()
    for key in ("classes", "categories"):
        (place,) = [number for number, line in enumerate(lines) if line.startswith(f"  {key}:")]
        assert any("NOT PRIVATE" in line for line in lines[place - 3 : place])
    assert any("feature_bounds: {age: [low, high]}" in line for line in lines)


def test_declared_sizes_are_taken_as_they_are(csv):
    config = from_csv(csv, "y", "hospital", sizes={"north": 50, "south": 9}).config
    assert config.data.declared_sizes == {"north": 50, "south": 9}
    assert config.local.batch_size == 9
    assert config.guarantees[0].adjacency == "add_remove"
    same = from_csv(csv, "y", "hospital", sizes=100).config
    assert (same.local.batch_size, same.data.clients) == (16, ("north", "south"))


def test_a_label_with_many_numbers_is_a_quantity(csv):
    config = from_csv(csv, "age", "hospital").config
    assert config.data.classes == ()
    assert (config.model.loss, config.model.metric) == ("mse", "mse")


def test_whole_numbers_are_classes_in_their_order(tmp_path):
    (tmp_path / "a.csv").write_text("x,s,y\n" + "".join(f"1,n,{n}\n" for n in (10, 9, 2)))
    assert from_csv(tmp_path / "a.csv", "y", "s").config.data.classes == ("2", "9", "10")


@pytest.mark.parametrize(
    ("label", "site", "what"),
    [("z", "hospital", "no column 'z'"), ("y", "z", "no column 'z'"), ("patient", "y", "more than 20")],
)
def test_columns_that_do_not_fit_are_refused(csv, label, site, what):
    with pytest.raises(InvalidArgument, match=what):
        from_csv(csv, label, site)


def test_a_missing_cell_is_refused_and_not_taken_for_a_category(csv):
    csv.write_text(TEXT + "\n,f,id-x,north,ill\n")
    with pytest.raises(InvalidArgument, match=r"my\.csv, line 62, column age: the cell is missing"):
        from_csv(csv, "y", "hospital")
