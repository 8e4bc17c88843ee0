"""Records in place of private ones: of the same form, and made of nothing but that form.

What an audit of plan and code needs of the data are shapes, types and classes, which the model's owner has published
with it anyway. Values are drawn at random; labels of classes follow a random linear rule, so that there is something
to learn.

>>> from dpfed.models.logistic import Logistic
>>> ward = TorchClient("ward", (np.ones((20, 30)), np.zeros(20, dtype=int)), "", TorchModel(Logistic, "cross_entropy"))
>>> made = make_stand_in(ward, 100, SeededSource(1))
>>> made.name, len(made.examples), made.examples.form == ward.examples.form
('ward', 100, True)
"""

from __future__ import annotations

import filecmp
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.data.persons import Persons
from dpfed.data.records import Records
from dpfed.data.sources import SKLEARN
from dpfed.errors import InvalidArgument
from dpfed.federated.torch.client import TorchClient
from dpfed.federated.torch.examples import make_records
from dpfed.federated.torch.model import TorchModel
from dpfed.randomness import RandomSource, SeededSource

__all__ = ["MOST", "SeededSource", "TorchModel", "make_stand_in", "put_in_records", "read_records", "require_other"]

MOST = 512  # records that are made up; the plan, which knows a size of its own, stays as it is


def make_stand_in(client: TorchClient, count: int, source: RandomSource) -> TorchClient:
    """Return the client with `count` generated records in place of its own, one row for each person."""
    form = client.examples.form
    if form is None:
        message = f"the form of what {client.name} holds is not known, so that nothing like it can be made up"
        raise InvalidArgument("data", f"{message}: give a public stand-in of the same columns")
    inputs, targets = (part.numpy() for part in make_records(form, count))
    if inputs.dtype.kind == "f":
        inputs = source.normal(inputs.shape).astype(inputs.dtype)
    if targets.dtype.kind in "iu":
        targets = _label(inputs, client.model.count_classes(form), targets.shape, source).astype(targets.dtype)
    else:
        targets = source.normal(targets.shape).astype(targets.dtype)
    return put_in_records(client, Records(inputs, targets))


def require_other(source: str, own: str, folder: Path) -> None:
    """Refuse the run's own file, or a copy of it, as public stand-in: it would be trained on without being charged."""
    given, private = Path(source), folder / own
    is_file = given.is_file() and private.is_file()
    if not own.startswith(SKLEARN) and (source == own or (is_file and filecmp.cmp(given, private, shallow=False))):
        message = f"{source} holds the run's own records, which are private: as a stand-in nobody would pay for them"
        raise InvalidArgument("stand_in", f"{message}; name other records, or give --on-private-data")


def read_records(client: TorchClient) -> Records:
    """Return the rows of a client whose records are arrays."""
    if isinstance(client.data, Persons):
        return client.data.rows
    return Records(*client.data)


def _label(inputs: NDArray[Any], classes: int, shape: tuple[int, ...], source: RandomSource) -> NDArray[Any]:
    if inputs.dtype.kind != "f" or len(shape) != 1:
        return source.integers(classes, shape)
    rule = SeededSource(0).normal((inputs[0].size, classes))  # one for all clients
    return np.asarray(np.argmax(inputs.reshape(len(inputs), -1) @ rule, axis=1))


def put_in_records(client: TorchClient, records: Records) -> TorchClient:
    """Return the client with these records in place of its own."""
    if isinstance(client.data, Persons):
        return replace(client, data=Persons(records, np.ones(len(records), dtype=np.int64)))
    return replace(client, data=(records.features, records.labels))
