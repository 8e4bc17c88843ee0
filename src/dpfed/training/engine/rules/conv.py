"""Convolutions, plain and transposed, in one to three dimensions.

Which way to write out per-example gradients is fastest depends on the shape: one grouped convolution for the whole
batch (the examples become groups), a product with the unfolded input, one product per offset of the kernel, or one
kernel call per example. Where there are few positions and many weights nothing is written out: norms come from Gram
matrices, and the sum from torch's own kernel. All give the same numbers; the engine times them at the first step. A
transposed convolution is the plain one with input and output gradient exchanged.

>>> import torch
>>> layer = torch.nn.Conv2d(1, 1, 3, padding="same", dilation=2)
>>> view = Geometry.of(layer, torch.ones(2, 1, 5, 5), torch.ones(2, 1, 5, 5))
>>> view.x.shape, view.padding
(torch.Size([2, 1, 9, 9]), (0, 0))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfed.training.engine.rules import general
from dpfed.training.engine.rules.contributions import Call, Materialised, Method, Piece, Rows
from dpfed.training.engine.rules.gram import Grams, multiply_patches, multiply_rows
from dpfed.training.engine.rules.linear import Ghost, balance, can_be_ghost, rounding_share

PLAIN: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED: tuple[type[nn.Module], ...] = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
KINDS = PLAIN + TRANSPOSED
DIMENSIONS = {kind: 3 + place % 3 for place, kind in enumerate(KINDS)}
# The input unfolded for a few examples, which is read again at once, stays in the cache.
CACHED_BYTES = 2**20
SMALL = 64  # positions of an output that are unfolded channel by channel
POSITIONS = 256  # that a kernel adds up in float32
FAR = 64  # times as many weights as squared positions: Gram matrices then cost less than what would be written out
MANY = 2**14  # weights: of fewer, whatever is written out stays small
CHANNELS = 32  # of fewer, unfolding and multiplying is faster than adding products of pixels
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution of x whose output has gradient g: numbers only, padding made explicit, one dimension as two."""

    x: Tensor
    g: Tensor
    weight: torch.Size
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, module: nn.Module, x: Tensor, g: Tensor) -> Geometry:
        """Return the geometry of one call of a plain or transposed convolution."""
        if not isinstance(module, Convolution):
            raise TypeError(type(module).__name__)
        padding = module.padding
        if isinstance(module, TRANSPOSED):
            x, g = g, x
        elif isinstance(padding, str) or module.padding_mode != "zeros":
            x, padding = pad(module, x), (0,) * len(module.kernel_size)
        return cls.plain(x, g, (module.kernel_size, module.stride, padding, module.dilation), module.groups)

    @classmethod
    def plain(cls, x: Tensor, g: Tensor, sizes: Iterable[Iterable[int | str]], groups: int) -> Geometry:
        """Return the geometry of a plain convolution by its kernel, stride, padding and dilation."""
        kernel, stride, pads, dilation = (tuple(int(s) for s in size) for size in sizes)
        if len(kernel) == 1:
            x, g = x.unsqueeze(2), g.unsqueeze(2)
            kernel, stride, pads, dilation = (1, *kernel), (1, *stride), (0, *pads), (1, *dilation)
        shape = torch.Size((g.shape[1], x.shape[1] // groups, *kernel))
        return cls(x, g, shape, kernel, stride, pads, dilation, groups)


def pad(module: nn.Module, x: Tensor) -> Tensor:
    """Return the input with its padding written out, for padding that is a word or not zeros."""
    if not isinstance(module, Convolution):
        raise TypeError(type(module).__name__)
    pads: list[int] = []
    for place in reversed(range(len(module.kernel_size))):
        total = module.dilation[place] * (module.kernel_size[place] - 1) if module.padding == "same" else 0
        left, right = total // 2, total - total // 2
        if not isinstance(module.padding, str):
            left = right = module.padding[place]
        pads += [left, right]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(x, pads, mode=mode)


def has_plain_twin(module: nn.Module, x: Tensor, g: Tensor) -> bool:
    """Return whether exchanging input and output gradient makes this call a plain convolution.

    It does, unless a transposed one was asked for as many outputs beyond its reach as a stride or more.
    """
    if not isinstance(module, Convolution):
        raise TypeError(type(module).__name__)
    if not isinstance(module, TRANSPOSED):
        return True
    for place, kernel in enumerate(module.kernel_size):
        reach = (x.shape[2 + place] - 1) * module.stride[place] + module.dilation[place] * (kernel - 1) + 1
        extra = g.shape[2 + place] - (reach - 2 * int(module.padding[place]))
        if extra >= module.stride[place]:
            return False
    return True


def methods(call: Call) -> dict[str, Method]:
    """Return the ways that fit this call's kernel, stride and groups."""
    if "weight" not in call.trainable:
        return {"bias": bias_only}
    if not has_plain_twin(call.module, *call.pair):
        return {"leaf": general.direct}
    view = Geometry.of(call.module, *call.pair)
    ways: dict[str, Method] = {"grouped": direct}
    if view.x[0].numel() * view.weight[0] > 100_000:
        ways["loop"] = write_out(loop)
    if view.groups > 1:
        is_small = len(view.kernel) == 2 and is_by_channel(view) and view.g[0, 0].numel() <= SMALL
        return {**ways, "by_channel": write_out(by_channel)} if is_small else ways
    if set(view.kernel) == {1} and not any(view.padding):
        ways.update(pointwise=write_out(pointwise))
    elif len(view.kernel) == 2:
        ways.update(_unfolding(view))
    return _with_ghosts(call, view, ways) if len(view.kernel) == 2 else ways


def _unfolding(view: Geometry) -> dict[str, Method]:
    """Return the ways of a convolution in two dimensions, or in one, without groups."""
    ways: dict[str, Method] = {"unfold": write_out(unfold)}
    if set(view.dilation) == {1}:
        ways.update(channels_last=write_out(channels_last))
    if set(view.stride) == {1}:
        ways.update(shift=write_out(shift))
    if is_line(view):
        ways.update(taps=write_out(taps))
    return ways


def _with_ghosts(call: Call, view: Geometry, ways: dict[str, Method]) -> dict[str, Method]:
    """Return the ways, and those that write nothing out."""
    if not isinstance(call.module, PLAIN) or not can_be_ghost(view.g):
        return ways
    return {**ways, "ghost": ghost, "kernel": kernel, "multiplied": multiplied}


def hides(call: Call) -> bool:
    """Return whether a layer is a convolution of so few positions that its gradients need not be written out."""
    if not isinstance(call.module, nn.Conv1d | nn.Conv2d) or call.module.groups > 1:
        return False
    weight = call.module.weight
    return can_be_ghost(weight) and _has_far_fewer_positions(weight.shape, call.shape)


def _has_far_fewer_positions(weight: torch.Size, output: torch.Size) -> bool:
    return max(MANY, FAR * math.prod(output[2:]) ** 2) < weight.numel()


def write_out(kernel: Callable[[Geometry], Rows]) -> Method:
    """Return a method that writes out weight gradients by the kernel, and bias gradients by a sum."""

    def method(call: Call) -> Piece:
        return join(call, kernel(Geometry.of(call.module, *call.pair)))

    return method


def join(call: Call, weights: Rows | None) -> Materialised:
    """Return the weight's rows in the module's own shape, and the bias's."""
    rows = {}
    if weights is not None:
        shape = call.module.get_parameter("weight").shape
        rows["weight"] = Rows(weights.values, shape, weights.layout, weights.order)
    if "bias" in call.trainable:
        _, g = call.pair
        rows["bias"] = Rows(g.flatten(2).sum(2), g.shape[1:2])
    return Materialised(rows)


def bias_only(call: Call) -> Materialised:
    """Return the gradients of the bias beside a frozen weight."""
    return join(call, None)


def direct(call: Call) -> Materialised:
    """Compute gradients by one grouped convolution; by vmap where this torch has no such kernel."""
    if "weight" not in call.trainable:
        return bias_only(call)
    if not has_plain_twin(call.module, *call.pair):
        return general.direct(call)
    try:
        return join(call, grouped(Geometry.of(call.module, *call.pair)))
    except (AttributeError, NotImplementedError):
        return general.direct(call)


def backward(view: Geometry, x: Tensor, g: Tensor, weight: Tensor, groups: int) -> Tensor:
    """Compute the weight's gradient by torch's own kernel."""
    sizes = (view.stride, view.padding, view.dilation)
    found = torch.ops.aten.convolution_backward(
        g, x, weight, None, *sizes, False, [0] * len(view.stride), groups, [False, True, False]
    )
    gradient: Tensor = found[1]
    return gradient


def grouped(view: Geometry) -> Rows:
    """Compute all examples at once, as the groups of one convolution."""
    size, channels = view.x.shape[:2]
    outputs = view.g.shape[1]
    weight = view.x.new_empty(size * outputs, *view.weight[1:])  # not read; expanded from one number it would be copied
    x = view.x.reshape(1, size * channels, *view.x.shape[2:])
    g = view.g.reshape(1, size * outputs, *view.g.shape[2:])
    return Rows(backward(view, x, g, weight, size * view.groups).reshape(size, -1), view.weight)


def loop(view: Geometry) -> Rows:
    """Call torch's kernel once per example."""
    weight = view.x.new_empty(1).expand(view.weight)
    rows = view.x.new_empty(view.x.shape[0], view.weight.numel())
    for place, row in enumerate(rows):
        one = slice(place, place + 1)
        row.copy_(backward(view, view.x[one], view.g[one], weight, view.groups).reshape(-1))
    return Rows(rows, view.weight)


def pointwise(view: Geometry) -> Rows:
    """Multiply plainly: the kernel has one point."""
    x = view.x
    for place, stride in enumerate(view.stride):
        if stride > 1:
            steps = [slice(None)] * (2 + place) + [slice(None, None, stride)]
            x = x[tuple(steps)]
    for place, length in enumerate(view.g.shape[2:]):
        x = x.narrow(2 + place, 0, length)
    return Rows(torch.bmm(view.g.flatten(2), x.flatten(2).transpose(1, 2)).flatten(1), view.weight)


def columns(view: Geometry) -> Tensor:
    """Return the input under the kernel at every output position: (B, C·k, T)."""
    found = functional.unfold(view.x, view.kernel, view.dilation, view.padding, view.stride)
    heights = (view.x.shape[2] + 2 * view.padding[0] - view.dilation[0] * (view.kernel[0] - 1) - 1) // view.stride[0]
    if heights + 1 != view.g.shape[2] or found.shape[2] != view.g[0, 0].numel():
        raise RuntimeError(f"{found.shape[2]} positions for an output of {tuple(view.g.shape[2:])}")
    return found


def unfold(view: Geometry) -> Rows:
    """Multiply by the unfolded input."""
    return Rows(torch.bmm(view.g.flatten(2), columns(view).transpose(1, 2)).flatten(1), view.weight)


def is_by_channel(view: Geometry) -> bool:
    """Return whether each channel has a kernel of its own."""
    return view.groups == view.x.shape[1] == view.g.shape[1]


def by_channel(view: Geometry) -> Rows:
    """Multiply by the unfolded input, each channel by itself."""
    size, channels, positions = view.g.flatten(2).shape
    found = columns(view).view(size, channels, -1, positions)
    return Rows(found.mul_(view.g.flatten(2).unsqueeze(2)).sum(3).flatten(1), view.weight)


def channels_last(view: Geometry) -> Rows:
    """Multiply by the input unfolded channels last: each kernel row is then one contiguous run."""
    size, channels = view.x.shape[:2]
    height, width = view.g.shape[2:]
    (rows, cols), (down, right), (top, left) = view.kernel, view.stride, view.padding
    x = functional.pad(view.x, (left, left, top, top)).permute(0, 2, 3, 1).contiguous()
    step = x.stride()
    windows = x.as_strided(
        (size, height, width, rows, cols * channels), (step[0], step[1] * down, step[2] * right, step[1], 1)
    )
    g, length = view.g.flatten(2), rows * cols * channels
    found = x.new_empty(size, g.shape[1], length)
    at_once = max(1, CACHED_BYTES // (height * width * length * x.element_size()))
    for some in (slice(start, start + at_once) for start in range(0, size, at_once)):
        torch.bmm(g[some], windows[some].reshape(-1, height * width, length), out=found[some])
    layout = (view.weight[0], rows, cols, channels)
    return Rows(found.flatten(1), view.weight, layout, (0, 3, 1, 2))


def shift(view: Geometry) -> Rows:
    """Multiply once per offset of the kernel, on the padded input as it lies in memory (stride 1 only)."""
    size, channels, _, width = view.x.shape
    outputs, _, columns_out = view.g.shape[1:]
    (rows, cols), (top, left) = view.kernel, view.padding
    wide = width + 2 * left
    # One row more at the end, so that the last shifted run does not end beyond the padded input.
    x = functional.pad(view.x, (left, left, top, top + 1)).flatten(2)
    g = functional.pad(view.g, (0, wide - columns_out)).flatten(2)
    found = view.x.new_empty(rows * cols, size, outputs, channels)
    for place in range(rows * cols):
        start = (place // cols) * view.dilation[0] * wide + (place % cols) * view.dilation[1]
        torch.bmm(g, x[:, :, start : start + g.shape[2]].transpose(1, 2), out=found[place])
    return Rows(found.flatten(2), view.weight, (rows, cols, outputs, channels), (2, 3, 0, 1))


def is_line(view: Geometry) -> bool:
    """Return whether the convolution is along one axis, point by point and without groups."""
    is_one = view.kernel[0] == view.x.shape[2] == view.g.shape[2] == 1 and not view.padding[0]
    return is_one and len(view.kernel) == 2 and set(view.stride) == {1} and view.groups == 1


def taps(view: Geometry) -> Rows:
    """Multiply once per point of a kernel along one axis, without writing out padding."""
    found = by_taps(view)
    return Rows(found.flatten(2), view.weight, (1, len(found), *found.shape[2:]), (2, 3, 0, 1))


def by_taps(view: Geometry) -> Tensor:
    """Return the gradients of the points of the kernel, (points, B, outputs, channels)."""
    x, g, (points, step) = view.x.squeeze(2), view.g.squeeze(2), (view.kernel[1], view.dilation[1])
    found = x.new_zeros(points, len(x), g.shape[1], x.shape[1])
    for point in range(points):
        start = point * step - view.padding[1]  # of the input, where the output starts
        first, end = max(0, -start), min(g.shape[2], x.shape[2] - start)
        if first < end:
            met = x[:, :, first + start : end + start]
            torch.bmm(g[:, :, first:end], met.transpose(1, 2), out=found[point])
    return found


def ghost(call: Call) -> Ghost:
    """Take norms from Gram matrices where written-out gradients would not fit."""
    view = Geometry.of(call.module, *call.pair)
    x, g = columns(view).transpose(1, 2), view.g.flatten(2).transpose(1, 2)
    return Ghost(x, g, call.trainable, call.module.get_parameter("weight").shape)


def kernel(call: Call) -> Kernel:
    """Take norms from Gram matrices where there are few positions, and the sum from torch's own kernel."""
    view = Geometry.of(call.module, *call.pair)
    return Kernel(view, call.trainable, call.module.get_parameter("weight").shape)


def multiplied(call: Call) -> Piece:
    """Take norms from Gram matrices, and the sum from a product with the unfolded input."""
    return replace(kernel(call), is_multiplied=True)


def multiply_inputs(view: Geometry) -> Tensor:
    """Return the products of the inputs of any two output positions: from those of pixels, unless these are more."""
    pixels, positions = view.x[0, 0].numel(), view.g[0, 0].numel()
    if view.x.shape[1] >= CHANNELS and pixels**2 <= 2 * positions**2 * math.prod(view.kernel):
        sizes = (view.kernel, view.stride, view.padding, view.dilation)
        return multiply_patches(view.x, view.g.shape[2:], sizes)
    return multiply_rows(columns(view).double().transpose(1, 2))


@dataclass(frozen=True, slots=True)
class Kernel:
    """Norms from Gram matrices, and the sum by the kernel that plain training uses, in float32 and a part at a time.

    In whatever order the kernel adds the products of n positions, each is rounded at most n + 1 times by 2⁻²⁴. Parts
    are added up in float64, and the sum of all is rounded once: the share of Σₜ‖xₜ‖‖gₜ‖ that it may be off by, with the
    scaling, is at most (n + 4)·2⁻²⁴, however many examples there are. The norm has room for it, beside that for its own
    rounding (`linear.Ghost`).
    """

    view: Geometry
    names: tuple[str, ...]
    shape: torch.Size
    is_multiplied: bool = False  # the sum is a product of matrices, whose additions are as many

    def norms(self) -> Tensor:
        """Return the norms in float64, with room for all rounding."""
        inputs = multiply_inputs(self.view) if "weight" in self.names else None
        outputs = multiply_rows(self.view.g.double().flatten(2).transpose(1, 2))
        grams = Grams(inputs, outputs, "bias" in self.names)
        share = rounding_share(self._roundings) + self._share()
        return grams.squares().sqrt_().add_(grams.reach().mul_(share))

    def sum_weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Call the kernel once for each part, and add up."""
        view, sums = self.view, {}
        weights = coefficients.to(view.g.dtype).view(-1, *[1] * (view.g.dim() - 1))
        scaled = view.g * weights
        if "weight" in self.names:
            x, g = balance(columns(view).transpose(1, 2) if self.is_multiplied else view.x, view.g)
            balanced = scaled if g is view.g else g * weights
            parts = zip(torch.split(x, self._rows()), torch.split(balanced, self._rows()), strict=True)
            sums["weight"] = _add_up([self._sum(x, g) for x, g in parts]).reshape(self.shape)
        if "bias" in self.names:
            sums["bias"] = scaled.flatten(2).sum(2, dtype=torch.float64).sum(0).to(scaled.dtype)
        return sums

    def only(self, names: Collection[str]) -> Kernel:
        """Return the same for the weight or the bias alone."""
        return replace(self, names=tuple(names))

    def _sum(self, x: Tensor, g: Tensor) -> Tensor:
        if self.is_multiplied:
            return g.flatten(2).transpose(0, 1).flatten(1) @ x.flatten(0, 1)
        return backward(self.view, x, g, x.new_empty(1).expand(self.view.weight), 1)

    @property
    def _roundings(self) -> int:
        outputs, *inputs = self.view.weight
        return math.prod(inputs) + outputs + 2 * self.view.g[0, 0].numel()

    def _rows(self) -> int:
        return max(1, POSITIONS // self.view.g[0, 0].numel())

    def _share(self) -> float:
        return (self._rows() * self.view.g[0, 0].numel() + 4) * 2.0**-24


def _add_up(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of the parts, added in float64 and rounded once; one part is its own sum."""
    if len(parts) == 1:
        return parts[0]
    return reduce(Tensor.add_, parts[1:], parts[0].double()).to(parts[0].dtype)
