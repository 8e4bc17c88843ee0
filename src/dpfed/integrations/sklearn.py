"""scikit-learn estimators trained by DP-SGD, which list what their guarantee does not cover.

`fit` looks at more than gradients: how many records there are, which labels occur. Declare these in public (`size`,
`classes`); what was taken from the data instead is listed in `not_covered_`.

>>> import numpy as np
>>> X = np.linspace(-1, 1, 200).reshape(-1, 1)
>>> model = PrivateClassifier(Guarantee(2.0, 1e-5), size=200, classes=(0, 1), feature_bounds=(-1, 1))
>>> fitted = model.fit(X, (X[:, 0] > 0).astype(int))
>>> fitted.epsilon_ <= 2.0, fitted.not_covered_
(True, ['other fits on these records: no account was charged'])
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpfed.errors import InvalidArgument
from dpfed.guarantee import Account, Guarantee
from dpfed.integrations import progress
from dpfed.models.mlp import MLP
from dpfed.plan import LocalPlan
from dpfed.randomness import RandomSource, SeededSource, SystemSource
from dpfed.training.private import Private, make_private

Values = NDArray[np.float64]


class _PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: a plan from the arguments, its execution, and the list of what it leaves open."""

    guarantee: Guarantee | None
    account: Account | None

    def __sklearn_clone__(self) -> Self:
        """An unfitted twin that is charged to the same account: a copy of it would hide what the twin spends."""
        values = self.get_params(deep=False)
        return type(self)(**{k: v if k == "account" else clone(v, safe=False) for k, v in values.items()})

    def __getstate__(self) -> dict[str, Any]:
        """The state without the account, which is a connection; `run` stays, so that a copy is not fitted uncharged."""
        if self.account is not None and self.run is None:
            raise InvalidArgument(
                "run", "a copy leaves its account behind: name the run, or take the account off first"
            )
        return {**super().__getstate__(), "account": None}

    def _plan(self, records: int) -> LocalPlan:
        if not isinstance(self.guarantee, Guarantee):
            raise InvalidArgument("guarantee", f"guarantee must be a Guarantee(epsilon, delta), got {self.guarantee!r}")
        size = records if self.size is None else self.size
        batch = min(self.batch_size, size) if self.size is None else self.batch_size
        plan = LocalPlan(
            size=size,
            batch_size=batch,
            epochs=self.epochs,
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
        )
        return plan.calibrated(self.guarantee)

    def _features(self, X: Values) -> Tensor:
        """The features as the model sees them: scaled and cut to [-1, 1] if they have public bounds."""
        with np.errstate(over="ignore"):
            seen = (X if self.feature_bounds is None else _scaled(X, self.feature_bounds)).astype(np.float32)
        if not np.isfinite(seen).all():
            raise InvalidArgument("X", "X has values too large for float32: give feature_bounds, or scale it in public")
        return torch.from_numpy(seen)

    def _private(self, X: Values, targets: Tensor, outputs: int, loss: Callable[[Any, Any], Tensor]) -> Private:
        """A new model in training by the plan; with an account all of it is reserved, under a name of its own."""
        features, plan = self._features(X), self._plan(len(X))
        seed, source = _randomness(self.random_state)
        model = MLP(X.shape[1], _widths(self.hidden), outputs, seed=seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=plan.learning_rate)
        data = TensorDataset(features, targets)
        # The ledger would take a second fit of one name for the rest of the first, which has nothing left.
        run = None if self.run is None else f"{self.run}-{secrets.token_hex(4)}"
        account = _account(self.account)
        private = make_private(model, optimizer, data, plan, loss=loss, account=account, run=run, source=source)
        self.run_ = run
        return private

    def _train(self, private: Private) -> None:
        """Nothing; takes all steps and keeps the model. The model that Ctrl-C leaves is kept too: it is paid for."""
        try:
            with closing(private), progress.shown(private, is_wanted=self.verbose) as update:
                for batch in private.loader:
                    private.step(batch)
                    update()
        except KeyboardInterrupt:
            self._keep(private)
            done = f"stopped after step {self.n_iter_} of {private.plan.steps}: {self.guarantee_} is spent"
            raise KeyboardInterrupt(f"{done}, and the model so far is kept") from None
        self._keep(private)

    def _keep(self, private: Private) -> None:
        private.optimizer.zero_grad()  # an interrupted step leaves some
        self.model_ = private.model.double().eval()
        self.n_iter_ = private.steps_taken
        self.guarantee_ = private.spent()
        self.epsilon_ = self.guarantee_.epsilon
        self.is_private_ = private.is_private
        self.not_covered_ = self._not_covered() + _cut_short(private)

    def _not_covered(self) -> list[str]:
        open_ends = {
            "everything: random_state seeds samples and noise, so this model is NOT PRIVATE": self.random_state,
            "other fits on these records: no account was charged": True if self.account is None else None,
        }
        missing = {"the number of records: size was not declared and comes from the data": self.size}
        missing |= self._undeclared()
        return [text for text, value in open_ends.items() if value is not None] + [
            text for text, value in missing.items() if value is None
        ]

    def _undeclared(self) -> dict[str, Any]:
        text = "scaling before fit, if it used the data's own statistics: feature_bounds were not declared"
        return {text: self.feature_bounds}

    def _outputs(self, X: ArrayLike) -> Values:
        check_is_fitted(self, "model_")
        seen = self._features(validate_data(self, X, dtype=np.float64, reset=False))
        with torch.no_grad():
            outputs: Values = self.model_(seen.double()).numpy()
        return outputs


