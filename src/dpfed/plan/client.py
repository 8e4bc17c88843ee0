"""How a client's whole update is bounded, and how much noise there is: on the sum of all, or on each client's own.

>>> ClientPlan(clip_norm=1.0, noise_multiplier=1.0).event
Gaussian(noise_multiplier=1.0)
>>> ClientPlan(clip_norm=1.0, noise_multiplier=4.0, norm="l1").event
Laplace(noise_multiplier=4.0)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpfed import checks
from dpfed import events as ev
from dpfed.clipping import NORMS
from dpfed.errors import InvalidArgument
from dpfed.plan.adaptive import AdaptiveClip, noised_event
from dpfed.plan.tree import RoundTree


@dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """What is done with a client's whole update: clip it to `clip_norm`, add noise to the sum of all or to it alone.

    With `adaptive` the clip norm given is the first one, and `noise_multiplier` that of sum and count together. With
    `tree` the noise of all rounds is correlated (DP-FTRL; `RoundTree`), and `noise_multiplier` is that of a node.
    `norm="l1"` clips in L1 and adds Laplace noise: for style `local`, where each client noises its own update. There
    `shuffle_users` puts a shuffler between clients and server, with that declared minimum of honest reports a round.

    Privacy: adding or removing one client, while the plan and its denominator stay as they are, moves the sum
    by at most clip_norm; replacing one, by at most twice that (the accountant doubles it). A round is ``event``
    for the clients of the cohort (McMahan, Ramage, Talwar and Zhang 2018; unit client). `ServerRelease` executes it. In
    style `local` one participation is ``event`` for its client, replace_one, and `ClientRelease` executes it.
    """

    clip_norm: float
    noise_multiplier: float | None = None
    adaptive: AdaptiveClip | None = None
    tree: RoundTree | None = None
    norm: str = "l2"
    shuffle_users: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", checks.positive(clip_norm=self.clip_norm))
        if self.adaptive is not None and not isinstance(self.adaptive, AdaptiveClip):
            raise InvalidArgument("adaptive", f"adaptive must be an AdaptiveClip or None, got {self.adaptive!r}")
        if self.tree is not None and not isinstance(self.tree, RoundTree):
            raise InvalidArgument("tree", f"tree must be a RoundTree or None, got {self.tree!r}")
        if self.norm not in NORMS:
            raise InvalidArgument("norm", f"norm must be 'l1' or 'l2', got {self.norm!r}")
        if self.norm == "l1" and (self.tree or self.adaptive):
            what = "tree" if self.tree else "adaptive"
            raise InvalidArgument(what, f"{what} is proved for Gaussian noise: choose norm='l2', or leave {what} out")
        if self.tree and self.adaptive:
            raise InvalidArgument("tree", "a tree is proved for one clip norm: leave adaptive clipping out")
        if self.shuffle_users is not None:
            object.__setattr__(self, "shuffle_users", checks.count(shuffle_users=self.shuffle_users))
        if self.noise_multiplier is not None:
            object.__setattr__(self, "noise_multiplier", checks.positive(noise_multiplier=self.noise_multiplier))
            noised_event(
                self.noise_multiplier, self.adaptive, self.norm
            )  # a count that costs more than both may is refused now

    @property
    def noise(self) -> float:
        """The noise multiplier of all that a round releases; refused before there is one."""
        if self.noise_multiplier is None:
            message = "updates get no noise yet: give the client plan a noise_multiplier, or use Plan.calibrated"
            raise InvalidArgument("noise_multiplier", message)
        return self.noise_multiplier

    def scaled(self, factor: float) -> ClientPlan:
        """Return the plan with that many times its noise; as it is before it has any."""
        noise = self.noise_multiplier
        return self if noise is None or factor == 1 else replace(self, noise_multiplier=noise * factor)

    @property
    def sum_noise(self) -> float:
        """The noise multiplier of the sum alone: above `noise` where a count is released beside it."""
        return self.adaptive.sum_noise(self.noise) if self.adaptive else self.noise

    @property
    def event(self) -> ev.Event:
        """The event of a round for a client of its cohort, or of one participation in style `local`."""
        if self.tree:
            raise InvalidArgument("tree", "the rounds of a tree are one event together: ask for Plan.client_event")
        return noised_event(self.noise, self.adaptive, self.norm)
