"""Noise for the steps of DP-FTRL: what is added to one step is partly taken back in later ones.

Each step's sum gets the change of a tree's noise (:mod:`dpfed.mechanisms.tree`), so that the sum of all steps so far
has the noise of a few nodes, however many steps there were. With plain gradient descent that sum is the model.

>>> import torch
>>> noise = CorrelatedNoise(NoiseSource(), std=1.0, event=TreeAggregation(1.0, steps=100))
>>> total = sum(noise.add({"weight": torch.ones(1000)})["weight"] for _ in range(64))
>>> bool((total - 64).std() < 1)  # noise of its own in each step would make it 8
True
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dpfed.errors import InvalidArgument
from dpfed.events import TreeAggregation
from dpfed.mechanisms.tree import PartialSums
from dpfed.training.noise import GRID, NoiseSource


class CorrelatedNoise:
    """Noise of DP-FTRL: what each step gets is the change of a tree's noise; `std` is the noise of one node.

    Privacy: ``event`` for all calls together, in ideal arithmetic, if one unit moves the tensors of a call by at most
    std / noise_multiplier in L2 norm and keeps the event's pattern. The changes are a linear function of the nodes'
    noise, and the partial sums of what is given are those of the noised nodes. Nothing of the tree is ever stored.
    """

    def __init__(self, noise: NoiseSource, std: float, event: TreeAggregation) -> None:
        require_floats(noise)
        self._noise = noise
        self._std = std
        self._size = 0
        self._dtype = torch.float32
        # The tree of zeros: what is summed has no part in it, and its changes are noise alone.
        self._changes: PartialSums[Tensor] = PartialSums(self._draw_node, event)

    def add(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return new tensors with noise on every number: same names, shapes, precisions and devices."""
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            message = (
                "tensors must be finite, since noise hides neither NaN nor infinity: leave such examples out before"
            )
            raise InvalidArgument("tensors", message)
        self._size = sum(tensor.numel() for tensor in tensors.values())
        is_wide = any(tensor.dtype == torch.float64 for tensor in tensors.values())
        self._dtype = torch.float64 if is_wide else torch.float32
        change = self._changes.add(torch.zeros(()))
        parts = torch.split(change, [tensor.numel() for tensor in tensors.values()])
        return {name: _add_change(tensors[name], part) for name, part in zip(tensors, parts, strict=True)}

    def _draw_node(self, _: Tensor) -> Tensor:
        return self._noise.add({"node": torch.zeros(self._size, dtype=self._dtype)}, self._std)["node"]


def require_floats(noise: NoiseSource) -> None:
    """Refuse noise on a grid: the changes of a tree's noise are not on it."""
    if noise.mode == GRID:
        message = "the noise of a tree is a weighted sum, which is on no grid"
        raise InvalidArgument("noise", f'{message}: use noise="float", or a plan without a tree')


def _add_change(tensor: Tensor, change: Tensor) -> Tensor:
    wide = tensor.to(change.dtype) + change.view(tensor.shape).to(tensor.device)
    return wide.to(tensor.dtype)
