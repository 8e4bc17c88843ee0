"""What is released of a round: by the server the mean of clipped updates with noise, by a client its own update.

Weights are taken relative to the largest, so each client moves the sum by at most the clip norm, whatever its
weight; the sum, not the mean, is what noise is added to, and it is added up without any rounding error. The mean is
over the *expected* cohort, a constant of the plan: the realised count would tell who took part.

>>> import numpy as np
>>> from dpfed.plan.client import ClientPlan
>>> parts = {"large": 20, "small": 10}
>>> server = ServerRelease(ClientPlan(clip_norm=1.0), parts, expected=Fraction(2))
>>> server.query({"large": np.array([3.0, 4.0]), "small": np.array([0.0, 0.5])}, dimension=2).round(6)
array([0.6 , 1.05])
>>> server.sensitivity("add_remove")  # 1 × 20/30
Sensitivity(0.6666666667, norm='l2', adjacency='add_remove')
>>> ClientRelease(ClientPlan(clip_norm=1.0)).sensitivity  # its records may turn the update around
Sensitivity(2, norm='l2', adjacency='replace_one')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeGuard

import numpy as np

from dpfed import checks
from dpfed.aggregation.mean import sensitivity_of_mean
from dpfed.aggregation.robust_rules import FixedGroups, RobustRule
from dpfed.aggregation.rows import Rows
from dpfed.aggregation.rules import Mean, Rule, find_groups, is_noisable
from dpfed.arrays import Floats, exact
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.clipping import clip_gradients, total_norm
from dpfed.errors import InvalidArgument
from dpfed.events import Event, TreeAggregation
from dpfed.guarantee import CLIENT
from dpfed.mechanisms.gaussian import GaussianMechanism
from dpfed.mechanisms.laplace import LaplaceMechanism
from dpfed.mechanisms.sensitivity import Sensitivity, clipped_update
from dpfed.mechanisms.tree import TreeMechanism
from dpfed.plan.client import ClientPlan
from dpfed.randomness import RandomSource


@dataclass(frozen=True)
class Released:
    """The noised mean of a round, and the noised count where the clip norm adapts."""

    average: Floats
    noisy_count: float | None = None


@dataclass(frozen=True)
class ServerRelease:
    """The server's part of a round: `parts` are the clients' public weights, `expected` the size of a cohort.

    Without `parts` all clients have the same weight, as those of a population.

    Privacy: at fixed plan and model, adding or removing one client moves the sum by at most the clip norm,
    exactly, and replacing one by at most twice that, whether the sum is of updates (`Mean`) or of their differences
    from what was released last (`CenteredClipping`); noise is ``client.sum_noise`` clip norms. With `FixedGroups` the
    sum has a part for each group, of which a client moves its own alone, each number of it gets the same noise, and the
    rule that follows is post-processing. With `adaptive` a count is released of the same updates. Both are
    ``client.event``, which must be charged before. With a tree all rounds are one event (`TreeMechanism`).
    """

    client: ClientPlan
    parts: Mapping[str, int] | None
    expected: Fraction
    rule: Rule = field(default_factory=Mean)

    def __post_init__(self) -> None:
        if not is_noisable(self.rule):
            message = f"the mean's noise is not proved behind {self.rule.kind}: one client moves it by more"
            raise InvalidArgument("aggregation", f"{message}; use Mean() or CenteredClipping(max_faulty=...)")
        if self._groups is not None and (self.parts is None or len(set(self.parts.values())) != 1):
            message = "groups are of named clients that count once each: weights would let one be many"
            raise InvalidArgument("aggregation", f"{message}; give parts of 1 for each client")

    @property
    def _groups(self) -> FixedGroups | None:
        return find_groups(self.rule)

    def largest_weight(self) -> Fraction:
        """Return the factor of the largest client's update in the mean, or in that of the smallest group."""
        if self._groups is not None:
            return 1 / min(self._expected_groups)
        if self.parts is None:
            return 1 / self.expected
        share = Fraction(max(self.parts.values()), sum(self.parts.values()))
        return share * len(self.parts) / self.expected

    def sensitivity(self, adjacency: str) -> Sensitivity:
        """Return how far one client can move the mean: clip norm × largest weight, twice that if it is replaced."""
        return sensitivity_of_mean(self.client.clip_norm, self.largest_weight(), adjacency)

    def query(
        self,
        updates: Mapping[str, Floats],
        dimension: int,
        clip_norm: float | None = None,
        centre: Floats | None = None,
    ) -> Floats:
        """Return the sum of clipped updates by relative weight; an update that is not finite counts as zero.

        With centred clipping they are taken less the `centre`, which must be released already, or zero. With groups
        it is their sums, one after the other.
        """
        terms, bound = self._find_terms(updates, centre), self._bound(clip_norm)
        if self._groups is None:
            return Mean().total(terms, dimension, self.parts, bound)
        return np.concatenate([Mean().total(each, dimension, None, bound) for each in self._split(terms)])

    def count(
        self, updates: Mapping[str, Floats], clip_norm: float | None = None, centre: Floats | None = None
    ) -> float:
        """Return half the number of updates within the clip norm, less half the number of longer ones."""
        bound, terms = self._bound(clip_norm), self._find_terms(updates, centre)
        return sum(0.5 if _is_within(term, bound) else -0.5 for term in terms.values())

    def tree(self, event: TreeAggregation, source: RandomSource) -> TreeMechanism:
        """Return the noise of all rounds of the event, which must be charged before."""
        return TreeMechanism(event, Sensitivity(self.client.clip_norm, "l2", ADD_REMOVE), source)

    def release(
        self,
        updates: Mapping[str, Floats],
        dimension: int,
        source: RandomSource,
        clip_norm: float | None = None,
        tree: TreeMechanism | None = None,
        centre: Floats | None = None,
    ) -> Released:
        """Return the noised mean of a round, and the noised count where the clip norm adapts; `tree` gives the noise.

        The updates of a cohort below the plan's minimum must not be given: noise around zero is then released, or
        around the `centre` with centred clipping.
        """
        if (tree is None) != (self.client.tree is None):
            raise InvalidArgument(
                "tree", "a tree is given exactly where the plan has one: give the tree that was charged"
            )
        if tree is not None:
            return Released(tree.add_noise(self.query(updates, dimension)) * float(self.largest_weight()))
        bound = Sensitivity(self._bound(clip_norm), "l2", ADD_REMOVE)
        mechanism = GaussianMechanism.from_noise_multiplier(self.client.sum_noise, bound, source=source)
        noised = np.asarray(mechanism.add_noise(self.query(updates, dimension, clip_norm, centre)))
        average = self._combine(noised, dimension, centre)
        if self.client.adaptive is None:
            return Released(average)
        half, noise = Sensitivity(0.5, "l2", ADD_REMOVE), self.client.adaptive.count_multiplier
        counter = GaussianMechanism.from_noise_multiplier(noise, half, source=source)
        return Released(average, float(counter.add_noise(self.count(updates, clip_norm, centre))))

    def next_clip(self, clip_norm: float, noisy_count: float) -> float:
        """Return the clip norm of the next round, from a noised count of this one; unchanged if it does not adapt."""
        if self.client.adaptive is None:
            return checks.positive(clip_norm=clip_norm)
        return self.client.adaptive.next_clip(clip_norm, noisy_count, float(self.expected))

    def _combine(self, noised: Floats, dimension: int, centre: Floats | None) -> Floats:
        """Return the mean that belongs to noised sums, or what the rule makes of those of groups: post-processing."""
        if self._groups is None or not isinstance(self.rule, RobustRule):
            average = noised * float(self.largest_weight())
            return average + centre if self._is_centred(centre) else average
        sizes = np.array([float(size) for size in self._expected_groups])
        return self.rule.apply(Rows.read(noised.reshape(-1, dimension) / sizes[:, None]), np.zeros(dimension))

    def _split(self, terms: Mapping[str, Floats]) -> list[dict[str, Floats]]:
        """Return the terms of each group, by the places of their clients in the plan."""
        groups, names = self._groups, self.parts
        if groups is None or names is None or not terms.keys() <= names.keys():
            raise InvalidArgument("updates", "updates must be of clients of the plan, each in a group of it")
        found: list[dict[str, Floats]] = [{} for _ in range(groups.groups)]
        for number, name in enumerate(names):
            if name in terms:
                found[groups.place(number)][name] = terms[name]
        return found

    @property
    def _expected_groups(self) -> list[Fraction]:
        """The expected number of clients of each group in a round: constants of the plan."""
        count = len(self.parts or ())
        return [self.expected * size / count for size in self._groups.sizes(count)] if self._groups else []

    def _is_centred(self, centre: Floats | None) -> TypeGuard[Floats]:
        return self.rule.needs_centre and centre is not None

    def _find_terms(self, updates: Mapping[str, Floats], centre: Floats | None) -> Mapping[str, Floats]:
        """Return what is clipped and added up: the updates, or how they differ from the last release."""
        if not self._is_centred(centre):
            return updates
        return {name: exact(update, "updates") - centre for name, update in updates.items()}

    def _bound(self, clip_norm: float | None) -> float:
        return self.client.clip_norm if clip_norm is None else checks.positive(clip_norm=clip_norm)


