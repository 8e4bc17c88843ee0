"""How many examples fit into memory at a time, from one pass over made-up records.

Book-keeping holds what autograd keeps of a pass, the gradients of the layers' outputs, and the gradients of single
examples where a layer writes them out. All of it grows with the number of examples, and all of it follows from shapes:
nothing is timed, and nothing but the form of a record decides.

>>> import torch
>>> from torch import nn
>>> from dpfed.training.forward import of_model
>>> model, loss = nn.Conv1d(1, 200, 10_000), lambda output, _: output.flatten(1).sum(1)
>>> rows(model, of_model(model, loss, torch.ones(3, 1, 10_000), torch.ones(3)))
131
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from dpfed.training.capture import Capture
from dpfed.training.forward import Forward
from dpfed.training.generators import pinned
from dpfed.training.rules import registry
from dpfed.training.rules.pieces import Call

# What one micro-batch may take: a constant, so that sums are rounded alike on every machine.
BUDGET = 1 << 30
# The peak of a step over what autograd keeps of its forward pass: gradients of outputs, and buffers of kernels. It was
# 4.1 to 4.7 for a U-Net, a ResNet and a transformer in their first step, which times methods and takes the most.
TIMES = 4
# Above this the rounding of a float32 sum of clipped gradients could use up the margin of `clip.TOLERANCE`.
MOST = 1024
UNKNOWN = 256  # where nothing can be known of a model


def rows(model: nn.Module, forward: Forward) -> int:
    """Return how many examples like those of the pass may go through the model at a time."""
    try:
        each = bytes_each(model, forward)
    except RuntimeError:  # torch.func in a model shows nobody what it keeps
        return UNKNOWN
    return min(MOST, max(1, BUDGET // max(1, each)))


def bytes_each(model: nn.Module, forward: Forward) -> int:
    """Return about how many bytes one example takes: for what autograd keeps of it, and for its own gradients."""
    own = _places(chain(model.parameters(), model.buffers()))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    capture = Capture(model)
    try:
        with pinned(), torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
            losses = forward.losses()  # held until all was counted, or a place could be taken a second time
            written = sum(map(_written, capture.taken()))
            held = sum(size for place, size in kept.items() if place not in own)
        del losses
    finally:
        capture.close()
    return TIMES * held // forward.size + written


def _places(tensors: Iterable[Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def _written(call: Call) -> int:
    """Return the bytes of one example's gradient for a layer, if it is written out."""
    rule = registry.rule_of(call.module)
    is_factored = rule is registry.LINEAR and call.x is not None and call.x.dim() == 2
    if is_factored or rule in (registry.EMBEDDING, registry.BAG):
        return 0
    parameters = [value for value in call.module.parameters(recurse=False) if value.requires_grad]
    return sum(value.numel() * value.element_size() for value in parameters)
