"""Two things called Bayesian: sampling a posterior, which is private, and privacy for typical data, which is not.

One exact draw from a posterior is a release of differential privacy if no record changes the likelihood by much
(`posterior_sampling_event`): the exponential mechanism with the log-likelihood as its score.

Bayesian differential privacy (Triastcyn and Faltings 2020) asks how much the records of one's own data differ, and
gives a smaller ε. It holds for records that are typical of that data, not for whoever differs most, and it is estimated
from the data, so the number is itself private. `diagnose` computes it for the owner of the data; it is no guarantee, no
budget is charged by it, and no report that is shared shows it.

>>> posterior_sampling_event(bernoulli_ratio(0.1))
PureDP(epsilon=4.39444915..., adjacency='replace_one')
>>> alike = [0.2 * step / 100 for step in range(101)]
>>> print(diagnose(alike, noise_multiplier=1.0, sample_rate=0.01, steps=100, delta=1e-5))
ε ≈ 0.194721 at δ = 1e-05 for typical records: the owner's diagnostic, not a guarantee
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, stdtrit, xlog1py, xlogy

from dpfed import arrays, checks
from dpfed import events as ev
from dpfed.checks import REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.rounding import decimal_up

_UP = 1 + 2.0**-48
_POWERS = range(1, 65)
_FEWEST = 3


def posterior_sampling_event(largest_ratio: float, power: float = 1.0) -> ev.Event:
    """Return the event of one exact draw from the posterior whose likelihood is raised to `power`.

    Privacy: `largest_ratio` is the largest ``|log p(x; θ) − log p(x'; θ)|`` over all records x, x' and all θ of the
    prior. Replacing one record moves the log of the unnormalised posterior by at most that, and of its integral too, so
    the draw is ε-DP with ε = 2 × power × largest_ratio (Dimitrakakis et al. 2017; Wang, Fienberg and Smola 2015). A
    chain that has not converged is not an exact draw, and keeps no such promise.
    """
    ratio, power = checks.non_negative(largest_ratio=largest_ratio), checks.positive(power=power)
    return ev.PureDP(2 * power * ratio * _UP, adjacency=REPLACE_ONE)


def tempering_power(epsilon: float, largest_ratio: float) -> float:
    """Return the power of the likelihood at which one draw from the posterior is ε-DP, rounded down; at most 1."""
    ratio = checks.positive(largest_ratio=largest_ratio)
    return min(1.0, checks.positive(epsilon=epsilon) / (2 * ratio) / _UP**2)


def bounded_ratio(largest_log_likelihood: float) -> float:
    """Return the largest ratio where every ``|log p(x; θ)|`` is at most that: twice as much."""
    return 2 * checks.non_negative(largest_log_likelihood=largest_log_likelihood)


def bernoulli_ratio(edge: float) -> float:
    """Return the largest ratio of a Bernoulli likelihood whose θ lies between `edge` and 1 − `edge`."""
    if not 0 < checks.probability(edge=edge) <= 0.5:
        message = "edge must be above 0 and at most 0.5: at θ = 0 one record rules a parameter out, and ε would be ∞"
        raise InvalidArgument("edge", f"{message}; cut the prior off, say at 0.01")
    return math.log((1 - edge) / edge) * _UP


@dataclass(frozen=True)
class OwnersDiagnostic:
    """An ε for typical records of one's own data. It is private itself, and it is not a `Guarantee`."""

    epsilon: float
    delta: float
    confidence: float

    def __str__(self) -> str:
        number = f"ε ≈ {decimal_up(self.epsilon)} at δ = {self.delta:g}"
        return f"{number} for typical records: the owner's diagnostic, not a guarantee"


def diagnose(
    distances: Sequence[float] | NDArray[np.float64],
    *,
    noise_multiplier: float,
    sample_rate: float = 1.0,
    steps: int = 1,
    delta: float,
    confidence: float = 1 - 1e-6,
) -> OwnersDiagnostic:
    """Estimate ε of DP-SGD for typical records: `distances`, in clip norms, are between gradients of random pairs.

    It averages the moments of the loss over the pairs, and adds Student's upper limit of that mean. The moments have
    heavy tails, for which the limit is an estimate and no proof.
    """
    values = arrays.vector(distances, "distances")
    if len(values) < _FEWEST or (values < 0).any():
        message = f"distances must be {_FEWEST} or more numbers from 0 up, got {len(values)}"
        raise InvalidArgument("distances", f"{message}: fewer say nothing about what is typical")
    noise, rate = checks.positive(noise_multiplier=noise_multiplier), checks.rate(sample_rate=sample_rate)
    steps, delta = checks.count(steps=steps), checks.positive_probability(delta=delta)
    doubt = 1 - checks.positive_probability(confidence=confidence)
    if doubt >= delta:
        message = f"1 − confidence ({doubt:g}) must be below delta ({delta:g}), of which it takes its share"
        raise InvalidArgument("confidence", f"{message}: raise confidence")
    costs = [_estimate_cost(_log_moments(values / noise, rate, power) * steps, steps, confidence) for power in _POWERS]
    epsilons = [(cost - math.log(delta - doubt)) / power for cost, power in zip(costs, _POWERS, strict=True)]
    return OwnersDiagnostic(max(0.0, min(epsilons)), delta, confidence)


def _log_moments(shifts: NDArray[np.float64], rate: float, power: int) -> NDArray[np.float64]:
    """Return log E exp(k(k−1)d²/2) over k ~ Bin(power + 1, q): the moment of a sampled Gaussian at each distance d."""
    k = np.arange(power + 2)
    ways = gammaln(power + 2) - gammaln(k + 1) - gammaln(power + 2 - k)
    logs = ways + xlogy(k, rate) + xlog1py(power + 1 - k, -rate)
    return np.asarray(logsumexp(logs + np.multiply.outer(shifts**2, k * (k - 1) / 2), axis=1))


def _estimate_cost(moments: NDArray[np.float64], steps: int, confidence: float) -> float:
    """Return the log of an upper limit of the mean moment; Hölder's inequality splits it among the steps."""
    logs = steps * moments
    count = len(logs)
    peak = float(logs.max())
    scaled = np.exp(logs - peak)
    limit = stdtrit(count - 1, confidence) * scaled.std() / math.sqrt(count - 1)
    return (peak + math.log(float(scaled.mean() + limit))) / steps
