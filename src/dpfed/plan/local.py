"""What one client does in one round, as a frozen value: what is executed is what is charged.

A `LocalPlan` is a number of steps of DP-SGD, each on its own Poisson sample. Its rate and its denominator come from a
`size` that the owner declares public and never from the data, so a record more or less changes neither.

>>> ward = LocalPlan(size=100, batch_size=10, steps=5, clip_norm=1.0, noise_multiplier=1.5)
>>> ward.step_event
PoissonSampled(Gaussian(noise_multiplier=1.5), sample_rate=0.1...)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import InitVar, asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from dpfed import checks
from dpfed import events as ev
from dpfed.accounting.queries import epsilon as epsilon_of
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.clipping import NORMS, group_clip_norm
from dpfed.errors import AdjacencyMismatch, InvalidArgument
from dpfed.guarantee import CLIENT, PERSON, RECORD, UNITS, Guarantee
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.plan.adaptive import AdaptiveClip, find_least_noise, noised_event
from dpfed.plan.schedule import Factors, multiply
from dpfed.plan.tree import TreeNoise

LAYERS = ("together", "each")
LOCAL_UNITS = tuple(unit for unit in UNITS if unit != CLIENT)  # those that a client can protect


@dataclass(frozen=True, kw_only=True)
class LocalPlan:
    """One client's part of a round: `steps` steps of DP-SGD on Poisson samples of its records.

    `epochs` may be given in place of steps: passes over the declared size, rounded up to whole steps.
    `delta` and `adjacency` are those of the guarantee for which the noise was calibrated: replace_one where `size`
    is the true count of records, which is then public. A clip norm of ∞, the default, is for clients that add no
    noise of their own.

    `norm="l1"` clips in L1 and adds Laplace noise. `layers="each"` clips every parameter group on its own, to
    `group_clip_norm`, so that the whole stays within clip_norm. With `adaptive` the clip norm given is the first
    one, and `noise_multiplier` that of the sum and the count together.

    With `tree` there is no sampling: every record is in one batch of each pass over the data, and all steps together
    are one event, charged before the first (DP-FTRL; `TreeNoise`).

    `unit` says whose contribution is clipped: "record", a row of the data, or "person", all rows of one person as one
    record whose loss is their mean. `size` and `batch_size` then count persons, and so does the rest of the plan.

    Privacy: each step releases the sum of per-record gradients, each clipped to norm `clip_norm`, plus noise of
    noise_multiplier × clip_norm (Gaussian for L2, Laplace's b for L1), divided by the public `batch_size`. Adding
    or removing one record moves the sum by at most clip_norm (replacing one, by twice that); each record is in a
    step's sample with probability `sample_rate`, independently, whatever the number of records. A round is therefore
    ``event`` (Abadi et al. 2016; `adjacency`, `unit`). The gradient of a record must depend on that record and
    released values only. With `tree` the noise is that of a node, and of each pass a record is in one step that it
    draws on its own, whatever the others do.
    """

    size: int
    batch_size: int
    clip_norm: float = math.inf
    steps: int = 0
    learning_rate: float = 1.0
    noise_multiplier: float | None = None
    delta: float | None = None
    adjacency: str = ADD_REMOVE
    norm: str = "l2"
    layers: str = "together"
    adaptive: AdaptiveClip | None = None
    unit: str = RECORD
    tree: TreeNoise | None = None
    epochs: InitVar[float | None] = None

    def __post_init__(self, epochs: float | None) -> None:
        for name in ("size", "batch_size"):
            object.__setattr__(self, name, checks.count(**{name: getattr(self, name)}))
        object.__setattr__(self, "steps", _count_steps(self.steps, epochs, Fraction(self.size, self.batch_size)))
        object.__setattr__(self, "learning_rate", checks.positive(learning_rate=self.learning_rate))
        if self.clip_norm != math.inf or self.noise_multiplier is not None:
            object.__setattr__(self, "clip_norm", checks.positive(clip_norm=self.clip_norm))
        if self.delta is not None:
            object.__setattr__(self, "delta", checks.probability(delta=self.delta))
        checks.adjacency(self.adjacency)
        if self.batch_size > self.size:
            message = f"batch_size must be at most the declared size ({self.size}), got {self.batch_size}"
            raise InvalidArgument("batch_size", message)
        self._require_known_variant()
        self._require_fitting_tree()
        if self.noise_multiplier is not None:
            object.__setattr__(self, "noise_multiplier", checks.positive(noise_multiplier=self.noise_multiplier))
            noised_event(self.noise_multiplier, self.adaptive, self.norm)

    @property
    def sample_rate(self) -> float:
        """batch_size/size, rounded up to a multiple of 2⁻⁵³: the exact probability that a uniform draw is below it."""
        return math.ldexp(math.ceil(Fraction(self.batch_size, self.size) * 2**53), -53)

    @property
    def pass_steps(self) -> int:
        """The steps of one pass over the declared size."""
        return -(-self.size // self.batch_size)

    @property
    def sensitivity(self) -> Sensitivity:
        """The most that one record more or less moves the sum to which noise is added."""
        return Sensitivity(self.clip_norm, self.norm, ADD_REMOVE)

    @property
    def noise(self) -> float:
        """The noise multiplier of all that a step releases; refused before there is one."""
        if self.noise_multiplier is None:
            message = "this plan has no noise yet: give noise_multiplier, or use Plan.calibrated(guarantee)"
            raise InvalidArgument("noise_multiplier", message)
        return self.noise_multiplier

    @property
    def sum_noise(self) -> float:
        """The noise multiplier of the sum of gradients alone: above `noise` where a count is released beside it."""
        return self.adaptive.sum_noise(self.noise) if self.adaptive else self.noise

    @property
    def step_event(self) -> ev.Event:
        """The event of one step for this client's records."""
        if self.tree:
            raise InvalidArgument("tree", "the steps of a tree are one event together: ask for plan.event")
        return self._sample(noised_event(self.noise, self.adaptive, self.norm))

    @cached_property
    def event(self) -> ev.Event:
        """The event of one round for this client's records, for which its account is charged."""
        if self.tree:
            return self.tree.event(self.noise, self.steps, self.pass_steps)
        return ev.Repeated(self.step_event, self.steps) if self.steps > 1 else self.step_event

    @property
    def charge(self) -> tuple[ev.Event, int]:
        """The event that a round is charged as, and how many times: each step, or all steps of a tree at once."""
        return (self.event, 1) if self.tree else (self.step_event, self.steps)

    def group_clip_norm(self, groups: int) -> float:
        """Return the norm to which each parameter group is clipped, rounded down: together they stay in clip_norm."""
        return self.clip_norm if self.layers == "together" else group_clip_norm(self.clip_norm, groups, self.norm)

    def next_clip(self, clip_norm: float, noisy_count: float) -> float:
        """Return the clip norm of the next step, from a noised count of this one; unchanged if it does not adapt."""
        if self.adaptive is None:
            return checks.positive(clip_norm=clip_norm)
        return self.adaptive.next_clip(clip_norm, noisy_count, self.batch_size)

    def epsilon(self, delta: float, rounds: int | Factors = 1) -> float:
        """Return the exact ε of that many rounds, or so many with each factor of noise, for one record, rounded up."""
        parts = [ev.Repeated(self.scaled(factor).event, times) for factor, times in multiply(rounds).items()]
        return epsilon_of(parts[0] if len(parts) == 1 else ev.Composed(tuple(parts)), delta, adjacency=self.adjacency)

    def scaled(self, factor: float) -> LocalPlan:
        """Return the plan with that many times its noise; as it is before it has any."""
        noise = self.noise_multiplier
        return self if noise is None or factor == 1 else replace(self, noise_multiplier=noise * factor)

    def calibrated(self, guarantee: Guarantee, rounds: int | Factors = 1, beside: ev.Event | None = None) -> LocalPlan:
        """Return the plan with the least noise at which that many rounds together keep the guarantee.

        Where `rounds` says how many there are of each factor, a round has so many times that noise. What is charged
        `beside` them has its part of the guarantee.
        """
        self.require_unit(guarantee)
        if (self.adjacency, guarantee.adjacency) == (REPLACE_ONE, ADD_REMOVE):
            message = f"this plan's size is a true count, which protects whoever is replaced only, not {guarantee}"
            raise AdjacencyMismatch(f"{message}: ask for replace_one, or declare a size")
        self.require_clip()

        def run(noised_sum: ev.Event, times: int) -> ev.Event:
            if self.tree and isinstance(noised_sum, ev.Gaussian):
                return ev.Repeated(self.tree.event(noised_sum.noise_multiplier, self.steps, self.pass_steps), times)
            return ev.Repeated(self._sample(noised_sum), times * self.steps)

        noise_multiplier = find_least_noise(guarantee, run, multiply(rounds), self.adaptive, self.norm, beside)
        delta, adjacency = guarantee.delta, guarantee.adjacency
        return replace(self, noise_multiplier=noise_multiplier, delta=delta, adjacency=adjacency)

    def require_clip(self) -> None:
        """Refuse a plan without a clip norm, for which no noise is enough."""
        if self.clip_norm == math.inf:
            message = f"a {self.unit}'s gradient has no bound: give clip_norm, or choose style 'user' or 'none'"
            raise InvalidArgument("clip_norm", message)

    def require_unit(self, guarantee: Guarantee) -> None:
        """Refuse a guarantee that clipping each record, or each person, does not give.

        Not even the one for a record where persons are clipped: a row more or less replaces its person's record by
        another one, which moves the sum by up to two clip norms.
        """
        if guarantee.unit == self.unit:
            return
        message = f"clipping each {self.unit} protects one {self.unit}, not what was asked: {guarantee}"
        remedy = f"; group the rows by person and plan with unit={PERSON!r}" if guarantee.unit == PERSON else ""
        raise InvalidArgument("guarantee", message + remedy)

    def to_plain(self) -> dict[str, Any]:
        """Return the plan as plain JSON values; a clip norm of ∞ is null."""
        return {**asdict(self), "clip_norm": None if self.clip_norm == math.inf else self.clip_norm}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> LocalPlan:
        """Return the plan that `to_plain` described."""
        values = dict(plain)
        clip_norm, adaptive, tree = values.pop("clip_norm"), values.pop("adaptive", None), values.pop("tree", None)
        return cls(
            **values,
            clip_norm=math.inf if clip_norm is None else clip_norm,
            adaptive=None if adaptive is None else AdaptiveClip(**adaptive),
            tree=None if tree is None else TreeNoise(**tree),
        )

    def _sample(self, noised_sum: ev.Event) -> ev.Event:
        return noised_sum if self.sample_rate == 1 else ev.PoissonSampled(noised_sum, self.sample_rate)

    def _require_known_variant(self) -> None:
        for name, known in (("norm", NORMS), ("layers", LAYERS), ("unit", LOCAL_UNITS)):
            if getattr(self, name) not in known:
                message = f"{name} must be {' or '.join(map(repr, known))}, got {getattr(self, name)!r}"
                raise InvalidArgument(name, message)
        if self.adaptive is not None and not isinstance(self.adaptive, AdaptiveClip):
            raise InvalidArgument("adaptive", f"adaptive must be an AdaptiveClip or None, got {self.adaptive!r}")
        if self.adaptive and self.norm == "l1":
            message = "adaptive clipping splits Gaussian noise between sum and count: choose norm='l2' or a fixed clip"
            raise InvalidArgument("adaptive", message)

    def _require_fitting_tree(self) -> None:
        if self.tree is None:
            return
        if not isinstance(self.tree, TreeNoise):
            raise InvalidArgument("tree", f"tree must be a TreeNoise or None, got {self.tree!r}")
        if self.norm == "l1" or self.adaptive:
            message = "a tree is proved for Gaussian noise at one clip norm: choose norm='l2' and no adaptive clipping"
            raise InvalidArgument("tree", message)
        self.tree.event(1.0, self.steps, self.pass_steps)  # what it does not allow is refused now


def _count_steps(steps: int, epochs: float | None, steps_per_epoch: Fraction) -> int:
    if epochs is None:
        return checks.count(steps=steps)
    if steps:
        raise InvalidArgument(
            "epochs", f"steps and epochs are two ways to say one thing: give one, not {steps} and {epochs}"
        )
    return math.ceil(Fraction(checks.positive(epochs=epochs)) * steps_per_epoch)
