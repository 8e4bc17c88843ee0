"""Who noises what is asked of columns, and with how much noise: by unit, as in a run's styles.

For one record or person every owner noises the own sum. For one client every owner's sum is scaled to the norm of one
unit, and the server noises the sum of all, or, where nobody is trusted, the client its own.

>>> from dpfed.analytics.queries import Moments
>>> release = ColumnRelease(Moments(((0.0, 100.0),) * 30), Guarantee(1.0, 1e-5))
>>> round(release.query.norm, 3), release.event
(7.81, Gaussian(noise_multiplier=3.73...))
>>> round(release.noise, 2)
29.14
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpfed import checks
from dpfed import events as ev
from dpfed.analytics.queries import Query
from dpfed.arrays import Floats
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.clipping import clip_gradients, cut_examples
from dpfed.guarantee import Guarantee
from dpfed.mechanisms.gaussian import GaussianMechanism, calibrated_multiplier
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.randomness import RandomSource

__all__ = ["ColumnRelease"]


@dataclass(frozen=True)
class ColumnRelease:
    """One noised sum for a query, which keeps the guarantee for one unit in `sites` of the sums together.

    Privacy: a unit moves the sum by at most ``query.norm`` in L2 under add/remove; the noise is that many times the
    multiplier, and the event Gaussian(multiplier). The accountant doubles the shift under replace_one, for which the
    noise is twice as much. Where one may be in several sites, k sums of multiplier √k·z cost as one of z.
    """

    query: Query
    guarantee: Guarantee
    sites: int = 1

    @cached_property
    def noise_multiplier(self) -> float:
        """The noise over the most that one unit adds, rounded up."""
        shift = 2 if self.guarantee.adjacency == REPLACE_ONE else 1
        least = calibrated_multiplier(self.guarantee.epsilon, self.guarantee.delta)
        return least * shift * math.sqrt(checks.count(sites=self.sites)) * (1 + 2.0**-50)

    @property
    def noise(self) -> float:
        """The standard deviation of the noise of each number."""
        return self.noise_multiplier * self.query.norm

    @property
    def event(self) -> ev.Event:
        """The event of one release."""
        return ev.Gaussian(self.noise_multiplier)

    def scale(self, total: Floats) -> Floats:
        """Return a client's vector, scaled down to the norm of one unit if it is longer.

        Privacy: its numbers are cut to a grid on which those of up to 2²⁰ clients add up exactly: what rounding did to
        their sum would depend on all of them.
        """
        return cut_examples(np.asarray(clip_gradients(total, self.query.norm)), self.query.norm)

    def release(self, total: Floats, source: RandomSource | None = None) -> Floats:
        """Return the sum with noise; the event must be charged before."""
        bound = Sensitivity(self.query.norm, "l2", ADD_REMOVE)
        mechanism = GaussianMechanism.from_noise_multiplier(self.noise_multiplier, bound, source=source)
        return np.asarray(mechanism.add_noise(np.asarray(total, dtype=float)))
