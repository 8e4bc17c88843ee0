"""Clipping at a quantile that is learned as training goes, paid from the same draw as the gradients.

How many of a step's contributions came through unclipped says whether the clip norm is too small or too large
(Andrew, Thakkar, McMahan and Ramaswamy 2021). That count is private too, so it is noised, and the noise
multiplier a caller gives is that of *both* releases together: the sum gets a little more noise to pay for the count.

>>> adaptive = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=10.0)
>>> round(adaptive.sum_noise(1.0), 5)
1.00125
>>> round(adaptive.next_clip(1.0, noisy_count=25.0, expected=100.0), 4)  # three in four were short enough
0.9512
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from dpfed import checks
from dpfed import events as ev
from dpfed.accounting.calibrate import calibrate_noise
from dpfed.errors import InfeasibleTarget, InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.schedule import Factors


@dataclass(frozen=True)
class AdaptiveClip:
    """The share of contributions to leave unclipped, the speed at which the clip norm follows, and the count's noise.

    Privacy: each contribution adds +1/2 to the count if it is no longer than the clip norm and −1/2 if it is, so
    adding or removing one moves the count by 1/2, and `count_noise` (a standard deviation) is a noise multiplier
    of 2·count_noise. Both releases come from one draw: their event is ``pair(z)``, as private as one Gaussian
    of noise multiplier z (add/remove; Andrew et al. 2021, Theorem 1). The next clip norm is computed from
    released numbers only.
    """

    quantile: float
    learning_rate: float
    count_noise: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "quantile", checks.positive_probability(quantile=self.quantile))
        for name in ("learning_rate", "count_noise"):
            object.__setattr__(self, name, checks.positive(**{name: getattr(self, name)}))

    @property
    def count_multiplier(self) -> float:
        """The count's noise over its sensitivity of 1/2."""
        return 2 * self.count_noise

    def sum_noise(self, noise_multiplier: float) -> float:
        """Return the sum's own noise multiplier (z⁻² − (2σ_b)⁻²)^(−1/2), rounded up, if the pair is to have z."""
        total = Fraction(checks.positive(noise_multiplier=noise_multiplier))
        left = total**-2 - Fraction(self.count_multiplier) ** -2
        if left <= 0:
            raise InvalidArgument(
                "count_noise",
                f"count_noise must be above {noise_multiplier / 2:g}, half the noise multiplier of the pair, "
                f"got {self.count_noise:g}: with less the count alone costs more than both may",
            )
        return _inverse_root_up(left)

    def pair(self, noise_multiplier: float) -> ev.Event:
        """Return the event of the noised sum and the noised count of one sample together."""
        return ev.Composed((ev.Gaussian(self.sum_noise(noise_multiplier)), ev.Gaussian(self.count_multiplier)))

    def next_clip(self, clip_norm: float, noisy_count: float, expected: float) -> float:
        """Return the clip norm after a count; `expected` is the public number of contributions to a sample."""
        share = checks.finite(noisy_count=noisy_count) / checks.positive(expected=expected) + 0.5
        kept = min(max(share, 0.0), 1.0)
        factor = math.exp(-self.learning_rate * (kept - self.quantile))
        return min(max(checks.positive(clip_norm=clip_norm) * factor, 1e-300), 1e300)


def noised_event(noise_multiplier: float, adaptive: AdaptiveClip | None = None, norm: str = "l2") -> ev.Event:
    """Return the event of one noised sum, with its count if the clip norm adapts: Gaussian for L2, Laplace for L1."""
    if adaptive is not None:
        return adaptive.pair(noise_multiplier)
    return ev.Laplace(noise_multiplier) if norm == "l1" else ev.Gaussian(noise_multiplier)


def find_least_noise(
    guarantee: Guarantee,
    run: Callable[[ev.Event, int], ev.Event],
    rounds: Factors,
    adaptive: AdaptiveClip | None = None,
    norm: str = "l2",
    beside: ev.Event | None = None,
) -> float:
    """Return the least noise multiplier at which all rounds, with so many times it, keep the guarantee.

    `run` builds so many rounds from one noised sum; `beside` is what else is charged, whatever the noise.
    """
    most = max(rounds)

    def whole(noise_multiplier: float) -> ev.Event:
        # Noise that leaves no room for the count is searched as if there were none, and refused below.
        fits = adaptive is not None and noise_multiplier * most < adaptive.count_multiplier
        used = adaptive if fits else None
        parts = [run(noised_event(noise_multiplier * each, used, norm), times) for each, times in rounds.items()]
        parts += [] if beside is None else [beside]
        return parts[0] if len(parts) == 1 else ev.Composed(tuple(parts))

    found = calibrate_noise(guarantee.epsilon, guarantee.delta, whole, adjacency=guarantee.adjacency)
    if adaptive is not None and found * most >= adaptive.count_multiplier:
        raise InfeasibleTarget(
            "count_noise",
            f"{guarantee} is out of reach with count_noise {adaptive.count_noise:g}: the count alone costs too much",
            [f"count_noise well above {found * most / 2:.3g} would do"],
        )
    return found


def _inverse_root_up(value: Fraction) -> float:
    """Return the smallest float found whose square times the value is at least 1."""
    root = 1 / math.sqrt(value)
    while Fraction(root) ** 2 * value < 1:
        root = math.nextafter(root, math.inf)
    return root
