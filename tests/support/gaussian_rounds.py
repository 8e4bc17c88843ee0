"""The exact ε and δ of many rounds of Gaussian noise, and a budget of which some are spent."""

from __future__ import annotations

import mpmath

from dpfed.manager.budget import PrivacyBudget


def spend(budget: PrivacyBudget, rounds: int) -> None:
    for _ in range(rounds):
        budget.use_round()


def exact_delta(noise_multiplier: float, rounds: int, epsilon: float) -> mpmath.mpf:
    """δ of the Gaussians by the curve of Balle and Wang (2018), in as many digits as mpmath is set to."""
    mu, epsilon = mpmath.sqrt(rounds) / mpmath.mpf(noise_multiplier), mpmath.mpf(epsilon)
    lost = mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
    return mpmath.ncdf(mu / 2 - epsilon / mu) - lost


def exact_epsilon(noise_multiplier: float, rounds: int, delta: float) -> mpmath.mpf:
    """ε of the Gaussians at δ, by bisection of the exact curve."""
    with mpmath.workdps(40):
        low, high = mpmath.mpf(0), mpmath.mpf(1)
        while exact_delta(noise_multiplier, rounds, high) > delta:
            high *= 2
        for _ in range(80):
            middle = (low + high) / 2
            if exact_delta(noise_multiplier, rounds, middle) > delta:
                low = middle
            else:
                high = middle
        return high
