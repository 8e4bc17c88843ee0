"""What one step releases: the noised mean gradient and, where the clip norm adapts, a noised count.

Whatever is computed from these two (the next model, the next clip norm) is as public as they are. Nothing else of a
step may leave it.

>>> import torch
>>> from dpfed.plan.plan import LocalPlan
>>> plan = LocalPlan(size=50, batch_size=10, steps=5, clip_norm=1.0, noise_multiplier=2.0)
>>> release = Release(plan, NoiseSource(), {"weight": torch.zeros(3)})
>>> release.mean({"weight": torch.ones(3, dtype=torch.float64)})["weight"].shape, release.clip_norm
(torch.Size([3]), 1.0)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dpfed.events import TreeAggregation
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.plan import LocalPlan
from dpfed.training.correlated import CorrelatedNoise
from dpfed.training.engine.clip import LEAST_CLIP_NORM, MOST_CLIP_NORM
from dpfed.training.noise import GRID, NoiseSource


class Release:
    """The releases of a run: each clipped sum in turn becomes a noised mean, which may be public.

    Privacy: where adding or removing one record moves the sum by at most `clip_norm` in the plan's norm, and the count
    by at most 1/2, one call of `mean` is the noised sum, or the pair of sum and count, of ``plan.step_event`` before
    sampling. The clip norm of the next draw follows from the noised count alone. On the grid the sum is rounded
    from float64, and the noise pays for it; to float32 only what has noise is rounded. Where the plan has a tree all
    calls together are ``plan.event``.
    """

    def __init__(self, plan: LocalPlan, noise: NoiseSource, parameters: Mapping[str, Tensor]) -> None:
        self._plan = plan
        self._noise = noise
        self._parameters = parameters
        self._dimension = sum(value.numel() for value in parameters.values())
        self._multiplier = plan.sum_noise
        self._clip_to(plan.clip_norm)
        event = plan.event if plan.tree else None
        self._tree = CorrelatedNoise(noise, self._std, event) if isinstance(event, TreeAggregation) else None

    @property
    def clip_norm(self) -> float:
        """The clip norm in force, for the draw that comes next."""
        return self._clip_norm

    def mean(self, total: Mapping[str, Tensor], count: float = 0.0) -> dict[str, Tensor]:
        """Return the sum with noise, divided by the public batch size; parameters missing in the sum count as zero."""
        sums = {name: self._prepare_sum(total.get(name), value) for name, value in self._parameters.items()}
        noisy = self._tree.add(sums) if self._tree else self._noise.add(sums, self._std, self._plan.norm)
        if self._plan.adaptive is not None:
            self._adapt(self._plan.adaptive, count)
        size = self._plan.batch_size
        return {name: noisy[name].div_(size).to(value.dtype) for name, value in self._parameters.items()}

    def _prepare_sum(self, total: Tensor | None, parameter: Tensor) -> Tensor:
        # In one precision whatever was drawn: roundings after the noise must not tell an empty draw from another.
        dtype = torch.float64 if self._noise.mode == GRID else parameter.dtype
        return torch.zeros_like(parameter, dtype=dtype) if total is None else total.to(dtype)

    def _adapt(self, adaptive: AdaptiveClip, count: float) -> None:
        std = self._noise.std(adaptive.count_multiplier, 0.5, 1)
        noisy = self._noise.add({"count": torch.tensor([count], dtype=torch.float64)}, std)["count"]
        following = self._plan.next_clip(self._clip_norm, float(noisy))
        self._clip_to(min(max(following, LEAST_CLIP_NORM), MOST_CLIP_NORM))

    def _clip_to(self, clip_norm: float) -> None:
        std = self._noise.std(self._multiplier, clip_norm, self._dimension, self._plan.norm)
        self._clip_norm, self._std = clip_norm, std