@dataclass(frozen=True)
class ClientRelease:
    """What one client sends in style `local`: its whole update, clipped and noised by the client itself.

    Privacy: whatever the client's records are, and whatever they do to its training, `query` is a vector within the
    clip norm, so that any other records in their place move it by at most twice that: ``event`` under replace_one, for
    the client with all its records and so for each of them. Noise is ``client.noise`` clip norms on the grid of
    `mechanisms.additive`: rounding to it moves neighbours apart by one step more in each number, for which the noise is
    widened. The event must be charged before. Whatever others do with what is sent is post-processing.
    """

    client: ClientPlan

    @property
    def sensitivity(self) -> Sensitivity:
        """How far another set of records can move the clipped update: two clip norms."""
        return clipped_update(self.client.clip_norm, unit=CLIENT, adjacency=REPLACE_ONE, norm=self.client.norm)

    @property
    def event(self) -> Event:
        """The event of one participation, whose shift the accountant doubles under replace_one."""
        return self.client.event

    def query(self, update: object, dimension: int) -> Floats:
        """Return the clipped update; zero for anything that is no finite vector of that length."""
        vector = np.asarray(update)
        if vector.shape != (dimension,) or vector.dtype.kind not in "fiu":
            return np.zeros(dimension)
        with np.errstate(over="ignore"):
            values = vector.astype(np.float64)
        if not np.isfinite(values).all():
            return np.zeros(dimension)
        return np.asarray(clip_gradients(values, self.client.clip_norm, self.client.norm))

    def release(self, update: object, dimension: int, source: RandomSource) -> Floats:
        """Return the clipped update with the client's noise: nothing else of the update may leave."""
        bound = Sensitivity(self.client.clip_norm, self.client.norm, ADD_REMOVE)
        make = LaplaceMechanism if self.client.norm == "l1" else GaussianMechanism
        mechanism = make.from_noise_multiplier(self.client.noise, bound, source=source)
        return np.asarray(mechanism.add_noise(self.query(update, dimension)))


def _is_within(update: Floats, bound: float) -> bool:
    values = exact(update, "updates")
    return bool(np.isfinite(values).all()) and total_norm(values) <= bound
