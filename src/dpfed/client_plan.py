"""How a client's whole update is bounded, and the noise that the server adds to the sum of all.

Weights are taken relative to the largest, so each client moves the sum by at most the clip norm, whatever its
weight; the sum, not the mean, is what noise is added to, and it is added up without any rounding error.

>>> import numpy as np
>>> whole = ClientPlan(clip_norm=1.0, noise_multiplier=1.0)
>>> whole.event
Gaussian(noise_multiplier=1.0)
>>> whole.query([np.array([3.0, 4.0]), np.array([0.0, 0.5])], [1.0, 0.5]).round(6)
array([0.6 , 1.05])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpfed import checks
from dpfed import events as ev
from dpfed.adaptive import AdaptiveClip, noised
from dpfed.checks import ADD_REMOVE
from dpfed.clipping import clip_per_example, sum_examples, total_norm
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.gaussian import GaussianMechanism
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.randomness import RandomSource
from dpfed.structure import Floats


@dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """What the server does to the updates of a cohort: clip each to `clip_norm` in L2, add them up, add noise.

    With `adaptive` the clip norm given is the first one, and `noise_multiplier` that of sum and count together.

    Privacy: adding or removing one client, while the plan and its denominator stay as they are, moves the sum
    by at most clip_norm; replacing one, by at most twice that (the accountant doubles it). A round is ``event``
    for the clients of the cohort (McMahan, Ramage, Talwar and Zhang 2018; unit client).
    """

    clip_norm: float
    noise_multiplier: float | None = None
    adaptive: AdaptiveClip | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", checks.positive(clip_norm=self.clip_norm))
        if self.adaptive is not None and not isinstance(self.adaptive, AdaptiveClip):
            raise InvalidArgument("adaptive", f"adaptive must be an AdaptiveClip or None, got {self.adaptive!r}")
        if self.noise_multiplier is not None:
            object.__setattr__(self, "noise_multiplier", checks.positive(noise_multiplier=self.noise_multiplier))
            _ = self.sum_noise

    @property
    def noise(self) -> float:
        """The noise multiplier of all that a round releases, once there is one."""
        if self.noise_multiplier is None:
            message = "the server has no noise yet: give the client plan a noise_multiplier, or use Plan.calibrated"
            raise InvalidArgument("noise_multiplier", message)
        return self.noise_multiplier

    @property
    def sum_noise(self) -> float:
        """The noise multiplier of the sum alone."""
        return self.adaptive.sum_noise(self.noise) if self.adaptive else self.noise

    @property
    def event(self) -> ev.Event:
        """What a round does to a client of its cohort."""
        return noised(self.noise, self.adaptive)

    def query(self, updates: Sequence[Floats], weights: Sequence[float], clip_norm: float | None = None) -> Floats:
        """The sum of the clipped updates, each times a weight of at most 1; what is not finite counts as zero."""
        if max(weights, default=0.0) > 1 or min(weights, default=0.0) < 0:
            raise InvalidArgument("weights", f"weights must be relative to the largest, from 0 to 1, got {weights}")
        bound = self.clip_norm if clip_norm is None else checks.positive(clip_norm=clip_norm)
        rows = np.stack([np.asarray(update, dtype=float).ravel() for update in updates])
        finite = np.isfinite(rows).all(axis=1, keepdims=True)
        # Rounding |w·x| with w ≤ 1 to the nearest float never exceeds |x|: weighing lengthens nothing.
        weighted = clip_per_example(np.where(finite, rows, 0.0), bound) * np.asarray(weights)[:, None]
        return sum_examples(weighted, bound)

    def count(self, updates: Sequence[Floats], clip_norm: float | None = None) -> float:
        """Half the number of updates that are no longer than the clip norm, less half that of those that are."""
        bound = self.clip_norm if clip_norm is None else checks.positive(clip_norm=clip_norm)
        return float(sum(0.5 if _fits(update, bound) else -0.5 for update in updates))

    def noised_sum(self, total: Floats, source: RandomSource, clip_norm: float | None = None) -> Floats:
        """The sum with noise; the round must be charged before."""
        bound = self.clip_norm if clip_norm is None else checks.positive(clip_norm=clip_norm)
        sensitivity = Sensitivity(bound, "l2", ADD_REMOVE)
        mechanism = GaussianMechanism.from_noise_multiplier(self.sum_noise, sensitivity, source=source)
        noisy: Floats = mechanism.add_noise(total)
        return noisy

    def noised_count(self, count: float, source: RandomSource) -> float:
        """The count with noise, of the same draw as the sum and charged with it."""
        if self.adaptive is None:
            raise InvalidArgument("adaptive", "a count is released only with adaptive clipping, which this plan lacks")
        sensitivity = Sensitivity(0.5, "l2", ADD_REMOVE)
        mechanism = GaussianMechanism.from_noise_multiplier(self.adaptive.count_multiplier, sensitivity, source=source)
        return float(mechanism.add_noise(float(count)))


def _fits(update: Floats, bound: float) -> bool:
    values = np.asarray(update, dtype=float)
    return bool(np.isfinite(values).all()) and total_norm(values) <= bound
