"""How good a model is, with a mark on every number that was measured on data which nobody declared public.

A score on private data is a release without noise: it is for the owner alone, and "not covered" by any guarantee. An
accuracy such as 11/26 gives the size of a private test set away, and a mean square error the residual of one of its
records. A metric is a function of a model's outputs and the targets, both numpy arrays, that gives one value per
record; what is reported is their mean.

>>> outputs = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
>>> accuracy(outputs, np.array([1, 0, 0]))
array([1., 1., 0.])
>>> print(Score("accuracy", 2 / 3, is_public=False))
accuracy 0.6667 (not covered)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import InvalidArgument
from dpfed.plan.measure import Measurement, add_records
from dpfed.references import is_reference, place_of, resolve

Metric = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
NOT_COVERED = "not covered"


@dataclass(frozen=True)
class Score:
    """One number about a model; one that was not measured on public data is marked wherever it is shown."""

    name: str
    value: float
    is_public: bool = False

    @property
    def mark(self) -> str:
        """What to write beside the number."""
        return "" if self.is_public else NOT_COVERED

    @property
    def is_shareable(self) -> bool:
        """Whether others than the owner may see it: only what was measured on public data."""
        return self.is_public

    def __str__(self) -> str:
        return f"{self.name} {self.value:.4g}" + ("" if self.is_public else f" ({NOT_COVERED})")


def accuracy(outputs: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
    """Return 1 where the largest score is the target's and 0 elsewhere, averaged over an example's pixels."""
    hits = _predict(outputs) == targets
    return np.asarray(hits.reshape(len(hits), -1).mean(axis=1))


def dice(outputs: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
    """Return 2|A∩B|/(|A| + |B|), averaged over all classes but class 0; 1 for a class that is in neither.

    Of an output with one score per pixel or record, class 1 is where it is above 0.
    """
    found, classes = _predict(outputs), outputs.shape[1] if outputs.ndim == targets.ndim + 1 else 2
    found, wanted = found.reshape(len(found), -1), targets.reshape(len(targets), -1)
    overlaps = [_overlap(found == number, wanted == number) for number in range(1, max(classes, 2))]
    return np.asarray(np.mean(overlaps, axis=0))


def mse(outputs: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
    """Return the mean squared error of each record."""
    errors = outputs.reshape(len(outputs), -1) - targets.reshape(len(targets), -1)
    return np.asarray(np.square(errors).mean(axis=1))


def in_unit(scores: Sequence[Score], bounds: Sequence[float] | None) -> tuple[Score, ...]:
    """Return the scores with the mean squared error in the unit of a label that was mapped from `bounds` to [−1, 1]."""
    if bounds is None:
        return tuple(scores)
    half = (bounds[1] - bounds[0]) / 2
    return tuple(replace(score, value=score.value * half**2) if score.name == "mse" else score for score in scores)


KINDS: dict[str, Metric] = {"accuracy": accuracy, "dice": dice, "mse": mse}


def exact_figures(
    measurement: Measurement, outputs: NDArray[Any], targets: NDArray[Any], *, is_public: bool
) -> tuple[Score, ...]:
    """Return the figures that a measurement releases with noise, without it and without bins: for the owner.

    NaN where nothing is known, such as the sensitivity where no record is positive.
    """
    shares = replace(measurement, metrics=tuple(name for name in measurement.metrics if name != "auc") or ("accuracy",))
    counts = add_records(shares.find_cells(outputs, targets), shares.size)
    known = {name: figure.value for name, figure in shares.find_figures(counts, noise=0.0).items()}
    if "auc" in measurement.metrics:
        known["auc"] = _rank(outputs, targets)
    found = {name: known[name] for name in measurement.metrics if name in known}
    return tuple(
        Score(name, math.nan if value is None else value, is_public=is_public) for name, value in found.items()
    )


def _rank(outputs: NDArray[Any], targets: NDArray[Any]) -> float | None:
    """Return the chance that a record of the second class has a higher score than one of the first."""
    odds = outputs[:, 1] - outputs[:, 0] if outputs.ndim > 1 and outputs.shape[1] > 1 else outputs.reshape(len(outputs))
    low, high = np.sort(odds[targets == 0]), odds[targets == 1]
    if not len(low) or not len(high):
        return None
    below, up_to = np.searchsorted(low, high, side="left"), np.searchsorted(low, high, side="right")
    return float((below + up_to).sum() / (2 * len(low) * len(high)))


def find_metric(kind: str | Metric, directory: str | Path | None = None) -> tuple[str, Metric]:
    """Return a metric and its name: a built-in one, package.module:name, or a function."""
    if callable(kind):
        return getattr(kind, "__name__", "metric"), kind
    if kind in KINDS:
        return kind, KINDS[kind]
    if not is_reference(kind):
        message = f"metric must be one of {', '.join(KINDS)} or package.module:name, got {kind!r}"
        raise InvalidArgument("metric", message)
    return kind.partition(":")[2], resolve(kind, directory)


def compute_values(name: str, metric: Metric, outputs: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
    """Return the metric's values, one number per record; NaN where it fails.

    Neither a failure nor a value that is not finite is a reason to refuse: it may follow from a record, of which the
    end of a run would tell. One that always fails is found by `rehearse` before.
    """
    try:
        return _call(name, metric, outputs, targets)
    except InvalidArgument:
        raise
    except Exception:
        return np.full(len(outputs), np.nan)


def rehearse(name: str, metric: Metric, outputs: NDArray[Any], targets: NDArray[Any]) -> None:
    """Refuse a metric that fails on made-up outputs and targets, before a round is run."""
    try:
        _call(name, metric, outputs, targets)
    except InvalidArgument:
        raise
    except Exception as error:
        message = f"metric {name} fails on made-up records ({place_of(error)})"
        raise InvalidArgument("metric", f"{message}: call it in Python to see more") from None


def _call(name: str, metric: Metric, outputs: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
    found = np.asarray(metric(outputs, targets), dtype=float)
    if found.shape != (len(outputs),):
        message = f"metric {name} must give one number per record, {len(outputs)} here, got {found.shape}"
        raise InvalidArgument("metric", f"{message}: average what a record has more of")
    return found


def _predict(outputs: NDArray[Any]) -> NDArray[Any]:
    """Return the class of the largest score along the second axis; with one score, whether it is above 0."""
    if outputs.ndim > 1 and outputs.shape[1] > 1:
        return np.asarray(outputs.argmax(axis=1))
    return np.asarray((outputs.squeeze(1) if outputs.ndim > 1 else outputs) > 0).astype(int)


def _overlap(found: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> NDArray[Any]:
    both, sizes = (found & wanted).sum(axis=1), found.sum(axis=1) + wanted.sum(axis=1)
    return np.where(sizes == 0, 1.0, 2 * both / np.maximum(sizes, 1))
