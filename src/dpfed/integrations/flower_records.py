"""What a Flower message asks and what is answered: arrays by name, and nothing of the site's own making beside them.

Names, number, shapes and types of what is answered are those of the request, so none of them can tell of a record. Both
forms are read: the Message API (one ArrayRecord) and that of the older `Client` (``fitins.parameters``).

>>> from flwr.app import ArrayRecord, RecordDict
>>> asked = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(2, np.float32))})})
>>> request = Request.read(asked)
>>> request.dimension, request.place(np.array([0.5, 1.0]))["w"].tolist()
(2, [0.5, 1.0])
>>> list(request.answer(request.sent, weight=1))
['arrays', 'metrics']
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument

# Flower sends usage data to its makers and asks them for updates unless these are set; whoever wants that sets them.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

OLD_REQUEST, OLD_ANSWER = "fitins.parameters", "fitres.parameters"
WEIGHT = "num-examples"  # the name under which Flower's strategies look for the weight


@dataclass(frozen=True)
class Request:
    """The arrays that a server sent, in its order, under the name of its record."""

    key: str
    sent: Mapping[str, NDArray[Any]]

    @classmethod
    def read(cls, content: RecordDict) -> Request:
        """Return what the records ask for; refuse any but one record of arrays, of which one at least is trained."""
        found = list(content.array_records.items())
        if len(found) != 1:
            raise InvalidArgument("message", f"a request has one ArrayRecord, got {len(found)}: send the model alone")
        request = cls(found[0][0], read_arrays(found[0][1]))
        if request.dimension < 1:
            raise InvalidArgument("message", "the request has no number that could be trained: send the model")
        return request

    @property
    def dimension(self) -> int:
        """How many numbers an update has: those of all arrays of floats."""
        return sum(array.size for array in self._floats.values())

    @property
    def _floats(self) -> dict[str, NDArray[Any]]:
        return {name: array for name, array in self.sent.items() if array.dtype.kind == "f"}

    def subtract_from(self, trained: Mapping[str, NDArray[Any]]) -> Floats:
        """Return the update as one vector: by how much what was trained differs from what was sent.

        It is of no use, and empty, where the arrays are not those that were sent.
        """
        own = self._floats
        if set(trained) != set(self.sent) or any(trained[name].shape != array.shape for name, array in own.items()):
            return np.zeros(0)
        with np.errstate(all="ignore"):
            parts = [(_widen(trained[name]) - _widen(array)).ravel() for name, array in own.items()]
        return np.concatenate(parts)

    def place(self, update: Floats) -> dict[str, NDArray[Any]]:
        """Return what was sent with the update added to its floats, in their own types; the rest as it was sent."""
        ends = np.cumsum([array.size for array in self._floats.values()])
        pieces = dict(zip(self._floats, np.split(update, ends[:-1]), strict=True))
        with np.errstate(all="ignore"):
            return {
                name: (_widen(array) + pieces[name].reshape(array.shape)).astype(array.dtype)
                if name in pieces
                else array
                for name, array in self.sent.items()
            }

    def answer(self, arrays: Mapping[str, NDArray[Any]], weight: int) -> RecordDict:
        """Return the records to send: these arrays, and the weight in the place of a count of examples."""
        record = ArrayRecord({name: Array(np.asarray(arrays[name])) for name in self.sent})
        if self.key != OLD_REQUEST:
            return RecordDict({self.key: record, "metrics": MetricRecord({WEIGHT: weight})})
        return RecordDict(
            {
                OLD_ANSWER: record,
                "fitres.num_examples": MetricRecord({"num_examples": weight}),
                "fitres.metrics": ConfigRecord({}),
                "fitres.status": ConfigRecord({"code": 0, "message": "Success"}),
            }
        )


def read_arrays(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Return the arrays of a record, each a copy of its own; refuse what is no plain array of numbers."""
    arrays = {str(name): array.numpy() for name, array in record.items()}
    if not all(type(array) is np.ndarray and array.dtype.kind in "fiub" for array in arrays.values()):
        raise InvalidArgument("message", "a model is sent as arrays of numbers: send ArrayRecord(model.state_dict())")
    return arrays


def _widen(array: NDArray[Any]) -> Floats:
    return np.asarray(array, dtype=np.float64)
