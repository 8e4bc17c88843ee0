"""How good a model is on records, in the figures that readers of a study expect: exact, and for the owner alone.

All of them are computed from records without noise. On records that nobody declared public they are not covered by any
promise: an accuracy of 11/26 gives the number of records away, a confusion matrix the class of each.

>>> probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.7, 0.3]])
>>> found = assess_classes(probabilities, np.array([0, 1, 1, 1]), ("well", "ill"))
>>> found.accuracy, found.guessing, found.auc, found.confusion.tolist()
(0.75, 0.75, 1.0, [[1, 0], [1, 2]])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BINS = 10


@dataclass(frozen=True, eq=False)
class ClassAssessment:
    """A classifier's figures; `confusion` counts records by their true class (rows) and the predicted one.

    Sensitivity and specificity are those of each class against all others, None for one that is not there. The AUC is
    that of the second of two classes, or the mean over the classes. The calibration error is the mean distance of the
    probability of the predicted class from the share that is right, over ten bins.
    """

    classes: tuple[str, ...]
    accuracy: float
    guessing: float
    auc: float | None
    sensitivity: tuple[float | None, ...]
    specificity: tuple[float | None, ...]
    calibration_error: float
    confusion: NDArray[np.int64] = field(repr=False)

    @property
    def is_better(self) -> bool:
        """Whether the model is right more often than whoever always says the most frequent class."""
        return self.accuracy > self.guessing

    def to_plain(self) -> dict[str, Any]:
        """Return the figures as plain JSON values."""
        return {
            "accuracy": self.accuracy,
            "guessing": self.guessing,
            "auc": self.auc,
            "sensitivity": dict(zip(self.classes, self.sensitivity, strict=True)),
            "specificity": dict(zip(self.classes, self.specificity, strict=True)),
            "calibration_error": self.calibration_error,
            "confusion": self.confusion.tolist(),
            "classes": list(self.classes),
        }


@dataclass(frozen=True)
class QuantityAssessment:
    """A regression's errors; `guessing` is the root mean square error of whoever always says the mean."""

    rmse: float
    mae: float
    r2: float | None
    guessing: float

    @property
    def is_better(self) -> bool:
        """Whether the model errs less than the mean does."""
        return self.rmse < self.guessing

    def to_plain(self) -> dict[str, Any]:
        """Return the figures as plain JSON values."""
        return {"rmse": self.rmse, "mae": self.mae, "r2": self.r2, "guessing": self.guessing}


def assess_classes(probabilities: Floats, labels: NDArray[Any], classes: tuple[str, ...]) -> ClassAssessment:
    """Return the figures of a classifier from the probability of each class and the true ones."""
    count, found = len(classes), probabilities.argmax(axis=1)
    confusion = np.bincount(labels.astype(int) * count + found, minlength=count * count).reshape(count, count)
    hits, truly, said = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    total = len(labels)
    return ClassAssessment(
        classes=classes,
        accuracy=float(hits.sum() / total),
        guessing=float(truly.max() / total),
        auc=_mean_auc(probabilities, labels),
        sensitivity=tuple(_ratio(hit, true) for hit, true in zip(hits, truly, strict=True)),
        specificity=tuple(
            _ratio(total - true - say + hit, total - true) for hit, true, say in zip(hits, truly, said, strict=True)
        ),
        calibration_error=_measure_calibration(probabilities, labels),
        confusion=confusion,
    )


def assess_quantity(outputs: Floats, labels: NDArray[Any]) -> QuantityAssessment:
    """Return the errors of a regression."""
    errors = outputs.reshape(len(labels), -1)[:, 0] - labels
    spread = float(np.sqrt(np.mean(np.square(labels - labels.mean()))))
    rmse = float(np.sqrt(np.mean(np.square(errors))))
    r2 = 1 - (rmse / spread) ** 2 if spread > 0 else None
    return QuantityAssessment(rmse, float(np.abs(errors).mean()), r2, spread)


def compute_auc(scores: Floats, positive: NDArray[np.bool_]) -> float | None:
    """Return the chance that a positive record has the higher score, ties counted half; None without both kinds."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _mean_auc(probabilities: Floats, labels: NDArray[Any]) -> float | None:
    count = probabilities.shape[1]
    wanted = [1] if count == 2 else range(count)
    found = [compute_auc(probabilities[:, number], labels == number) for number in wanted]
    known = [value for value in found if value is not None]
    return float(np.mean(known)) if known else None


def _measure_calibration(probabilities: Floats, labels: NDArray[Any]) -> float:
    sure, hits = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights=sure, minlength=BINS) - np.bincount(bins, weights=hits, minlength=BINS)
    return float(np.abs(gaps).sum() / len(labels))


def _ratio(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None
