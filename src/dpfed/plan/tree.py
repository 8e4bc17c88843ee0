"""Correlated noise for training without sampling (DP-FTRL): how often somebody may take part, and when a tree ends.

Batches are taken in a fixed order, pass after pass, and what is noised well is the sum of all gradients so far. Nothing
rests on who is in a batch being secret, so the order may be anything the records do not decide together.

>>> TreeNoise(max_participations=2).event(noise_multiplier=8.0, steps=100, pass_steps=50)
TreeAggregation(noise_multiplier=8.0, steps=100, max_participations=2, min_separation=50)
"""

from __future__ import annotations

from dataclasses import dataclass

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.events import TreeAggregation


@dataclass(frozen=True)
class TreeNoise:
    """Correlated noise over a client's steps: the most passes a record takes part in, and how often the tree restarts.

    A second pass must be declared. One tree for all passes, or a new one for each (restarts = passes − 1): for many
    passes the second costs less, and each restart leaves the noise of the tree before in the model for good.

    Privacy: a record takes part once in each pass, at the same place in all of them, so participations are a whole pass
    apart; `event` is what all steps are together (Kairouz et al. 2021; Choquette-Choo et al. 2023 for several passes).
    """

    max_participations: int = 1
    restarts: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_participations", checks.count(max_participations=self.max_participations))
        object.__setattr__(self, "restarts", checks.whole(restarts=self.restarts))

    def event(self, noise_multiplier: float, steps: int, pass_steps: int) -> TreeAggregation:
        """Return the event of all steps, in passes of `pass_steps`; more passes than were declared are refused."""
        if steps > pass_steps * self.max_participations:
            message = f"{steps} steps are more than max_participations={self.max_participations} passes of {pass_steps}"
            raise InvalidArgument("steps", f"{message}: declare more, which takes more noise, or plan fewer steps")
        return TreeAggregation(noise_multiplier, steps, self.max_participations, pass_steps, self.restarts)


@dataclass(frozen=True)
class RoundTree:
    """Correlated noise of the server over all rounds of a run: how far apart a client's rounds are, and restarts.

    In how many rounds a client takes part is the plan's `max_participations`: one, unless more are declared.

    Privacy: `event` is what all rounds are together for one client whose rounds are at least min_separation apart.
    """

    min_separation: int = 1
    restarts: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_separation", checks.count(min_separation=self.min_separation))
        object.__setattr__(self, "restarts", checks.whole(restarts=self.restarts))

    def event(self, noise_multiplier: float, rounds: int, participations: int) -> TreeAggregation:
        """Return the event of all rounds for a client that takes part in that many of them."""
        return TreeAggregation(noise_multiplier, rounds, participations, self.min_separation, self.restarts)
