"""Arrays in and out of Flower's records: by the request's own names, shapes and types."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict

from dpfed.errors import InvalidArgument
from dpfed.integrations.flower_records import Request, read_arrays
from flower_apps import SENT, record_of

MIXED = {**SENT, "half": np.ones((2, 2), np.float16), "seen": np.array(7, np.int64), "scale": np.array(2.0, np.float32)}


def request_of(arrays=MIXED):
    return Request.read(RecordDict({"arrays": record_of(arrays)}))


def test_an_update_has_the_floats_only():
    assert request_of().dimension == 3 + 1 + 4 + 1


def test_what_was_trained_is_found_again_from_its_update():
    request = request_of()
    trained = {name: array + 1 if array.dtype.kind == "f" else array for name, array in MIXED.items()}
    update = request.subtract_from(dict(reversed(trained.items())))
    assert update == pytest.approx(np.ones(9))
    placed = request.place(update)
    for name, array in MIXED.items():
        assert (placed[name].dtype, placed[name].shape) == (array.dtype, array.shape)
        assert placed[name] == pytest.approx(trained[name])


@pytest.mark.parametrize("change", [{"half": np.ones(4)}, {"more": np.ones(4)}, {"seen": None}])
def test_arrays_that_were_not_sent_make_no_update(change):
    trained = {name: array for name, array in ({**MIXED, **change}).items() if array is not None}
    assert request_of().subtract_from(trained).size == 0


def test_an_answer_has_the_names_of_the_request_in_its_order():
    answer = request_of().answer(dict(reversed(MIXED.items())), weight=5)
    assert list(answer["arrays"]) == list(MIXED)
    assert answer["metrics"] == {"num-examples": 5}
    assert {name: (array.numpy().shape, array.dtype) for name, array in answer["arrays"].items()} == {
        name: (array.shape, str(array.dtype)) for name, array in MIXED.items()
    }


@pytest.mark.parametrize(
    "records",
    [RecordDict(), RecordDict({"a": record_of(SENT), "b": record_of(SENT)}), RecordDict({"a": ArrayRecord()})],
)
def test_records_without_one_model_are_refused(records):
    with pytest.raises(InvalidArgument):
        Request.read(records)


def test_arrays_are_copies_of_their_own():
    record = record_of(SENT)
    read_arrays(record)["weight"][:] = 99
    assert np.array_equal(record["weight"].numpy(), SENT["weight"])
