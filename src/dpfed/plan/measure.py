"""What a run releases about how good its model is: counts over the records held out, and the figures they give.

Every record held out is in one cell: whether the model is right, which class it takes for which, or how sure it is.
The counts are noised; accuracy, AUC and the others, and their intervals, follow from these counts alone.

>>> measurement = Measurement(("accuracy", "auc"), epsilon=0.2, rounds=(10,), classes=2)
>>> measurement.kind, measurement.size
('scores', 24)
>>> outputs, targets = np.array([[2.0, -1.0], [0.0, 0.1], [-3.0, 0.0]]), np.array([0, 1, 0])
>>> counts = add_records(measurement.find_cells(outputs, targets), measurement.size)
>>> measurement.find_figures(counts, noise=0.0)["accuracy"].value
0.6666666666666666
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.counts import GRID, add_records
from dpfed.mechanisms.ratios import Figure, area, share

__all__ = ["METRICS", "Measurement", "add_records"]

HITS, CONFUSION, SCORES = "hits", "confusion", "scores"
MATRIX = "confusion_matrix"
METRICS = ("accuracy", MATRIX, "auc", "sensitivity", "specificity")
BINARY = METRICS[2:]  # those for two classes, of which the second one is the positive
# Public bounds between bins of the log-odds, finest around 0: a model with much noise is unsure of everything. Pairs in
# one bin count half, which makes an AUC smaller by about 0.01.
_EDGES = np.array([0.1, 0.3, 0.8, 1.6, 3.2])
EDGES = np.concatenate([-_EDGES[::-1], [0.0], _EDGES])
MOST_CLASSES = 1000


@dataclass(frozen=True)
class Measurement:
    """The `metrics` that are released after these `rounds`, which may cost a unit `epsilon` in all, at δ = 0.

    `classes` are as many as are declared, and `fraction` is the share of records that are held out. `grid` are the
    steps of the weight 1 of a person or a client. `epsilon` is part of what the plan promises, and noise in training is
    calibrated to the rest. With `stop`, one of the metrics, a run ends once it has not been better for `patience`
    measurements: released values decide, and what is promised stays that of all rounds.
    """

    metrics: tuple[str, ...]
    epsilon: float
    rounds: tuple[int, ...]
    classes: int
    fraction: float = 0.2
    grid: int = GRID
    stop: str | None = None
    patience: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", tuple(dict.fromkeys(self.metrics)))
        object.__setattr__(self, "epsilon", checks.positive(epsilon=self.epsilon))
        object.__setattr__(self, "rounds", tuple(sorted({checks.count(rounds=each) for each in self.rounds})))
        object.__setattr__(self, "classes", checks.count(classes=self.classes))
        object.__setattr__(self, "fraction", checks.positive_probability(fraction=self.fraction))
        object.__setattr__(self, "grid", checks.count(grid=self.grid))
        object.__setattr__(self, "patience", checks.count(patience=self.patience))
        self._require_known()
        self._require_stoppable()

    @property
    def kind(self) -> str:
        """What is counted: whether the model is right, which class it takes for which, or how sure it is."""
        if "auc" in self.metrics:
            return SCORES
        return HITS if self.metrics == ("accuracy",) and self.classes > 2 else CONFUSION

    @property
    def size(self) -> int:
        """How many numbers are released."""
        return {HITS: 2, CONFUSION: self.classes**2, SCORES: 2 * (len(EDGES) + 1)}[self.kind]

    def within(self, rounds: int) -> Measurement:
        """Return the same for a plan of so many rounds: what comes after them is measured at their end."""
        kept = tuple(min(each, rounds) for each in self.rounds)
        return Measurement(**{**vars(self), "rounds": kept, "stop": None})

    def find_cells(self, outputs: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.int64]:
        """Return the cell of each record by what the model says of it; −1 for a label that is no class.

        Whatever the outputs are, also none that are finite, every record is in one cell at most.
        """
        scores = np.nan_to_num(np.asarray(outputs, dtype=float), nan=0.0, posinf=1e300, neginf=-1e300)
        labels = np.asarray(targets).reshape(len(scores))
        is_class = (labels >= 0) & (labels < self.classes) & (labels == np.rint(labels))
        wanted = np.where(is_class, labels, 0).astype(np.int64)
        if self.kind == SCORES:
            cells = wanted * (len(EDGES) + 1) + np.searchsorted(EDGES, _find_odds(scores), side="left")
        else:
            found = np.minimum(_find_classes(scores), self.classes - 1)
            cells = (found == wanted).astype(np.int64) if self.kind == HITS else wanted * self.classes + found
        return np.where(is_class, cells, -1)

    def require_outputs(self, outputs: NDArray[Any], targets: NDArray[Any]) -> None:
        """Refuse a model whose outputs are not one score for each class, or one for two, of each record."""
        width = outputs.shape[1] if outputs.ndim == 2 else 1
        if outputs.ndim > 2 or np.asarray(targets).size != len(outputs) or width > max(self.classes, 1):
            message = f"metrics.release counts records by class, and the model has outputs of shape {outputs.shape[1:]}"
            raise InvalidArgument(
                "metrics", f"{message} for {self.classes} classes; leave metrics out, or declare data.classes"
            )

    def find_figures(self, counts: NDArray[Any], noise: float) -> dict[str, Figure]:
        """Return the figures from released counts, whose noise has that variance in each number."""
        table = np.asarray(counts, dtype=float).reshape(2 if self.kind != CONFUSION else self.classes, -1)
        return {name: self._find_figure(name, table, noise) for name in self.metrics if name != MATRIX}

    def _find_figure(self, name: str, table: NDArray[Any], noise: float) -> Figure:
        if name == "auc":
            return area(table[0], table[1], noise)
        if self.kind == HITS:
            return share(float(table[1, 0]), float(table[0, 0]), noise)
        if self.kind == SCORES:
            cut = len(EDGES) // 2 + 1
            noises = np.array([cut, table.shape[1] - cut]) * noise
            return _find_share(name, np.add.reduceat(table, [0, cut], axis=1), np.broadcast_to(noises, (2, 2)))
        return _find_share(name, table, np.full(table.shape, noise))

    def _require_known(self) -> None:
        unknown = [name for name in self.metrics if name not in METRICS]
        if unknown or not self.metrics:
            found = ", ".join(map(repr, unknown)) or "none"
            raise InvalidArgument(
                "metrics", f"metrics must be of {', '.join(METRICS)}, got {found}: choose among these"
            )
        two = [name for name in self.metrics if name in BINARY]
        if two and self.classes != 2:
            message = f"{two[0]} is for two classes, and {self.classes} are declared"
            raise InvalidArgument("metrics", f"{message}: release accuracy, or declare two classes")
        if not self.rounds or self.classes > MOST_CLASSES:
            message = f"rounds must name one at least, and classes be at most {MOST_CLASSES}"
            raise InvalidArgument("rounds", f"{message}, got {self.rounds} and {self.classes}: change that")

    def is_over(self, values: Sequence[float | None]) -> bool:
        """Return whether a run ends by the released values of the metric to stop on, in order; None was unknown."""
        known = [-1.0 if value is None else value for value in values]
        is_waited_for = self.stop is not None and len(known) > self.patience
        return is_waited_for and known.index(max(known)) < len(known) - self.patience

    def _require_stoppable(self) -> None:
        if self.stop is None:
            return
        if self.stop not in self.metrics or self.stop == MATRIX:
            message = f"stop must be a metric that is released ({', '.join(self.metrics)}), got {self.stop!r}"
            raise InvalidArgument("stop", f"{message}: exact scores must not decide; release it, or stop on another")
        if len(self.rounds) <= self.patience:
            message = f"stop with patience {self.patience} needs figures after {self.patience + 1} rounds at least"
            raise InvalidArgument("stop", f"{message}, got {len(self.rounds)}: name more in metrics.rounds")

    def to_plain(self) -> dict[str, Any]:
        """Return the measurement as plain JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Measurement:
        """Return the measurement that `to_plain` described."""
        return cls(**{**plain, "metrics": tuple(plain["metrics"]), "rounds": tuple(plain["rounds"])})


