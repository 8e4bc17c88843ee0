"""Normalisation layers: out = x̂·weight + bias, so one example's gradients are sums of x̂·g and of g.

The normalised input x̂ comes from the mean and spread that the forward pass saved (private attributes of torch,
the fast method: "saved") or is computed again by the public function (always possible: "again").

Where an input's mean is κ times its spread, the mean's own rounding leaves x̂ an error of about κ·2⁻²⁴, in float32,
whoever computes it. At κ = 100 "saved" is 8e-6 from float64 (median of 60 models; "again" 6e-6) and vmap(grad) 8e-6, so
that the two are up to 2e-5 apart and neither is the wrong one.

>>> import torch
>>> spread = sum_to_last_axes(torch.ones(2, 3, 4), torch.ones(2, 3, 4), torch.Size([4]))
>>> spread.tolist()
[[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfed.training.engine.rules.contributions import Call, Materialised, Method, rows_of

SAVES = {"NativeGroupNormBackward0": nn.GroupNorm, "NativeLayerNormBackward0": nn.LayerNorm}
BY_CHANNEL = (nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
DIMENSIONS: dict[type[nn.Module], int] = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}
KINDS: tuple[type[nn.Module], ...] = (*BY_CHANNEL, nn.LayerNorm, nn.RMSNorm)


def read_statistics(node: Any) -> tuple[Tensor, Tensor] | None:
    """Return mean and 1/spread as the forward pass saved them, None if this version of torch does not show them."""
    if node.name() not in SAVES:
        return None
    mean, rstd = getattr(node, "_saved_result1", None), getattr(node, "_saved_result2", None)
    return (mean, rstd) if isinstance(mean, Tensor) and isinstance(rstd, Tensor) else None


def methods(call: Call) -> dict[str, Method]:
    """Return the fast method where statistics were saved, and the one that computes them again."""
    if call.statistics is None:
        return {"again": direct}
    return {
        "saved": differentiate_group_norm if isinstance(call.module, nn.GroupNorm) else differentiate_layer_norm,
        "again": direct,
    }


def direct(call: Call) -> Materialised:
    """Write out the gradients from an x̂ that public functions compute again."""
    x, g = call.pair
    return sum_to_parameters(call, normalise(call.module, x) * g if "weight" in call.trainable else g, g)


def differentiate_layer_norm(call: Call) -> Materialised:
    """Write out the gradients of a LayerNorm from its saved statistics."""
    x, g = call.pair
    if call.statistics is None:
        return direct(call)
    mean, rstd = call.statistics
    return sum_to_parameters(call, (x - mean).mul_(rstd).mul_(g), g)


def differentiate_group_norm(call: Call) -> Materialised:
    """Write out the gradients of a GroupNorm by torch's own backward kernel, with the batch folded into channels."""
    x, g = call.pair
    module = call.module
    if call.statistics is None or not isinstance(module, nn.GroupNorm):
        return direct(call)
    mean, rstd = call.statistics
    size, channels = x.shape[:2]
    flat = (1, size * channels, -1)
    _, weights, biases = torch.ops.aten.native_group_norm_backward(
        g.reshape(flat).contiguous(),
        x.reshape(flat).contiguous(),
        mean.reshape(1, -1),
        rstd.reshape(1, -1),
        module.weight.detach().to(x.dtype).repeat(size),
        1,
        size * channels,
        x[0, 0].numel(),
        size * module.num_groups,
        [False, True, True],
    )
    found = {"weight": weights.view(size, channels), "bias": biases.view(size, channels)}
    return Materialised({name: rows_of(found[name]) for name in call.trainable})


def sum_to_parameters(call: Call, products: Tensor, g: Tensor) -> Materialised:
    """Sum over all axes but the example and the parameter's own."""
    gather = sum_by_channel if isinstance(call.module, BY_CHANNEL) else sum_to_last_axes
    parts = {"weight": products, "bias": g}
    return Materialised(
        {name: rows_of(gather(parts[name], g, call.module.get_parameter(name).shape)) for name in call.trainable}
    )


def sum_by_channel(values: Tensor, g: Tensor, _: torch.Size) -> Tensor:
    """Sum over all positions of each channel: (B, C)."""
    return values.reshape(*g.shape[:2], -1).sum(2)


def sum_to_last_axes(values: Tensor, g: Tensor, shape: torch.Size) -> Tensor:
    """Sum over all positions before the normalised axes: (B, *shape)."""
    return values.reshape(g.shape[0], -1, *shape).sum(1)


def normalise(module: nn.Module, x: Tensor) -> Tensor:
    """Return the layer's input after normalisation, before weight and bias."""
    if isinstance(module, nn.GroupNorm):
        return functional.group_norm(x, module.num_groups, eps=module.eps)
    if isinstance(module, nn.LayerNorm):
        return functional.layer_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.RMSNorm):
        return functional.rms_norm(x, list(module.normalized_shape), eps=module.eps)
    return functional.instance_norm(x, eps=float(module.eps))  # type: ignore[arg-type]
