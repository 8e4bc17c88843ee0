"""Noise on the output of an algorithm of one's own, with a sensitivity of one's own.

>>> from dpfed.mechanisms.laplace import LaplaceMechanism
>>> from dpfed.mechanisms.sensitivity import fedavg_step
>>> step = OutputPerturbation(LaplaceMechanism(1.0, sensitivity=1.0), fedavg_step(1.0, 0.1, records=500))
>>> round(step.scale, 6), step.event
(0.0004, PureDP(epsilon=1.0, adjacency='replace_one'))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.gaussian import GaussianMechanism
from dpfed.mechanisms.laplace import LaplaceMechanism
from dpfed.mechanisms.sensitivity import Sensitivity


@dataclass(frozen=True, repr=False)
class OutputPerturbation:
    """The mechanism at its own guarantee, with its noise scaled to an algorithm's sensitivity.

    Privacy: that of `mechanism`, for an output whose change between neighbours is at most `sensitivity`, in
    the mechanism's norm. The sensitivity must bound *all* neighbouring data sets; the largest change over the
    actual data is itself private. A bare number keeps the adjacency of the mechanism. The event is the
    mechanism's: under add/remove Laplace or Gaussian; for a replace-one sensitivity, which bounds no
    add/remove change, PureDP or ZeroConcentratedDP with adjacency="replace_one", so that asking for
    add/remove is refused.
    """

    mechanism: LaplaceMechanism | GaussianMechanism
    sensitivity: Sensitivity | float

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, LaplaceMechanism | GaussianMechanism):
            raise InvalidArgument(
                "mechanism",
                f"mechanism must be a LaplaceMechanism or GaussianMechanism, got {self.mechanism!r:.80}",
            )
        scaled = self.mechanism.for_sensitivity(self.sensitivity)
        object.__setattr__(self, "mechanism", scaled)
        object.__setattr__(self, "sensitivity", scaled.sensitivity)

    @property
    def scale(self) -> float:
        """The standard deviation of the noise, or Laplace's b."""
        return self.mechanism.scale

    @property
    def event(self) -> ev.Event:
        """The event of one release."""
        return self.mechanism.event

    @property
    def is_private(self) -> bool:
        """Whether the noise is unpredictable; a seeded source's is not."""
        return self.mechanism.is_private

    def add_noise(self, output: Any) -> Any:
        """Add noise to every number of the output, in the same structure and precision."""
        return self.mechanism.add_noise(output)

    def __repr__(self) -> str:
        return f"OutputPerturbation({self.mechanism!r})"
