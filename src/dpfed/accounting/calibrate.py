"""The least noise, the most steps or the largest sampling rate that keeps a promise.

What is returned was run through the same accountant as `dpfed.accounting.epsilon` and meets the target; the
value one part in 10⁵ (or one step) further was run too and does not. A target that nothing meets is refused
with the changes that would meet it, each with its number.

>>> sigma = compute_noise_multiplier(
...     target_epsilon=8.0, target_delta=1e-5, sample_rate=0.1, steps_per_round=100, num_rounds=10
... )
>>> round(sigma, 3)
2.051
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dpfed import checks
from dpfed.accounting.closed_forms import gaussian_mu
from dpfed.accounting.queries import epsilon as epsilon_of
from dpfed.accounting.search import largest_count, largest_value
from dpfed.checks import ADD_REMOVE
from dpfed.errors import InfeasibleTarget
from dpfed.events import Event, Gaussian, PoissonSampled, Repeated
from dpfed.rounding import decimal_down, decimal_up

TOLERANCE = 1e-5
LEAST_NOISE = 1e-2
MOST_NOISE = 1e6


def dp_sgd_event(noise_multiplier: float, sample_rate: float = 1.0, steps: int = 1) -> Event:
    """Return the event of `steps` steps of DP-SGD: Gaussian noise, each step on its own Poisson sample."""
    noise, rate, steps = (
        Gaussian(noise_multiplier),
        checks.rate(sample_rate=sample_rate),
        checks.count(steps=steps),
    )
    step: Event = noise if rate == 1 else PoissonSampled(noise, rate)
    return step if steps == 1 else Repeated(step, steps)


def calibrate_noise(
    target_epsilon: float,
    target_delta: float,
    make_event: Callable[[float], Event],
    *,
    adjacency: str = ADD_REMOVE,
    start: float | None = None,
    max_noise_multiplier: float = MOST_NOISE,
) -> float:
    """Return the smallest noise at which `make_event` meets the target: within one part in 10⁵ of it, never below.

    `make_event` maps a noise multiplier to the event of the whole plan, and more noise must not cost more.
    `start` only saves time. Noise above `max_noise_multiplier` is not considered.
    """
    target_epsilon = checks.positive(target_epsilon=target_epsilon)
    target_delta = checks.probability(target_delta=target_delta)
    most = checks.positive(max_noise_multiplier=max_noise_multiplier)

    # Searched as 1/σ, with which the cost rises.
    def cost(inverse: float) -> float:
        return epsilon_of(make_event(1 / inverse), target_delta, adjacency=adjacency)

    guess = 1 / start if start else gaussian_mu(target_epsilon, target_delta) or target_epsilon
    high = 1 / min(LEAST_NOISE, most)
    found = largest_value(cost, target_epsilon, low=1 / most, high=high, start=guess, tolerance=TOLERANCE)
    if found is None:
        raise _explain_unreachable(target_epsilon, target_delta, make_event(most), most, adjacency)
    if found == high:
        raise _explain_no_noise_needed(target_epsilon, target_delta, 1 / high)
    return 1 / found


def compute_noise_multiplier(
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    steps_per_round: int,
    num_rounds: int,
    *,
    adjacency: str = ADD_REMOVE,
    max_noise_multiplier: float = MOST_NOISE,
) -> float:
    """Return the smallest noise multiplier for DP-SGD over all rounds: within one part in 10⁵ of it, never below."""
    steps = checks.count(steps_per_round=steps_per_round) * checks.count(num_rounds=num_rounds)
    most = checks.positive(max_noise_multiplier=max_noise_multiplier)
    plan = _TrainingPlan(target_epsilon, target_delta, most, sample_rate, steps, adjacency)
    try:
        return plan.least_noise(most)
    except InfeasibleTarget as error:
        if error.argument != "max_noise_multiplier":
            raise
        raise InfeasibleTarget("max_noise_multiplier", plan.explain_failure(), plan.offer_remedies()) from None


def steps_for(
    target_epsilon: float,
    target_delta: float,
    noise_multiplier: float,
    sample_rate: float = 1.0,
    *,
    adjacency: str = ADD_REMOVE,
) -> int:
    """Return the largest number of DP-SGD steps that meets the target (2⁴⁰ where that many do)."""
    plan = _TrainingPlan(target_epsilon, target_delta, noise_multiplier, sample_rate, 1, adjacency)
    steps = plan.most_steps()
    if steps == 0:
        raise InfeasibleTarget("target_epsilon", plan.explain_failure(), plan.offer_remedies())
    return steps


def sample_rate_for(
    target_epsilon: float,
    target_delta: float,
    noise_multiplier: float,
    steps: int,
    *,
    adjacency: str = ADD_REMOVE,
) -> float:
    """Return the largest Poisson sampling rate that meets the target: within one part in 10⁵ of it, never above."""
    plan = _TrainingPlan(target_epsilon, target_delta, noise_multiplier, 1.0, steps, adjacency)
    rate = plan.largest_rate()
    if rate is None:
        raise InfeasibleTarget("target_epsilon", plan.explain_failure(), plan.offer_remedies())
    return rate


@dataclass(frozen=True)
class _TrainingPlan:
    """DP-SGD settings and a target, solved for one number at a time: noise, steps, sampling rate or ε."""

    target_epsilon: float
    target_delta: float
    noise_multiplier: float
    sample_rate: float
    steps: int
    adjacency: str

    def __post_init__(self) -> None:
        checks.positive(target_epsilon=self.target_epsilon)
        checks.positive_probability(target_delta=self.target_delta)
        checks.positive(noise_multiplier=self.noise_multiplier)
        checks.rate(sample_rate=self.sample_rate)
        checks.count(steps=self.steps)
        checks.adjacency(self.adjacency)

    def epsilon(self) -> float:
        event = dp_sgd_event(self.noise_multiplier, self.sample_rate, self.steps)
        return epsilon_of(event, self.target_delta, adjacency=self.adjacency)

    def least_noise(self, most: float = MOST_NOISE) -> float:
        return calibrate_noise(
            self.target_epsilon,
            self.target_delta,
            lambda noise_multiplier: dp_sgd_event(noise_multiplier, self.sample_rate, self.steps),
            adjacency=self.adjacency,
            start=min(max(self._estimate_noise(), LEAST_NOISE), most),
            max_noise_multiplier=most,
        )

    def most_steps(self) -> int:
        guess = min(self._estimate_variance() / self._variance_per_step(), 1e9)
        return largest_count(
            lambda steps: replace(self, steps=steps).epsilon(),
            self.target_epsilon,
            start=max(1, round(guess)),
        )

    def largest_rate(self) -> float | None:
        return largest_value(
            lambda rate: replace(self, sample_rate=rate).epsilon(),
            self.target_epsilon,
            # Below this rate no record is likely enough to be drawn at all for the promise to be broken.
            low=self.target_delta / (2 * self.steps),
            high=1.0,
            start=math.sqrt(self._estimate_variance() / self.steps / _square_divergence(self.noise_multiplier)),
            tolerance=TOLERANCE,
        )

    def explain_failure(self) -> str:
        return (
            f"ε = {self.target_epsilon:g} at δ = {self.target_delta:g} is out of reach with noise multiplier "
            f"{self.noise_multiplier:g}, sample rate {self.sample_rate:g} and {_show_steps(self.steps)}: "
            f"it costs ε = {decimal_up(self.epsilon())}"
        )

    def offer_remedies(self) -> list[str]:
        return [
            remedy
            for remedy in (self._offer_noise(), self._offer_steps(), self._offer_rate(), self._offer_epsilon())
            if remedy
        ]

    def _offer_noise(self) -> str:
        try:
            noise = decimal_up(self.least_noise())
        except InfeasibleTarget:
            return ""
        return f"noise multiplier {noise} instead of {self.noise_multiplier:g} would do"

    def _offer_steps(self) -> str:
        fewer = self.most_steps() if self.steps > 1 else 0
        return f"{_show_steps(fewer)} instead of {self.steps} would do" if fewer else ""

    def _offer_rate(self) -> str:
        rate = self.largest_rate()
        return f"sample rate {decimal_down(rate)} instead of {self.sample_rate:g} would do" if rate else ""

    def _offer_epsilon(self) -> str:
        epsilon = self.epsilon()
        return f"or accept ε = {decimal_up(epsilon)}" if epsilon < math.inf else ""

    # The central limit of Bu, Dong, Long and Su (2020), μ² = T·q²(e^(1/σ²) − 1): a place to start, never a
    # result.

    def _estimate_variance(self) -> float:
        mu = gaussian_mu(self.target_epsilon, self.target_delta)
        return (mu if self.adjacency == ADD_REMOVE else mu / 2) ** 2

    def _variance_per_step(self) -> float:
        sampled = self.sample_rate**2 * _square_divergence(self.noise_multiplier)
        return min(sampled, self.noise_multiplier**-2)

    def _estimate_noise(self) -> float:
        variance = self._estimate_variance() / self.steps
        sampled = 1 / math.sqrt(math.log1p(variance / self.sample_rate**2))
        return min(sampled, 1 / math.sqrt(variance))


def _square_divergence(noise_multiplier: float) -> float:
    return math.expm1(min(noise_multiplier**-2, 300.0))


def _explain_unreachable(epsilon: float, delta: float, event: Event, most: float, adjacency: str) -> InfeasibleTarget:
    cost = epsilon_of(event, delta, adjacency=adjacency)
    message = f"ε = {epsilon:g} at δ = {delta:g} is out of reach with noise multipliers up to {most:g}"
    if cost == math.inf:
        why = "a part of the event that the noise does not reach costs more than that"
        return InfeasibleTarget("max_noise_multiplier", message, [why])
    return InfeasibleTarget("max_noise_multiplier", message, [f"ε = {decimal_up(cost)} is what {most:g} gives"])


def _explain_no_noise_needed(epsilon: float, delta: float, least: float) -> InfeasibleTarget:
    return InfeasibleTarget(
        "target_epsilon",
        f"ε = {epsilon:g} at δ = {delta:g} asks for no protection: noise multiplier {least:g} meets it",
        ["lower target_epsilon, or target_delta below the chance that a record is drawn at all"],
    )


def _show_steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
