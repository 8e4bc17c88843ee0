"""The common part of the scikit-learn estimators: from their arguments to a plan, a charge and a trained model.

>>> scale_to_bounds(np.array([[0.0], [5.0], [99.0]]), (0, 10)).tolist()  # cut to public bounds and mapped to [-1, 1]
[[-1.0], [0.0], [1.0]]
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, check_random_state, validate_data
from torch import Tensor
from torch.utils.data import TensorDataset

from dpfed.errors import InvalidArgument
from dpfed.guarantee import Account, Guarantee
from dpfed.integrations import progress
from dpfed.models.mlp import MLP
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import RandomSource, SeededSource, SystemSource
from dpfed.training.loop import Private
from dpfed.training.private import make_private

Values = NDArray[np.float64]
Loss = Callable[[Any, Any], Tensor]
_CLONED = (
    "an estimator with an account is not cloned: a search, cross-validation or ensemble of its clones releases scores "
    "of held-out records, which no charge covers. Choose on public data without an account and fit the chosen one, or, "
    "if all records that are scored are public, say scoring_is_public=True"
)


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of both estimators: a plan from the arguments, its execution, and the list of what it does not cover."""

    guarantee: Guarantee | None
    account: Account | None

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted clone with the same account: a copy of the account would hide what the clone spends.

        scikit-learn clones before it fits several times and chooses, calibrates or stacks by held-out records. Fits are
        charged and the choice is not, so with an account a clone is refused unless the scores are public.
        """
        if self.account is not None and self.scoring_is_public is not True:
            raise InvalidArgument("scoring_is_public", _CLONED)
        values = self.get_params(deep=False)
        return type(self)(**{k: v if k == "account" else clone(v, safe=False) for k, v in values.items()})

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the account, which is a connection; `run` stays: no copy is fitted uncharged."""
        if self.account is not None and self.run is None:
            raise InvalidArgument(
                "run",
                "a copy has no account, and could be fitted without a charge: set run=NAME, or account=None first",
            )
        return {**super().__getstate__(), "account": None}

    def _make_plan(self, records: int) -> LocalPlan:
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

    def _prepare_features(self, X: Values) -> Tensor:
        """Return the inputs of the model: the features, clipped and scaled to [-1, 1] if they have public bounds."""
        with np.errstate(over="ignore"):
            seen = (X if self.feature_bounds is None else scale_to_bounds(X, self.feature_bounds)).astype(np.float32)
        if not np.isfinite(seen).all():
            raise InvalidArgument("X", "X has values too large for float32: give feature_bounds, or scale it in public")
        return torch.from_numpy(seen)

    def _make_private(self, X: Values, targets: Tensor, outputs: int, loss: Loss, weights: ArrayLike | None) -> Private:
        """Return a new model to be trained by the plan; with an account all of it is reserved, as a run of its own."""
        features, plan = self._prepare_features(X), self._make_plan(len(X))
        self._is_weighted = weights is not None
        if weights is not None:
            targets, loss = (
                torch.stack([targets.double(), _read_weights(weights, len(X))], 1),
                weight_loss(loss, targets.dtype),
            )
        seed, source = choose_randomness(self.random_state)
        model = MLP(X.shape[1], require_widths(self.hidden), outputs, seed=seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=plan.learning_rate)
        data = TensorDataset(features, targets)
        # The ledger would take a second fit of one name for the rest of the first, which has nothing left.
        run = None if self.run is None else f"{self.run}-{secrets.token_hex(4)}"
        account = require_account(self.account)
        private = make_private(model, optimizer, data, plan, loss=loss, account=account, run=run, source=source)
        self.run_ = run
        return private

    def _train(self, private: Private) -> None:
        """Take all steps and keep the model; after Ctrl-C the model so far is kept too, since it is charged."""
        try:
            with closing(private), progress.show_progress(private, is_wanted=self.verbose) as update:
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
        self.not_covered_ = self._list_not_covered() + _describe_cut(private)

    def _list_not_covered(self) -> list[str]:
        open_ends = {
            "everything: random_state seeds samples and noise, so this model is NOT PRIVATE": self.random_state,
            "other fits on these records, and a choice between them: no account was charged": (
                True if self.account is None else None
            ),
            "sample_weight, if the weight of one record followed from other records": self._is_weighted or None,
        }
        # An estimator without the argument counts no records.
        missing = {"the number of records: size was not declared and comes from the data": getattr(self, "size", 0)}
        missing |= self._list_undeclared()
        return [text for text, value in open_ends.items() if value is not None] + [
            text for text, value in missing.items() if value is None
        ]

    def _list_undeclared(self) -> dict[str, Any]:
        text = "scaling before fit, if it used the data's own statistics: feature_bounds were not declared"
        return {text: self.feature_bounds}

    def _compute_outputs(self, X: ArrayLike) -> Values:
        check_is_fitted(self, "model_")
        seen = self._prepare_features(validate_data(self, X, dtype=np.float64, reset=False))
        with torch.no_grad():
            outputs: Values = self.model_(seen.double()).numpy()
        return outputs


