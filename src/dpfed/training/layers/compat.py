"""Which models DP-SGD can train: those in which no example's output depends on another example.

Clipping bounds what one example adds to the sum; a layer that mixes examples, or keeps statistics of them, lets it act
through the others as well. Such layers are refused by name, with what to use instead.

>>> from torch import nn
>>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8))
>>> check(model)
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: 1 is a BatchNorm2d, which mixes the examples of a batch: use GroupNorm, or fix(model)
>>> fix(model)[1].num_groups
2
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.overrides import TorchFunctionMode

from dpfed.errors import InvalidArgument
from dpfed.training.engine.copied import Copy
from dpfed.training.engine.forward import tensors_of
from dpfed.training.engine.rules import embedding
from dpfed.training.generators import pinned

Buffers = Mapping[str, Tensor]

GROUPS = 32
# A group of one channel without positions has no spread to divide by.
CHANNELS_PER_GROUP = 4
# How far, relative to the largest output, rounding alone may move an output when a neighbour changes.
DRIFT = 1e-4
# Operations of torch that give nothing but random numbers.
_RANDOM = frozenset(
    ["bernoulli", "bernoulli_", "uniform_", "normal_", "exponential_", "rand", "rand_like", "randn", "randn_like"]
)


def check(model: nn.Module) -> None:
    """Refuse a model with a layer that mixes examples or keeps statistics of them."""
    for path, module in model.named_modules():
        if message := _find_refusal(module):
            raise InvalidArgument("model", f"{path or 'the model'} is {message}")
        embedding.check(path, module)


def fix(model: nn.Module) -> nn.Module:
    """Return a copy in which GroupNorm stands for BatchNorm, and InstanceNorm keeps no statistics.

    Build the optimizer after it: the copy has parameters of its own.
    """
    fixed = copy.deepcopy(model)
    made: dict[int, nn.Module] = {}
    # Also under its other names: a module that stands in two places has one replacement.
    for path, module in list(fixed.named_modules(remove_duplicate=False)):
        if id(module) not in made and (replacement := _make_replacement(module)) is not None:
            made[id(module)] = replacement
        if id(module) in made and not path:
            return made[id(module)]
        if id(module) in made:
            fixed.set_submodule(path, made[id(module)])
    check(fixed)
    return fixed


def probe(model: nn.Module, inputs: Tensor) -> None:
    """Refuse a model in which one example, changed or removed, moves the output of another, or a buffer.

    It runs the model in its present mode with the same random numbers each time and restores its buffers. Not even a
    count of its calls may be kept: how often a model runs in a step depends on how many records were drawn.
    """
    if len(inputs) < 2:
        raise InvalidArgument("inputs", f"inputs must hold at least two examples, got {len(inputs)}: one cannot mix")
    for place in (0, len(inputs) // 2, len(inputs) - 1):
        changed = inputs.clone()
        changed[place] = inputs[place - 1] if not inputs.is_floating_point() else inputs[place] * -2 + 1
        (before, _, left), (after, found, left_by_change) = (run_trial(model, values) for values in (inputs, changed))
        kept = [row for row in range(len(inputs)) if row != place]
        for one, two in zip(before, after, strict=True):
            _require_axis(one, len(inputs))
            _require_still(one[kept], two[kept], "changing")
        _require_nothing_kept(found, left, left_by_change)
    _probe_removal(model, inputs)


def _probe_removal(model: nn.Module, inputs: Tensor) -> None:
    """Refuse a model whose output depends on the number of examples, or on their places in the batch.

    A model that draws random numbers draws others when a row is missing. So they are all one constant here; where they
    are not (random orders, numbers of numpy, dropout inside a fused layer), this is not checked.
    """
    with _ConstantNumbers():
        whole, again = (run_trial(model, inputs, seed)[0] for seed in (0, 1))
        if not all(map(_is_same, whole, again)):
            return
        for place in (0, len(inputs) - 1):
            kept = [row for row in range(len(inputs)) if row != place]
            for one, two in zip(whole, run_trial(model, inputs[kept])[0], strict=False):
                _require_axis(two, len(kept))
                if one.shape[1:] == two.shape[1:]:
                    _require_still(one[kept], two, "removing")


class _ConstantNumbers(TorchFunctionMode):
    """A mode of torch in which random numbers are one constant, and dropout keeps everything."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and overwrite random numbers by the constant."""
        name = getattr(function, "__name__", "")
        if "dropout" in name and args and isinstance(args[0], Tensor):
            return args[0].clone()
        found = function(*args, **(kwargs or {}))
        if name in _RANDOM and isinstance(found, Tensor) and found.is_floating_point():
            found.fill_(1.0 if "bernoulli" in name else 0.5)
        return found


