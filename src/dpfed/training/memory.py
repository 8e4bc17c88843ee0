"""How many examples fit into memory at a time, from one pass over made-up records.

Book-keeping holds what autograd keeps of a pass, the gradients of the layers' outputs, and the gradients of single
examples where a layer writes them out. All of it grows with the number of examples, and all of it follows from shapes:
nothing is timed, and nothing but the form of a record decides.

>>> import torch
>>> from torch import nn
>>> from dpfed.training.engine.forward import make_forward
>>> model, loss = nn.Conv1d(1, 200, 10_000), lambda output, _: output.flatten(1).sum(1)
>>> count_rows(model, make_forward(model, loss, torch.ones(3, 1, 10_000), torch.ones(3)), is_written=True)
131
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from dpfed.training.engine.capture import Capture
from dpfed.training.engine.forward import Forward
from dpfed.training.engine.rules import registry
from dpfed.training.engine.rules.contributions import Call
from dpfed.training.generators import pinned

# What one micro-batch may take: a constant, so that sums are rounded alike on every machine.
BUDGET = 1 << 30
# The peak of a step over what autograd keeps of its forward pass: gradients of outputs, and buffers of kernels. It was
# 4.1 to 4.7 for a U-Net, a ResNet and a transformer in their first step, which times methods and takes the most.
TIMES = 4
# Above this the rounding of a float32 sum of clipped gradients could use up the margin of `clip.TOLERANCE`.
MOST = 1024
UNKNOWN = 256  # examples at a time, where a model does not show what it keeps


def count_rows(model: nn.Module, forward: Forward, *, is_written: bool = False) -> int:
    """Return how many examples like these fit into memory; `is_written` says that all gradients are written out."""
    try:
        each = estimate_bytes(model, forward, is_written=is_written)
    except RuntimeError:  # torch.func in a model shows nobody what it keeps
        return UNKNOWN
    return min(MOST, max(1, BUDGET // max(1, each)))


def estimate_bytes(model: nn.Module, forward: Forward, *, is_written: bool = False) -> int:
    """Return about how many bytes one example takes: what autograd saves for it, and its own gradients."""
    own = _list_addresses(chain(model.parameters(), model.buffers()))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a result that its own node keeps, as that of softmax, would keep the graph for ever

    capture = Capture(model)
    try:
        with pinned(), torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
            losses = forward.losses()  # held until all was counted, or a place could be taken a second time
            written = sum(_count_written(call, is_written) for call in capture.take())
            held = sum(size for place, size in kept.items() if place not in own)
        del losses
    finally:
        capture.close()
    return TIMES * held // forward.size + written


def _list_addresses(tensors: Iterable[Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def _count_written(call: Call, is_written: bool) -> int:
    """Return the bytes of one example's gradient of a layer; 0 for a layer that never writes it out."""
    rule = registry.rule_of(call.module)
    is_factored = rule is registry.LINEAR and call.x is not None and call.x.dim() == 2
    is_hidden = rule.hides is not None and not is_written and rule.hides(call)
    if is_factored or is_hidden or rule in (registry.EMBEDDING, registry.BAG):
        return 0
    parameters = [value for value in call.module.parameters(recurse=False) if value.requires_grad]
    return sum(value.numel() * value.element_size() for value in parameters)
