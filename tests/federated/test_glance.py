from __future__ import annotations

import pytest

from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.federated.data import prepare
from dpfed.federated.glance import glance, is_declared
from dpfed.federated.planning import make_plan

TEXT = "age,site,y\n" + "".join(f"{n},{'n' if n % 3 else 's'},{n % 2}\n" for n in range(60))
FILE = """
name: ward
data: {source: ward.csv, label: y, classes: [0, 1], feature_bounds: {age: [0, 100]}, sizes: SIZES,
       partition: {kind: column, column: site}}
model: {kind: logistic}
rounds: 2
local: {steps: 2, batch_size: 4, learning_rate: 0.5}
privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
"""


@pytest.fixture
def ward(tmp_path):
    def make(sizes="{n: 30, s: 15}", text=TEXT, **changed):
        (tmp_path / "ward.csv").write_text(text)
        config = RunConfig.parse(FILE.replace("SIZES", sizes))
        return config.model_copy(update={"data": config.data.model_copy(update=changed)}), tmp_path

    return make


@pytest.mark.parametrize("sizes", ["{n: 30, s: 15}", "public"])
def test_a_plan_is_the_same_as_from_all_records(ward, sizes):
    config, folder = ward(sizes)
    assert make_plan(config, glance(config, folder)) == make_plan(config, prepare(config.data, folder))


def test_declared_sizes_need_no_record(ward):
    config, folder = ward(text="age,site,y\nbroken\n")
    assert is_declared(config.data)
    assert glance(config, folder).sizes == {"n": 30, "s": 15}


def test_columns_that_are_not_there_are_refused(ward):
    config, folder = ward(text="age,place,y\n1,n,0\n")
    with pytest.raises(InvalidArgument, match="no column 'site'"):
        glance(config, folder)


@pytest.mark.parametrize("sizes", ["{n: 30, s: 15}", "public"])
def test_numbers_without_public_bounds_are_refused(ward, sizes):
    config, folder = ward(sizes, feature_bounds=None)
    with pytest.raises(InvalidArgument, match=r"`feature_bounds: \{age: \[LOW, HIGH\]\}`"):
        glance(config, folder)


def test_persons_are_counted_in_the_records(ward):
    config, _ = ward(person_column="age", rows_per_person=1)
    assert not is_declared(config.data)
