"""scikit-learn estimators trained by DP-SGD, which list what their guarantee does not cover.

`fit` looks at more than gradients: how many records there are, which labels occur. Declare these in public (`size`,
`classes`); what was taken from the data instead is listed in `not_covered_`.

>>> import numpy as np
>>> X = np.linspace(-1, 1, 200).reshape(-1, 1)
>>> model = PrivateClassifier(Guarantee(2.0, 1e-5), size=200, classes=(0, 1), feature_bounds=(-1, 1))
>>> fitted = model.fit(X, (X[:, 0] > 0).astype(int))
>>> fitted.epsilon_ <= 2.0, fitted.not_covered_
(True, ['other fits on these records, and a choice between them: no account was charged'])
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import validate_data
from torch import Tensor, nn

from dpfed.errors import InvalidArgument
from dpfed.guarantee import Account, Guarantee
from dpfed.integrations.estimator import PrivateEstimator, Values, read_classes, scale_to_bounds


class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """A linear classifier, or an MLP if `hidden` is given, trained by DP-SGD until the guarantee is spent.

    `size` and `classes` are public facts about the data; `feature_bounds` is a public (low, high), each a number or
    one for every feature. With an `account`, every fit is charged as a run of its own, `run` and a random end: `run_`.
    `verbose` shows a bar with ε on a terminal if the fit takes long. Ctrl-C ends it; what is learnt and spent by then
    stays.

    Whatever clones the estimator (GridSearchCV and other searches, cross-validation, stacking, calibration, bagging) is
    refused on an account, unless `scoring_is_public` declares that all records which are scored, and the split that
    chooses them, are public. Without an account nothing is refused, and no ε that is shown covers a search: `epsilon_`
    is that of one fit, and a choice by scores on private folds is a release without noise.

    Privacy: ``plan.event`` of `dpfed.plan.LocalPlan`, for one record under add/remove, see `make_private`. It covers
    the fitted model except for what `not_covered_` lists. A record is a row: one that is in several rows, after
    bootstrapping say, is not covered. Neither is what is done with a score on private data, `score` among them. A
    weight of `sample_weight` is part of its record: it multiplies the record's loss before its gradient is cut to
    `clip_norm`, and the sum is divided by the batch size whatever the weights are, so that the sensitivity stays.
    Weights that follow from other records (so that they add up to one, or balance the classes) are not covered.
    """

    def __init__(
        self,
        guarantee: Guarantee | None = None,
        *,
        size: int | None = None,
        classes: ArrayLike | None = None,
        feature_bounds: tuple[ArrayLike, ArrayLike] | None = None,
        hidden: tuple[int, ...] = (),
        epochs: float = 20,
        batch_size: int = 64,
        learning_rate: float = 0.5,
        clip_norm: float = 1.0,
        random_state: Any = None,
        account: Account | None = None,
        run: str | None = None,
        scoring_is_public: bool = False,
        verbose: bool = True,
    ) -> None:
        self.guarantee = guarantee
        self.size = size
        self.classes = classes
        self.feature_bounds = feature_bounds
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self.random_state = random_state
        self.account = account
        self.run = run
        self.scoring_is_public = scoring_is_public
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train and return this estimator; wrong arguments are refused before anything is spent."""
        features, labels = validate_data(self, X, y, dtype=np.float64)
        classes = read_classes(labels, self.classes)
        targets = torch.from_numpy(np.searchsorted(classes, labels))
        loss = nn.CrossEntropyLoss(reduction="none")
        private = self._make_private(features, targets, len(classes), loss, sample_weight)
        self.classes_ = classes  # not before: a refused fit leaves the old model as it was
        self._train(private)
        return self

    def predict_proba(self, X: ArrayLike) -> Values:
        """Return the probability of each class, one row per example."""
        scores = torch.from_numpy(self._compute_outputs(X))
        shares: Values = scores.softmax(dim=1).numpy()
        return shares

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable class of each example."""
        best = self._compute_outputs(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def _list_undeclared(self) -> dict[str, Any]:
        return {"which labels occur: classes were not declared and come from the data": self.classes} | (
            super()._list_undeclared()
        )


class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A linear regression, or an MLP if `hidden` is given, trained by DP-SGD until the guarantee is spent.

    As `PrivateClassifier`, in searches too; `target_bounds` is a public (low, high) to which targets are cut, and
    scaled for training.

    Privacy: as for `PrivateClassifier`.
    """

    def __init__(
        self,
        guarantee: Guarantee | None = None,
        *,
        size: int | None = None,
        feature_bounds: tuple[ArrayLike, ArrayLike] | None = None,
        target_bounds: tuple[float, float] | None = None,
        hidden: tuple[int, ...] = (),
        epochs: float = 20,
        batch_size: int = 64,
        learning_rate: float = 0.1,
        clip_norm: float = 1.0,
        random_state: Any = None,
        account: Account | None = None,
        run: str | None = None,
        scoring_is_public: bool = False,
        verbose: bool = True,
    ) -> None:
        self.guarantee = guarantee
        self.size = size
        self.feature_bounds = feature_bounds
        self.target_bounds = target_bounds
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self.random_state = random_state
        self.account = account
        self.run = run
        self.scoring_is_public = scoring_is_public
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train and return this estimator; wrong arguments are refused before anything is spent."""
        features, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        with np.errstate(over="ignore"):
            seen = (targets if self.target_bounds is None else scale_to_bounds(targets, self.target_bounds)).astype(
                np.float32
            )
        if not np.isfinite(seen).all():
            raise InvalidArgument("y", "y has values too large for float32: give target_bounds, or scale it in public")
        self._train(self._make_private(features, torch.from_numpy(seen), 1, _squared_error, sample_weight))
        return self

    def predict(self, X: ArrayLike) -> Values:
        """Return the predicted target of each example."""
        outputs = self._compute_outputs(X)[:, 0]
        if self.target_bounds is None:
            return outputs
        low, high = self.target_bounds
        return low + (outputs + 1) / 2 * (high - low)

    def _list_undeclared(self) -> dict[str, Any]:
        text = "scaling of the targets before fit, if it used the data's own statistics: no target_bounds declared"
        return super()._list_undeclared() | {text: self.target_bounds}


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square()
