"""What k releases cost together when only each one's ε (and δ) is known.

Where the mechanism itself is known (its noise, its sampling) the accountant is tighter; these bounds are for
releases of which no more is said than "(ε, δ)-DP". Every bound holds for adaptively chosen releases and is
rounded up.

>>> round(advanced_composition_epsilon(0.1, 100, 1e-5), 4)
5.2981
>>> round(optimal_composition_epsilon(0.1, 0.0, 100, 1e-5), 2)
4.31
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.rounding import round_up

# One array entry per number of flipped answers: beyond this the sums ask for gigabytes.
MAX_COUNT = 10_000_000

_ROUNDING = 2.0**-53
# A slack this small buys nothing that a float could show, and is not far from where probabilities underflow.
_NO_SLACK = 1e-200


def basic_composition_epsilon(epsilon: float, count: int) -> float:
    """Return the ε of `count` ε-DP releases by adding up (Dwork et al. 2006); their δ, if any, add up too."""
    return round_up(Fraction(checks.non_negative(epsilon=epsilon)) * checks.count(count=count))


def advanced_composition_epsilon(epsilon: float, count: int, delta: float) -> float:
    """Return the ε of `count` ε-DP releases at a total slack of `delta`: never more than by adding up.

    ε·√(2k ln 1/δ) + k·ε·(e^ε − 1)/(e^ε + 1) by Kairouz, Oh and Viswanath (2015), Theorem 3.4, or kε where
    that is less. Releases that are (ε, δ₁)-DP each have this ε in total at 1 − (1 − δ₁)^k (1 − δ), below
    kδ₁ + δ.
    """
    basic = basic_composition_epsilon(epsilon, count)
    delta = checks.positive_probability(delta=delta)
    spread = epsilon * math.sqrt(-2.0 * count * math.log(delta))
    drift = epsilon * count * math.tanh(epsilon / 2)
    return min(basic, (spread + drift) * (1 + 16 * _ROUNDING))


def optimal_composition_epsilon(epsilon: float, delta_each: float, count: int, delta: float) -> float:
    """Return the smallest ε that holds at `delta` for any `count` releases of (ε, δ_each)-DP; ∞ where none does.

    Kairouz, Oh and Viswanath (2015), Theorem 3.3: the worst such release gives its data away with probability
    δ_each and is a randomized response at ε otherwise, so the loss of `count` of them is binomial.
    """
    epsilon, delta_each = checks.non_negative(epsilon=epsilon), checks.probability(delta_each=delta_each)
    count, delta = _check_count(count), checks.probability(delta=delta)
    slack = _slack(delta_each, count, delta)
    if slack < 0:
        return math.inf
    basic = basic_composition_epsilon(epsilon, count)
    return basic if slack < _NO_SLACK else min(basic, _binomial_epsilon(epsilon, count, slack))


def _check_count(count: int) -> int:
    count = checks.count(count=count)
    if count > MAX_COUNT:
        raise InvalidArgument(
            "count",
            f"count must be at most {MAX_COUNT}, got {count}: use advanced_composition_epsilon beyond that",
        )
    return count


def _slack(delta_each: float, count: int, delta: float) -> float:
    """Return the δ left for the binomial part, rounded down: 1 − (1 − δ)/(1 − δ_each)^k; negative for none."""
    if delta_each == 0:
        return delta
    with localcontext() as context:
        # 1 − δ needs every digit of a δ near 1e-16, and δ = δ_each must give a slack of exactly 0.
        context.prec = 60
        rest = 1 - (1 - Decimal(delta)) / (1 - Decimal(delta_each)) ** count
    return float(rest) * (1 - 2 * _ROUNDING) if rest >= 0 else -1.0


def _binomial_epsilon(epsilon: float, count: int, slack: float) -> float:
    """Return the ε at which `count` randomized responses have a δ of `slack`, rounded up.

    With A_i and B_i the probabilities of at most i flips under the two inputs, δ(x) is the maximum of
    A_i − e^x·B_i over i (Neyman and Pearson), hence ε = max_i log((A_i − slack)/B_i). B_i is kept as
    S_i·e^(−loss_i), because S_i is a sum of positive terms that neither underflows nor cancels.
    """
    flips, chances = _flips(epsilon, count)
    # The probabilities are exponentials of sums of size k log k, whose every step errs by a few roundings.
    error = 24 * _ROUNDING * (count * (1 + math.log(count)) + 4 - math.log(slack))
    decay = math.exp(-2 * epsilon)
    at_most = np.cumsum(chances) * (1 + error)
    scaled = np.fromiter(accumulate(chances.tolist(), lambda s, p: s * decay + p), float) * (1 - error)
    losses = epsilon * (count - 2.0 * flips)
    open_ = at_most > slack
    candidates = losses[open_] + np.log((at_most[open_] - slack) / scaled[open_])
    return max(0.0, float(candidates.max()) + 4 * _ROUNDING * epsilon * count)


def _flips(epsilon: float, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the numbers of flips out of `count` whose probability does not underflow, and that probability."""
    flips = np.arange(count + 1, dtype=float)
    ways = gammaln(count + 1.0) - gammaln(flips + 1.0) - gammaln(count - flips + 1.0)
    chances = np.exp(ways - flips * epsilon - count * math.log1p(math.exp(-epsilon)))
    kept = chances > np.finfo(float).tiny
    return flips[kept], chances[kept]
