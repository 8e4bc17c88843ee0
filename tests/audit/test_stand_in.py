"""A stand-in has the form of the records it stands for, and nothing else of them."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.audit.stand_in import make_stand_in, put_in_records, read_records, require_other
from dpfed.data.persons import Persons
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument
from dpfed.federated.torch.client import TorchClient
from dpfed.federated.torch.model import TorchModel
from dpfed.models.logistic import Logistic
from dpfed.randomness import SeededSource


@pytest.mark.parametrize("is_grouped", [True, False])
def test_generated_records_do_not_depend_on_the_values_they_stand_for(is_grouped):
    model, made = TorchModel(Logistic, "cross_entropy"), []
    for value in (1.0, 7.0):
        records = Records(np.full((6, 30), value), np.zeros(6, dtype=int))
        data = Persons(records, np.array([2, 4])) if is_grouped else (records.features, records.labels)
        made.append(read_records(make_stand_in(TorchClient("ward", data, "", model), 50, SeededSource(1))))
    assert np.array_equal(made[0].features, made[1].features)
    assert np.array_equal(made[0].labels, made[1].labels)
    assert set(made[0].labels.tolist()) == {0, 1}


def test_given_records_take_the_place_of_the_clients_own():
    client = TorchClient("ward", (np.ones((4, 30)), np.zeros(4, dtype=int)), "", TorchModel(Logistic, "cross_entropy"))
    found = put_in_records(client, Records(np.zeros((3, 30)), np.ones(3, dtype=int)))
    assert len(found.examples) == 3
    assert read_records(found).labels.tolist() == [1, 1, 1]


def test_bundled_records_and_other_files_may_stand_in_but_not_the_runs_own(tmp_path):
    (tmp_path / "own.csv").write_text("a,b\n")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    require_other("sklearn:iris", "sklearn:iris", tmp_path)
    require_other(str(tmp_path / "other.csv"), "own.csv", tmp_path)
    with pytest.raises(InvalidArgument, match="as a stand-in nobody would pay for them"):
        require_other(str(tmp_path / "own.csv"), "own.csv", tmp_path)