def _find_share(name: str, table: NDArray[Any], noises: NDArray[Any]) -> Figure:
    """Return the share of a metric from counts by class (rows) and what the model says (columns)."""
    places: dict[str, Callable[[], Iterable[int]]] = {
        "accuracy": lambda: range(len(table)),
        "sensitivity": lambda: (1,),
        "specificity": lambda: (0,),
    }
    rows = list(places[name]())
    right = sum(float(table[row, row]) for row in rows)
    wrong = sum(float(table[row].sum() - table[row, row]) for row in rows)
    own = sum(float(noises[row, row]) for row in rows)
    others = sum(float(noises[row].sum() - noises[row, row]) for row in rows)
    return share(right, wrong, max(own, others))


def _find_classes(scores: NDArray[Any]) -> NDArray[np.int64]:
    """Return the class of the largest score; with one score, whether it is above 0."""
    if scores.ndim > 1 and scores.shape[1] > 1:
        return np.asarray(scores.argmax(axis=1), dtype=np.int64)
    return (scores.reshape(len(scores)) > 0).astype(np.int64)


def _find_odds(scores: NDArray[Any]) -> NDArray[Any]:
    """Return the log-odds of the second of two classes."""
    if scores.ndim > 1 and scores.shape[1] > 1:
        return np.asarray(scores[:, 1] - scores[:, 0])
    return scores.reshape(len(scores))
