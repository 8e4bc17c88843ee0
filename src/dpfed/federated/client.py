"""One data owner: its records never leave, only what its `LocalPlan` noised does.

>>> import numpy as np
>>> from dpfed.plan import LocalPlan
>>> from dpfed.randomness import SeededSource
>>> class Mean:
...     def gradients(self, weights, values):
...         return weights - values
>>> ward = Client("ward", (np.ones((8, 2)),), account="ward-2026")
>>> local = LocalPlan(size=8, batch_size=4, steps=3, learning_rate=0.5, clip_norm=1.0, noise_multiplier=1.0)
>>> ward, ward.train(local, Mean(), np.zeros(2), SeededSource(1)).shape
(Client(name='ward', account='ward-2026'), (2,))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import InvalidArgument
from dpfed.plan import MOST_RECORDS, LocalPlan
from dpfed.randomness import RandomSource
from dpfed.structure import Floats


class Model(Protocol):
    """Whatever can be trained: it knows the gradient of each record on its own."""

    def gradients(self, weights: Floats, *records: NDArray[Any]) -> Floats:
        """One row per record: the gradient of its loss, which may depend on that record and the weights only."""


@dataclass(frozen=True, eq=False)
class Client:
    """A name in the plan, the records (arrays with one leading axis) and the account that pays for their use."""

    name: str
    data: tuple[NDArray[Any], ...] = field(repr=False)
    account: str

    def __post_init__(self) -> None:
        data = tuple(np.asarray(part) for part in self.data)
        lengths = {part.shape[:1] for part in data}
        if len(lengths) != 1 or lengths == {()} or max(lengths)[0] > MOST_RECORDS:
            message = f"data of {self.name} must be arrays with one leading axis of at most {MOST_RECORDS} records"
            raise InvalidArgument("data", message)
        object.__setattr__(self, "data", data)

    def train(self, local: LocalPlan, model: Model, weights: Floats, source: RandomSource) -> Floats:
        """The change of the weights after the plan's steps.

        Privacy: ``local.event`` for one record under add/remove. Each step looks at the records once, through
        a Poisson sample, clipping and noise; everything else is computed from what these steps released.
        """
        trained = weights
        for _ in range(local.steps):
            sample = local.sample(len(self.data[0]), source)
            gradients = self._gradients(model, trained, sample)
            trained = trained - local.learning_rate * local.release(gradients, source)
        return trained - weights

    def rehearse(self, model: Model, weights: Floats) -> None:
        """Refuses a model that does not fit the data, on no records: before anything is charged."""
        self._gradients(model, weights, np.zeros(len(self.data[0]), dtype=bool))

    def _gradients(self, model: Model, weights: Floats, sample: NDArray[np.bool_]) -> Floats:
        with np.errstate(all="ignore"):
            gradients = np.asarray(model.gradients(weights, *(part[sample] for part in self.data)), dtype=float)
        if gradients.ndim != 2 or gradients.shape[1:] != weights.shape or len(gradients) != np.count_nonzero(sample):
            message = f"the model must give one row of {weights.size} numbers per record; {self.name} got another shape"
            raise InvalidArgument("model", message)
        return gradients
