"""What the scikit-learn estimators share: the way from their arguments to a plan, a charge and a trained model.

>>> scaled(np.array([[0.0], [5.0], [99.0]]), (0, 10)).tolist()  # cut to public bounds and mapped to [-1, 1]
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
from sklearn.utils.validation import check_array, check_is_fitted, check_random_state, validate_data
from torch import Tensor
from torch.utils.data import TensorDataset

from dpfed.errors import InvalidArgument
from dpfed.guarantee import Account, Guarantee
from dpfed.integrations import progress
from dpfed.models.mlp import MLP
from dpfed.plan import LocalPlan
from dpfed.randomness import RandomSource, SeededSource, SystemSource
from dpfed.training.private import Private, make_private

Values = NDArray[np.float64]
Loss = Callable[[Any, Any], Tensor]
_CLONED = (
    "an estimator with an account is not cloned: a search, cross-validation or ensemble of its clones releases scores "
    "of held-out records, which no charge covers. Choose on public data without an account and fit the chosen one, or, "
    "if all records that are scored are public, say scoring_is_public=True"
)


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: a plan from the arguments, its execution, and the list of what it leaves open."""

    guarantee: Guarantee | None
    account: Account | None

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted twin that is charged to the same account: a copy of it would hide what the twin spends.

        Cloning is how scikit-learn begins whatever fits several times and chooses, calibrates or stacks by held-out
        records. Fits are charged, a choice is not, so on an account it is refused unless the scores are public.
        """
        if self.account is not None and self.scoring_is_public is not True:
            raise InvalidArgument("scoring_is_public", _CLONED)
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
            seen = (X if self.feature_bounds is None else scaled(X, self.feature_bounds)).astype(np.float32)
        if not np.isfinite(seen).all():
            raise InvalidArgument("X", "X has values too large for float32: give feature_bounds, or scale it in public")
        return torch.from_numpy(seen)

    def _private(self, X: Values, targets: Tensor, outputs: int, loss: Loss, weights: ArrayLike | None) -> Private:
        """A new model in training by the plan; with an account all of it is reserved, under a name of its own."""
        features, plan = self._features(X), self._plan(len(X))
        self._is_weighted = weights is not None
        if weights is not None:
            targets, loss = torch.stack([targets.double(), _weights(weights, len(X))], 1), weighted(loss, targets.dtype)
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
            "other fits on these records, and a choice between them: no account was charged": (
                True if self.account is None else None
            ),
            "sample_weight, if the weight of one record followed from other records": self._is_weighted or None,
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


def scaled(values: Values, bounds: tuple[ArrayLike, ArrayLike]) -> Values:
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


def weighted(loss: Loss, dtype: torch.dtype) -> Loss:
    """The loss of each record times its weight; a record's target and weight are one row."""

    def each(outputs: Tensor, records: Tensor) -> Tensor:
        targets, weights = records.unbind(1)
        return loss(outputs, targets.to(dtype)) * weights.to(outputs.dtype)

    return each


def _weights(sample_weight: ArrayLike, records: int) -> Tensor:
    """One weight per record, finite and not negative."""
    found = check_array(sample_weight, dtype=np.float32, ensure_2d=False, input_name="sample_weight")
    if found.shape != (records,):
        message = f"sample_weight must have one number for each of the {records} records, got shape {found.shape}"
        raise InvalidArgument("sample_weight", message)
    if (found < 0).any():
        raise InvalidArgument("sample_weight", "sample_weight must not be negative: leave such records out")
    if not found.any():
        raise InvalidArgument("sample_weight", "sample_weight must not be zero for all records: nothing is learnt then")
    return torch.from_numpy(found.astype(np.float64))


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
