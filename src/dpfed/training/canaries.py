"""Extra gradients for an audit: the worst record that the mechanism allows, put in on purpose.

An audit trains with and without a gradient that it made up, the canary, and tries to tell from what is released. The
guarantee bounds how well it can. EACH CANARY IS ONE MORE RECORD: it takes up the clip norm of one, and to be covered
by the plan it must take part in a step with probability ``plan.sample_rate``, on its own, as records do (with a tree,
in at most ``plan.tree.max_participations`` steps, ``plan.pass_steps`` apart). Nobody but an audit has a use for this.
Where the clip norm adapts, canaries are in the sum and not in the count.

>>> import torch
>>> clipped({"w": torch.tensor([3.0, 4.0])}, {"w": torch.zeros(2)}, Clip(10.0))["w"].tolist()
[3.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from dpfed.clipping import clip_gradients
from dpfed.errors import InvalidArgument
from dpfed.training.clip import Clip, group_of

Gradient = Mapping[str, Tensor]
# The canaries of a step, by its number; none for most.
Canaries = Callable[[int], Iterable[Gradient]]


def clipped(canary: Gradient, parameters: Mapping[str, Tensor], clip: Clip) -> dict[str, Tensor]:
    """The canary as the one record it stands for: as given, or cut by the clip; float64, by parameter name."""
    for name, value in canary.items():
        if name not in parameters or not isinstance(value, Tensor) or value.shape != parameters[name].shape:
            raise InvalidArgument(
                "canaries", f"a canary must map names of trainable parameters to tensors of their shape, not {name!r}"
            )
    wide = {name: value.detach().to("cpu", torch.float64) for name, value in canary.items()}
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in wide.items():
        groups.setdefault(group_of(name) if clip.layers == "each" else "", {})[name] = value
    limit = clip.limit(len({group_of(name) for name in parameters}))
    found = {name: part for group in groups.values() for name, part in clip_gradients(group, limit, clip.norm).items()}
    return {name: found[name].to(parameters[name].device) for name in wide}