def scale_to_bounds(values: Values, bounds: tuple[ArrayLike, ArrayLike]) -> Values:
    """Return the values clipped to their public bounds and mapped to [-1, 1]."""
    if not isinstance(bounds, list | tuple) or len(bounds) != 2:
        raise InvalidArgument("bounds", f"bounds must be a pair (low, high), got {bounds!r}")
    low, high = (np.asarray(bound, dtype=np.float64) for bound in bounds)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise InvalidArgument("bounds", f"bounds must be finite, each low below its high, got {bounds!r}")
    if any(bound.shape not in ((), values.shape[1:]) for bound in (low, high)):
        raise InvalidArgument("bounds", "bounds must be two numbers, or one pair of numbers for each feature")
    scaled: Values = 2 * (np.clip(values, low, high) - low) / (high - low) - 1
    return scaled


def weight_loss(loss: Loss, dtype: torch.dtype) -> Loss:
    """Return a loss that multiplies each record's loss by its weight; a target and its weight are one row."""

    def each(outputs: Tensor, records: Tensor) -> Tensor:
        targets, weights = records.unbind(1)
        return loss(outputs, targets.to(dtype)) * weights.to(outputs.dtype)

    return each


def _read_weights(sample_weight: ArrayLike, records: int) -> Tensor:
    """Return one weight per record; refuse one that is negative or not finite."""
    found = check_array(sample_weight, dtype=np.float32, ensure_2d=False, input_name="sample_weight")
    if found.shape != (records,):
        message = f"sample_weight must have one number for each of the {records} records, got shape {found.shape}"
        raise InvalidArgument("sample_weight", message)
    if (found < 0).any():
        raise InvalidArgument("sample_weight", "sample_weight must not be negative: leave such records out")
    if not found.any():
        raise InvalidArgument(
            "sample_weight",
            "sample_weight must not be zero for all records, since nothing would be learnt: give positive weights",
        )
    return torch.from_numpy(found.astype(np.float64))


def read_classes(labels: NDArray[Any], declared: ArrayLike | None) -> NDArray[Any]:
    """Return the classes in order, declared ones or those that occur; refuse a label that is none of them."""
    check_classification_targets(labels)
    classes = np.unique(np.asarray(labels if declared is None else declared))
    if len(classes) < 2:
        raise InvalidArgument("classes", f"a classifier needs at least two classes, got {len(classes)} class")
    if not np.isin(labels, classes).all():
        raise InvalidArgument("y", "y has labels that are not in classes: declare all labels that may occur")
    return classes


def choose_randomness(random_state: Any) -> tuple[int, RandomSource]:
    """Return the seed of the first weights, which is public, and the source of batches and noise."""
    if random_state is None:
        return 0, SystemSource()
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    return seed, SeededSource(seed)


def require_widths(hidden: Any) -> tuple[int, ...]:
    """Return the widths of the hidden layers as a tuple."""
    if not isinstance(hidden, list | tuple):
        raise InvalidArgument(
            "hidden", f"hidden must be the widths of the hidden layers, such as (32,), got {hidden!r}"
        )
    return tuple(hidden)


def require_account(account: Any) -> Account | None:
    """Return the account, if it is one."""
    if account is not None and not hasattr(account, "reserve"):
        raise InvalidArgument("account", f"account must be an account of a ledger, see Ledger.open, got {account!r}")
    found: Account | None = account
    return found


def _describe_cut(private: Private) -> list[str]:
    """Return what Ctrl-C leaves uncovered: a stop that follows a result reveals more than the steps do."""
    done, steps = private.steps_taken, private.plan.steps
    text = (
        f"when the fit ended: it was stopped after step {done} of {steps}, by a decision that must not follow the data"
    )
    return [text] if done < steps else []