def _is_same(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and not _differ(one, two)


def _require_axis(output: Tensor, size: int) -> None:
    if output.shape[:1] != (size,):
        message = (
            f"the model's output of shape {tuple(output.shape)} has not the {size} examples as first axis, so they "
            "cannot be clipped one by one: return one row for each example"
        )
        raise InvalidArgument("model", message)


def _require_still(before: Tensor, after: Tensor, verb: str) -> None:
    drift = DRIFT if not before.is_floating_point() else max(DRIFT, 8 * torch.finfo(before.dtype).eps)
    one, two = before.double(), after.double()
    scale = one.nan_to_num(0.0, 0.0, 0.0).abs().amax() if one.numel() else 0.0  # what is not finite hides nothing
    moved = ((one - two).abs() > drift * (1e-6 + scale)) | (one.isfinite() != two.isfinite())
    if bool(moved.any()):
        message = f"{verb} one example moved the output of another, or its loss, which clipping does not bound"
        remedy = "find what mixes the batch, or divides by how many there are, and remove it"
        raise InvalidArgument("model", f"{message}: {remedy}")


def _require_nothing_kept(found: Buffers, left: Buffers, left_by_change: Buffers) -> None:
    """Refuse buffers that depend on the examples, or on how often the model ran."""
    remedy = "remove it, or train with it switched off"
    if name := _find_changed(left, left_by_change):
        message = f"the forward pass stores something of the examples in the buffer {name}, and later steps use it"
        raise InvalidArgument("model", f"{message} without noise: {remedy}")
    if name := _find_changed(found, left):
        message = f"each forward pass changes the buffer {name}, and how many there are depends on the records drawn"
        raise InvalidArgument("model", f"{message}: {remedy}")


def _find_changed(before: Buffers, after: Buffers) -> str | None:
    """Return the name of a buffer that changed, if there is one."""
    for name in before.keys() | after.keys():
        one, two = before.get(name), after.get(name)
        if one is None or two is None or one.shape != two.shape or _differ(one, two):
            return name
    return None


def _differ(one: Tensor, two: Tensor) -> bool:
    return bool(((one != two) & ~((one != one) & (two != two))).any())  # two NaN are the same


def run_trial(model: nn.Module, inputs: Tensor, seed: int = 0) -> tuple[list[Tensor], Buffers, Buffers]:
    """Run the model once; return its outputs, and its buffers before and after, and restore all state."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    copies = {name: (Copy(parameter), parameter._version) for name, parameter in model.named_parameters()}
    with pinned(seed), torch.no_grad():
        found = list(tensors_of(model(inputs)))
        left = {name: buffer.clone() for name, buffer in model.named_buffers()}
        for name, buffer in model.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
    _require_unwritten(model, copies)
    return found, buffers, left


def _require_unwritten(model: nn.Module, copies: Mapping[str, tuple[Copy, int]]) -> None:
    """Refuse a model whose forward pass has written into parameters; restore their values."""
    for name, parameter in model.named_parameters():
        before, version = copies.get(name, (Copy(parameter), -1))
        is_written = before.is_written and not torch.equal(parameter, before.values)
        if is_written or parameter._version != version or parameter is not before.tensor:
            for own, _ in copies.values():
                own.bring_back()
            message = f"the forward pass changes the parameter {name}, which no noise covers"
            raise InvalidArgument("model", f"{message}: remove what does so, such as max_norm of an embedding")


def _find_refusal(module: nn.Module) -> str | None:
    kind = type(module).__name__
    article = "an" if kind[0] in "AEIOU" else "a"
    if isinstance(module, _InstanceNorm):
        if not module.track_running_stats:
            return None
        return f"{article} {kind} that keeps running statistics of private data: use track_running_stats=False"
    if isinstance(module, _BatchNorm):
        return f"{article} {kind}, which mixes the examples of a batch: use GroupNorm, or fix(model)"
    if isinstance(module, nn.EmbeddingBag) and (module.max_norm is not None or module.scale_grad_by_freq):
        return f"{article} {kind} with max_norm or scale_grad_by_freq, which mixes examples: make it without them"
    if module.training and any(map(_is_spectral, (module, *module._forward_pre_hooks.values()))):
        return f"{article} {kind} that takes a step of its spectral norm at each call: switch it off by eval()"
    if getattr(module, "track_running_stats", False):
        return f"{article} {kind} that keeps running statistics of private data: use a layer without them"
    return None


def _is_spectral(part: object) -> bool:
    return isinstance(part, _SpectralNorm | SpectralNorm)


def _make_replacement(module: nn.Module) -> nn.Module | None:
    """Return a layer to put in the place of this one, with its weights; None if it can stay."""
    if isinstance(module, _InstanceNorm):
        return _drop_statistics(module) if module.track_running_stats else None
    if not isinstance(module, _BatchNorm):
        return None
    channels = module.num_features
    if not channels:
        raise InvalidArgument(
            "model", "a lazy BatchNorm has no size yet, so it cannot be replaced: run the model once, then fix(model)"
        )
    groups = math.gcd(channels, GROUPS)
    while groups > 1 and channels // groups < CHANNELS_PER_GROUP:
        groups //= 2
    norm = nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine)
    return _copy_affine(module, norm)


def _drop_statistics(module: _InstanceNorm) -> nn.Module:
    norm = type(module)(module.num_features, eps=module.eps, affine=module.affine)
    return _copy_affine(module, norm)


def _copy_affine(old: nn.Module, new: nn.Module) -> nn.Module:
    own = dict(old.named_parameters(recurse=False))
    with torch.no_grad():
        for name, parameter in new.named_parameters():
            parameter.data = own[name].detach().clone()
            parameter.requires_grad_(own[name].requires_grad)
    return new.train(old.training)
