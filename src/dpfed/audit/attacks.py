"""Membership attacks: from what models say about a record to a score that is higher for members.

Each takes plain arrays: `losses` or `confidences` of the attacked model, one for each record, and of K other models in
a table of K rows, with a table `is_in` of which of them trained on which record. The confidence of a record is the
logit of its true class's probability, log p/(1 − p), which is nearly normal over models (Carlini et al. 2022).

>>> loss_threshold(np.array([0.1, 2.0])).tolist()
[-0.1, -2.0]
>>> reference(np.array([0.1, 2.0]), np.array([[0.5, 2.0], [0.7, 2.2]])).round(2).tolist()
[0.5, 0.1]
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.audit.roc import Interval, find_interval
from dpfed.errors import InvalidArgument

LEAST_SPREAD = 1e-3  # of confidences over models; less is rounding
Table = NDArray[np.bool_]


def loss_threshold(losses: Floats) -> Floats:
    """Score a record by its small loss (Yeom, Giacomelli, Fredrikson and Jha 2018): a baseline for one model."""
    return -np.asarray(losses)


def population(losses: Floats, labels: NDArray[np.int64], others: Floats, other_labels: NDArray[np.int64]) -> Floats:
    """Score a record by the share of other records of its class whose loss is larger (Ye et al. 2022, attack P)."""
    _require_numbers(losses, others)
    found = np.zeros(len(losses))
    for label in np.unique(labels):
        known = np.sort(others[other_labels == label])
        if not len(known):
            known = np.sort(others)  # of a class that nobody else has
        own = labels == label
        found[own] = 1 - np.searchsorted(known, losses[own], side="right") / len(known)
    return found


def reference(losses: Floats, reference_losses: Floats) -> Floats:
    """Score a record by how much larger its loss is in models that did not see it (Watson et al. 2022)."""
    return np.asarray(_require_table(reference_losses, losses).mean(axis=0) - losses)


def shadow(confidences: Floats, labels: NDArray[np.int64], shadows: Floats, is_in: Table) -> Floats:
    """Score a record by a classifier that learned from shadow models who was in (Shokri et al. 2017), class by class.

    It sees the confidence and its square, as a logistic model.
    """
    from sklearn.linear_model import LogisticRegression

    _require_numbers(confidences)
    table = _require_table(shadows, confidences)
    found = np.zeros(len(confidences))
    for label in np.unique(labels):
        own = labels == label
        seen, members = table[:, own].ravel(), is_in[:, own].ravel()
        centre, spread = seen.mean(), max(seen.std(), LEAST_SPREAD)
        learner = LogisticRegression().fit(_make_powers((seen - centre) / spread), members)
        found[own] = learner.decision_function(_make_powers((confidences[own] - centre) / spread))
    return found


def lira_online(confidences: Floats, shadows: Floats, is_in: Table) -> Floats:
    """Score a record by how much likelier its confidence is among models that saw it (Carlini et al. 2022).

    Both laws are normal, with a mean for each record and one spread for all where a record has few models.
    """
    table = _require_table(shadows, confidences)
    seen = _fit(table, is_in)
    unseen = _fit(table, ~is_in)
    return _log_density(confidences, *seen) - _log_density(confidences, *unseen)


def lira_offline(confidences: Floats, shadows: Floats, is_in: Table) -> Floats:
    """Score a record by how unusual its confidence is among models that did not see it (Carlini et al. 2022)."""
    mean, spread = _fit(_require_table(shadows, confidences), ~is_in)
    return -np.asarray(log_ndtr(-(confidences - mean) / spread))


def rmia(
    confidences: Floats,
    references: Floats,
    is_in: Table,
    others: Floats,
    other_references: Floats,
    *,
    gamma: float = 1.0,
    offline: float = 0.3,
) -> Floats:
    """Score a record by the share of other records whose likelihood ratio it beats (Zarifzadeh et al. 2024).

    A record's probability in the attacked model over its mean in reference models is compared with that of `others`,
    which no model of either kind trained on. Of reference models only those without the record count; their mean is
    corrected as if some had it: ((1 + a)·mean + 1 − a)/2 with a = `offline`.
    """
    _require_numbers(confidences, others)
    table = np.where(is_in, np.nan, expit(_require_table(references, confidences)))
    own = expit(confidences) / _correct(_mean_known(table), offline)
    theirs = expit(others) / _correct(expit(_require_table(other_references, others)).mean(axis=0), offline)
    ordered = np.sort(theirs * checks.positive(gamma=gamma))
    return np.asarray(np.searchsorted(ordered, own, side="right") / len(ordered))


@dataclass(frozen=True)
class AttributeResult:
    """How often a hidden attribute was guessed, for members and for others, or why it could not be: `failure`.

    The difference is what training told; what is guessed for others is in the population.
    """

    members: float | None = None
    members_interval: Interval | None = None
    others: float | None = None
    others_interval: Interval | None = None
    failure: str = ""

    @property
    def advantage(self) -> float | None:
        """How much more often members' attributes were guessed; None where the attack failed."""
        return None if self.members is None or self.others is None else self.members - self.others