class PrivateClassifier(ClassifierMixin, _PrivateEstimator):  # type: ignore[misc]
    """A linear classifier, or an MLP if `hidden` is given, trained by DP-SGD until the guarantee is spent.

    `size` and `classes` are public facts about the data; `feature_bounds` is a public (low, high), each a number or
    one for every feature. With an `account`, every fit is charged as a run of its own, `run` and a random end: `run_`.
    `verbose` shows a bar with ε on a terminal if the fit takes long. Ctrl-C ends it; what is learnt and spent by then
    stays.

    Privacy: ``plan.event`` of `dpfed.plan.LocalPlan`, for one record under add/remove, see `make_private`. It covers
    the fitted model except for what `not_covered_` lists; a score on private data is not covered by it either.
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
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """This estimator, trained; what is wrong with X or y is refused before anything is spent."""
        features, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        classes = np.unique(np.asarray(labels if self.classes is None else self.classes))
        if len(classes) < 2:
            raise InvalidArgument("classes", f"a classifier needs at least two classes, got {len(classes)} class")
        if not np.isin(labels, classes).all():
            raise InvalidArgument("y", "y has labels that are not in classes: declare all labels that may occur")
        targets = torch.from_numpy(np.searchsorted(classes, labels))
        private = self._private(features, targets, len(classes), nn.CrossEntropyLoss(reduction="none"))
        self.classes_ = classes  # not before: a refused fit leaves the old model as it was
        self._train(private)
        return self

    def predict_proba(self, X: ArrayLike) -> Values:
        """The probability of each class, one row per example."""
        scores = torch.from_numpy(self._outputs(X))
        shares: Values = scores.softmax(dim=1).numpy()
        return shares

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of each example."""
        best = self._outputs(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def _undeclared(self) -> dict[str, Any]:
        return {"which labels occur: classes were not declared and come from the data": self.classes} | (
            super()._undeclared()
        )


class PrivateRegressor(RegressorMixin, _PrivateEstimator):  # type: ignore[misc]
    """A linear regression, or an MLP if `hidden` is given, trained by DP-SGD until the guarantee is spent.

    As `PrivateClassifier`; `target_bounds` is a public (low, high) to which targets are cut, and scaled for training.

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
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """This estimator, trained; what is wrong with X or y is refused before anything is spent."""
        features, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        with np.errstate(over="ignore"):
            seen = (targets if self.target_bounds is None else _scaled(targets, self.target_bounds)).astype(np.float32)
        if not np.isfinite(seen).all():
            raise InvalidArgument("y", "y has values too large for float32: give target_bounds, or scale it in public")
        self._train(self._private(features, torch.from_numpy(seen), 1, _squared_error))
        return self

    def predict(self, X: ArrayLike) -> Values:
        """The predicted target of each example."""
        outputs = self._outputs(X)[:, 0]
        if self.target_bounds is None:
            return outputs
        low, high = self.target_bounds
        return low + (outputs + 1) / 2 * (high - low)

    def _undeclared(self) -> dict[str, Any]:
        text = "scaling of the targets before fit, if it used the data's own statistics: no target_bounds declared"
        return super()._undeclared() | {text: self.target_bounds}


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square()


def _scaled(values: Values, bounds: tuple[ArrayLike, ArrayLike]) -> Values:
    """The values cut to their public bounds and mapped to [-1, 1]."""
    if not isinstance(bounds, list | tuple) or len(bounds) != 2:
        raise InvalidArgument("bounds", f"bounds must be a pair (low, high), got {bounds!r}")
    low, high = (np.asarray(bound, dtype=np.float64) for bound in bounds)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise InvalidArgument("bounds", f"bounds must be finite, each low below its high, got {bounds!r}")
    if any(bound.shape not in ((), values.shape[1:]) for bound in (low, high)):
        raise InvalidArgument("bounds", "bounds must be two numbers, or one pair of numbers for each feature")
    scaled: Values = 2 * (np.clip(values, low, high) - low) / (high - low) - 1
    return scaled


def _randomness(random_state: Any) -> tuple[int, RandomSource]:
    """The seed of the first weights, which is public, and the source of samples and noise."""
    if random_state is None:
        return 0, SystemSource()
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    return seed, SeededSource(seed)


def _widths(hidden: Any) -> tuple[int, ...]:
    if not isinstance(hidden, list | tuple):
        raise InvalidArgument(
            "hidden", f"hidden must be the widths of the hidden layers, such as (32,), got {hidden!r}"
        )
    return tuple(hidden)


def _account(account: Any) -> Account | None:
    if account is not None and not hasattr(account, "reserve"):
        raise InvalidArgument("account", f"account must be an account of a ledger, see Ledger.open, got {account!r}")
    found: Account | None = account
    return found


def _cut_short(private: Private) -> list[str]:
    """What Ctrl-C leaves open: whoever waits for a result before stopping has seen more than the steps say."""
    done, steps = private.steps_taken, private.plan.steps
    text = (
        f"when the fit ended: it was stopped after step {done} of {steps}, by a decision that must not follow the data"
    )
    return [text] if done < steps else []
