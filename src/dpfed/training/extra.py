"""Extra gradients in the sum of a step: the socket that an audit plugs its canaries into.

EACH EXTRA GRADIENT IS ONE MORE RECORD: it takes up the clip norm of one, and to be covered by the plan it must take
part in a step with probability ``plan.sample_rate``, on its own, as records do (with a tree, in at most
``plan.tree.max_participations`` steps, ``plan.pass_steps`` apart). Nobody but an audit has a use for this; its canaries
are made in `dpfed.audit.canaries`. Where the clip norm adapts, they are in the sum and not in the count.

>>> import torch
>>> clip_canary({"w": torch.tensor([3.0, 4.0])}, {"w": torch.zeros(2)}, Clip(10.0))["w"].tolist()
[3.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from dpfed.clipping import clip_gradients
from dpfed.errors import InvalidArgument
from dpfed.training.engine.clip import Clip, group_of

Gradient = Mapping[str, Tensor]
# The canaries of a step, by its number; none for most.
Canaries = Callable[[int], Iterable[Gradient]]


# What canaries see of their step: the exact sum over the records, which is PRIVATE, the released mean, the clip norm.
Watch = Callable[[Gradient, Gradient, float], None]


def find_watch(canaries: Canaries | None) -> Watch | None:
    """Return the method by which canaries see what their step released: `see`, if they have it."""
    found: Watch | None = getattr(canaries, "see", None)
    return found


def clip_canary(canary: Gradient, parameters: Mapping[str, Tensor], clip: Clip) -> dict[str, Tensor]:
    """Return the canary, clipped like the gradient of one record: float64 tensors by parameter name."""
    for name, value in canary.items():
        if name not in parameters or not isinstance(value, Tensor) or value.shape != parameters[name].shape:
            raise InvalidArgument(
                "canaries",
                f"a canary has {name!r}, which is not a trainable parameter with a tensor of its shape, so there is "
                "nothing to add it to: give {name: torch.ones_like(parameter)}, with names of model.named_parameters()",
            )
    wide = {name: value.detach().to("cpu", torch.float64) for name, value in canary.items()}
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in wide.items():
        groups.setdefault(group_of(name) if clip.layers == "each" else "", {})[name] = value
    limit = clip.limit(len({group_of(name) for name in parameters}))
    found = {name: part for group in groups.values() for name, part in clip_gradients(group, limit, clip.norm).items()}
    return {name: found[name].to(parameters[name].device) for name in wide}


def find_lone_share(parameters: Iterable[str], norm: str, layers: str) -> float:
    """Return which share of the clip norm a canary in a single layer may take up."""
    return Clip(1.0, norm, layers).limit(len({group_of(name) for name in parameters}))
