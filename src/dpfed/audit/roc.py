"""How well an attack tells members from others: the ROC curve and what is read off it, with intervals.

What a membership attack does at few false alarms matters more than its mean (Carlini et al. 2022): accusing everybody
is no attack. None of these figures is a bound on ε. An attack whose scores cannot be ordered, or are all alike, has
failed and says so; a failed attack is not a coin.

>>> found = measure("loss threshold", [3.0, 2.0, 1.0], [0.5, 0.2, 0.1])
>>> found.auc, found.advantage, found.failure
(1.0, 1.0, '')
>>> measure("loss threshold", [1.0, 1.0], [1.0, 1.0]).failure
'all scores are alike'
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from scipy.stats import rankdata

from dpfed.arrays import Floats
from dpfed.audit.proportions import find_limits

RATES = (0.001, 0.01)
CONFIDENCE = 0.95
Interval = tuple[float, float]


@dataclass(frozen=True)
class Rate:
    """The share of members that an attack finds at no more than a rate of false alarms, with its interval.

    Where fewer others were tried than 1/`false_alarms`, not one of them may be accused: `is_coarse`.
    """

    false_alarms: float
    found: float
    interval: Interval
    is_coarse: bool


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What an attack did: its curve, AUC, balanced accuracy and advantage, or why it failed.

    Balanced accuracy and advantage (TPR − FPR) are those at the best threshold, found on the same records: they lean to
    the attack's side. All figures are None where there is a `failure`.
    """

    name: str
    members: int = 0
    others: int = 0
    auc: float | None = None
    auc_interval: Interval | None = None
    balanced_accuracy: float | None = None
    advantage: float | None = None
    rates: tuple[Rate, ...] = ()
    failure: str = ""
    curve: tuple[Floats, Floats] = field(default=(np.empty(0), np.empty(0)), repr=False)


def measure(name: str, member_scores: ArrayLike, other_scores: ArrayLike) -> AttackResult:
    """Return the figures of an attack that gives members higher scores, or its failure."""
    members, others = (np.asarray(scores, dtype=np.float64).ravel() for scores in (member_scores, other_scores))
    if failure := _find_failure(members, others):
        return AttackResult(name, len(members), len(others), failure=failure)
    alarms, hits = trace_curve(members, others)
    auc, interval = compute_auc(members, others)
    advantage = float(np.max(hits - alarms))
    rates = tuple(_read_rate(alarms, hits, rate, len(members), len(others)) for rate in RATES)
    return AttackResult(
        name, len(members), len(others), auc, interval, (1 + advantage) / 2, advantage, rates, curve=(alarms, hits)
    )


def trace_curve(members: Floats, others: Floats) -> tuple[Floats, Floats]:
    """Return false-alarm and hit rates at every threshold, from none accused to all."""
    thresholds = np.union1d(members, others)[::-1]
    hits = 1 - np.searchsorted(np.sort(members), thresholds, side="left") / len(members)
    alarms = 1 - np.searchsorted(np.sort(others), thresholds, side="left") / len(others)
    return np.concatenate([[0.0], alarms]), np.concatenate([[0.0], hits])


def compute_auc(members: Floats, others: Floats) -> tuple[float, Interval]:
    """Return the area under the curve, where ties count half, and its interval (DeLong et al. 1988).

    Where the spread is zero, as for a perfect attack, the interval reaches as far as Clopper and Pearson's would.
    """
    m, n = len(members), len(others)
    both = rankdata(np.concatenate([members, others]))
    above = (both[:m] - rankdata(members)) / n
    below = 1 - (both[m:] - rankdata(others)) / m
    auc = float(above.mean())
    variance = (above.var(ddof=1) / m if m > 1 else 0.25) + (below.var(ddof=1) / n if n > 1 else 0.25)
    reach = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt(variance)
    reach = reach or 1 - ((1 - CONFIDENCE) / 2) ** (1 / min(m, n))
    return auc, (max(0.0, auc - reach), min(1.0, auc + reach))


def find_interval(successes: int, trials: int) -> Interval:
    """Return the exact interval of a share (Clopper and Pearson 1934)."""
    low, high = find_limits(successes, trials, tail=(1 - CONFIDENCE) / 2)
    return float(low), float(high)


def _read_rate(alarms: Floats, hits: Floats, rate: float, members: int, others: int) -> Rate:
    found = float(np.max(hits[alarms <= rate]))
    return Rate(rate, found, find_interval(round(found * members), members), others * rate < 1)


def _find_failure(members: Floats, others: Floats) -> str:
    if not len(members) or not len(others):
        return "there are no members, or no others, to compare"
    both = np.concatenate([members, others])
    if np.isnan(both).any():
        return "a score is not a number"
    return "all scores are alike" if both.min() == both.max() else ""
