"""Shadow models: the attacked model's twins, each on a random half of the records, trained all at once.

An attacker who knows architecture and training can see what models that have a record say about it, and what those
without it say. The shadows are many models of one architecture: `train_many` trains them together.

>>> from dpfed.models.logistic import Logistic
>>> from dpfed.randomness import SeededSource
>>> model, source = TorchModel(Logistic, "cross_entropy"), SeededSource(2)
>>> records = source.normal((60, 30)), source.integers(2, 60)
>>> plan = LocalPlan(size=30, batch_size=10, steps=4, learning_rate=0.5)
>>> shadows = train_shadows(model, records, plan, 6, source=source)
>>> shadows.is_in.shape, shadows.confidences.shape, shadows.is_in.sum(axis=1).tolist()
((6, 60), (6, 60), [30, 30, 30, 30, 30, 30])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument
from dpfed.federated.state.layout import Vector
from dpfed.federated.torch.model import TorchModel
from dpfed.plan.local import LocalPlan
from dpfed.randomness import RandomSource, or_system
from dpfed.training.many.train import train_many


@dataclass(frozen=True, eq=False)
class Shadows:
    """Tables of K models and n records: who trained on what, and what each says about every record."""

    is_in: NDArray[np.bool_] = field(repr=False)
    confidences: Floats = field(repr=False)
    losses: Floats = field(repr=False)
    weights: tuple[Vector, ...] = field(default=(), repr=False)


def train_shadows(
    model: TorchModel, records: tuple[Any, Any], plan: LocalPlan, count: int, *, source: RandomSource | None = None
) -> Shadows:
    """Train `count` shadow models by the plan, each on a random half of the records, and ask them about all.

    Each record is in half of the models, so that online attacks have as many of either kind.

    Privacy: none that is charged. What the models say is of the records as they are: for the owner alone where these
    are private.
    """
    count, origin = checks.count(count=count), or_system(source)
    inputs, targets = (np.asarray(part) for part in records)
    is_in = _deal_halves(count, len(inputs), origin.stream("shadows"))
    with model.borrow(model.first_weights):
        pass  # from where all of them start
    data = [(inputs[row], targets[row]) for row in is_in]
    found = train_many(model.module, data, [plan] * count, loss=model.loss, recipe=model.recipe, source=origin)
    names = model.layout.names
    rows = [np.concatenate([each[name].numpy().ravel() for name in names]) for each in found]
    asked = [ask(model, row, (inputs, targets)) for row in rows]
    return Shadows(is_in, np.stack([each[0] for each in asked]), np.stack([each[1] for each in asked]), tuple(rows))


def ask(model: TorchModel, weights: Vector, records: tuple[Any, Any]) -> tuple[Floats, Floats]:
    """Return the confidence of each record's own class, as a logit, and its loss; not a number without classes."""
    outputs, losses = model.predict(weights, records)
    labels = np.asarray(records[1])
    if outputs.ndim != 2 or labels.ndim != 1 or labels.dtype.kind not in "iu" or outputs.shape[1] < 2:
        return np.full(len(losses), np.nan), losses
    own = np.take_along_axis(outputs, labels[:, None], axis=1)[:, 0]
    rest = np.where(np.arange(outputs.shape[1]) == labels[:, None], -np.inf, outputs)
    with np.errstate(invalid="ignore"):  # ∞ − ∞, of a model that diverged, is not a number, as it should be
        return np.asarray(own - logsumexp(rest, axis=1)), losses


def _deal_halves(count: int, records: int, source: RandomSource) -> NDArray[np.bool_]:
    """Return random halves in pairs: of two models each record is in one."""
    if records < 2:
        raise InvalidArgument("records", "shadow models need at least two records to be dealt: give more")
    rows = []
    for _ in range(-(-count // 2)):
        half = np.zeros(records, dtype=bool)
        half[np.argsort(source.words(records), kind="stable")[: records // 2]] = True
        rows += [half, ~half]
    return np.stack(rows[:count])