def attribute(
    member_losses: Floats, member_values: NDArray[np.int64], other_losses: Floats, other_values: NDArray[np.int64]
) -> AttributeResult:
    """Guess a hidden attribute as the value that gives the least loss (Yeom et al. 2018).

    The tables have a row for each value that the attribute may have, and a column for each record. Where losses are not
    numbers, or all values give the same, the attack has failed: it would guess the first value of everybody.
    """
    if failure := _find_failure(member_losses, other_losses):
        return AttributeResult(failure=failure)
    shares: list[tuple[int, int]] = [
        (int((np.argmin(losses, axis=0) == values).sum()), len(values))
        for losses, values in ((member_losses, member_values), (other_losses, other_values))
    ]
    (hits, members), (other_hits, others) = shares
    return AttributeResult(
        hits / members, find_interval(hits, members), other_hits / others, find_interval(other_hits, others)
    )


def _find_failure(member_losses: Floats, other_losses: Floats) -> str:
    if not member_losses.shape[1] or not other_losses.shape[1]:
        return "there are no members, or no others, to compare"
    if np.isnan(member_losses).any() or np.isnan(other_losses).any():
        return "a loss is not a number"
    if (np.ptp(member_losses, axis=0) == 0).all() and (np.ptp(other_losses, axis=0) == 0).all():
        return "the model's loss does not depend on the attribute"
    return ""


def _fit(table: Floats, is_counted: Table) -> tuple[Floats, Floats]:
    """Return mean and spread of each record's confidence over the models that count."""
    known = np.where(is_counted, table, np.nan)
    mean = _mean_known(known)
    few = is_counted.sum(axis=0).min() < 16
    spread = np.sqrt(np.nanmean((known - mean) ** 2, axis=None if few else 0))
    return mean, np.maximum(np.broadcast_to(spread, mean.shape), LEAST_SPREAD)


def _mean_known(table: Floats) -> Floats:
    """Return the mean over models; not a number for a record that none of them counts for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(table, axis=0))


def _log_density(values: Floats, mean: Floats, spread: Floats) -> Floats:
    return np.asarray(-(((values - mean) / spread) ** 2) / 2 - np.log(spread))


def _correct(mean: Floats, offline: float) -> Floats:
    a = checks.probability(offline=offline)
    return np.asarray(((1 + a) * mean + 1 - a) / 2)


def _make_powers(values: Floats) -> Floats:
    return np.stack([values, values**2], axis=1)


def _require_table(table: Floats, like: Floats) -> Floats:
    found = np.asarray(table, dtype=np.float64)
    if found.ndim != 2 or not len(found) or found.shape[1] != len(like):
        message = f"other models' figures must be a table of models and {len(like)} records, got shape {found.shape}"
        raise InvalidArgument("shadows", f"{message}: train at least one shadow model on records of this set")
    _require_numbers(found)
    return found


def _require_numbers(*tables: Floats) -> None:
    """Refuse what is not a number: its rank is that of nobody's record, and figures of it look like a coin's."""
    if any(np.isnan(table).any() for table in tables):
        message = "what a model says of some record is not a number, so the attack has failed"
        raise InvalidArgument("losses", f"{message}: attack a model with classes that did not diverge")
