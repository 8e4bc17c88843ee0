"""Parameters that meet the examples in a product: ``x @ W`` without a layer, or a convolution by a weight that is made.

What meets the examples there is a parameter, or was made of parameters alone (weight norm). The gradient of the result
and the other factor have the examples apart, so that their product over each example's positions is its own gradient
of what it was multiplied by; from there on it goes as for any other `meeting`.

>>> import torch
>>> weight = torch.nn.Parameter(torch.ones(2, 1))
>>> node = (torch.tensor([[3.0, 4.0], [5.0, 6.0]]) @ weight).grad_fn
>>> is_served(node, 1, Place(0)), is_served(node, 0, Place(0))      # the weight is the second factor
(True, False)
>>> kernel_of(node, 1)(torch.ones(2, 1), Place(0), 2).flatten(1).tolist()
[[3.0, 4.0], [5.0, 6.0]]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from dpfed.training.engine.placing import move_examples_first
from dpfed.training.engine.rules import conv, meeting
from dpfed.training.engine.rules.meeting import Meeting
from dpfed.training.engine.watch.marks import Place

# From the gradient of a result, where it has the examples and how many these are, to that of what met them: (B, …).
Kernel = Callable[[Tensor, Place, int], Tensor]


@dataclass(slots=True, eq=False)
class Product(Meeting):
    """One product at which a parameter, or what was made of several, meets the examples."""

    kernel: Kernel | None = None
    made: list[Tensor] = field(default_factory=list)  # once for all parameters of which the factor was made

    def has_examples(self, place: Place, size: int) -> bool:
        """Return whether the result has so many examples at the place."""
        if place.is_plain or place.axis >= len(self.shape):
            return Meeting.has_examples(self, place, size)
        return self.shape[place.axis] % size == 0

    def apart_at(self, place: Place, size: int) -> Product:
        """Return the call with each example's gradient of what meets it, (B, *own), from that of the result."""
        _, gradient = self.pair
        if not self.made and self.kernel is not None:
            self.made.append(self.kernel(gradient, place, size).reshape(size, *self.own))
        return replace(self, gradient=self.made[0])


def of_node(name: str, parameter: Tensor, node: Node, place: int, at: Place, size: int, made: list[Tensor]) -> Meeting:
    """Return the meeting at a node, of its input at the place, before the backward pass, which frees its factors.

    `made` is one list for all parameters behind that input.
    """
    plain = meeting.of_node(name, parameter, node, place, size)
    if at.is_plain and (node.name(), place) not in _KERNELS:
        return plain
    own = {each.name: getattr(plain, each.name) for each in fields(plain)}
    return Product(**own, kernel=kernel_of(node, place), made=made)


def is_served(node: Any, place: int, at: Place) -> bool:
    """Return whether the operation is a known one whose input at the place meets examples that are there."""
    if 1 not in (at.outer, at.inner):
        return False
    name = node.name()
    if (name, place) not in _KERNELS:
        return meeting.is_served(node, place, at.axis)
    is_known = name != _CONVOLUTION or (at.is_plain and not node._saved_transposed)
    is_alike = (name, place) != _ADDEND or meeting.is_repeated(node, place, at.axis)
    is_real = node._input_metadata[0].dtype.is_floating_point
    return is_known and is_alike and is_real and at.axis == _KERNELS[name, place][0]


def is_free(node: Node, place: int, at: Place) -> bool:
    """Return whether a product that has the examples there has none of them in its input at the place."""
    key = node.name(), place
    return key in _KERNELS and key != _ADDEND and _KERNELS[key][0] == at.axis


def kernel_of(node: Node, place: int) -> Kernel:
    """Return what makes the gradient of a node's input of that of its result; it keeps the other factor."""
    key = node.name(), place
    return (
        _KERNELS[key][1](node)
        if key in _KERNELS
        else _kernel_of_added(meeting.compute_factor(node, place), _own(node, place))
    )


def _own(node: Node, place: int) -> torch.Size:
    below, output = node.next_functions[place]
    return meeting.shape_of(below, output)


def _kernel_of_added(factor: meeting.Factor, own: torch.Size) -> Kernel:
    """Return the kernel of what is repeated for all examples and positions, which are in one axis."""

    def kernel(gradient: Tensor, at: Place, size: int) -> Tensor:
        apart = move_examples_first((gradient * factor).to(gradient.dtype), at, size)
        if not at.is_plain:
            apart = apart.flatten(at.axis + 1, at.axis + 2).sum(at.axis + 1, keepdim=True)
        return meeting.sum_repeated(apart, 0, own)

    return kernel


def _kernel_of_first(other: Tensor, scale: float = 1.0) -> Kernel:
    """Return the kernel of the first factor of (n, m, k) @ (n, k, rows), by the second."""

    def kernel(gradient: Tensor, at: Place, size: int) -> Tensor:
        return _sum_positions(_as_batch(gradient).mT, _as_batch(other).mT, at, size).mul_(scale)

    return kernel


def _kernel_of_second(other: Tensor, scale: float = 1.0) -> Kernel:
    """Return the kernel of the second factor of (n, rows, k) @ (n, k, m), by the first."""

    def kernel(gradient: Tensor, at: Place, size: int) -> Tensor:
        return _sum_positions(_as_batch(other), _as_batch(gradient), at, size).mul_(scale)

    return kernel


def _as_batch(values: Tensor) -> Tensor:
    """Return a matrix, or several, as several."""
    return values if values.dim() == 3 else values.unsqueeze(0)


def _sum_positions(one: Tensor, two: Tensor, at: Place, size: int) -> Tensor:
    """Return Σ one·two over each example's positions, (B, n, ·, ·), of (n, rows, ·) and (n, rows, ·)."""
    one, two = (
        move_examples_first(value, at.at(1), size).reshape(size, len(value), -1, value.shape[2]) for value in (one, two)
    )
    return torch.matmul(one.mT, two)


def _kernel_of_vector(node: Any) -> Kernel:
    """Return the kernel of the vector of a product with a matrix."""
    by_column = _kernel_of_second(node._saved_self.detach())
    return lambda gradient, at, size: by_column(gradient.unsqueeze(1), at, size)


def _kernel_of_weight(node: Any) -> Kernel:
    """Return the kernel of a convolution's weight."""
    x, groups = node._saved_input.detach(), node._saved_groups
    sizes = _own(node, 1)[2:], node._saved_stride, node._saved_padding, node._saved_dilation

    def kernel(gradient: Tensor, _at: Place, _size: int) -> Tensor:
        view = conv.Geometry.plain(x, gradient, sizes, groups)
        return conv.by_taps(view).permute(1, 2, 3, 0) if conv.is_line(view) else conv.grouped(view).values

    return kernel


def _kernel_of_bias(_: Any) -> Kernel:
    """Return the kernel of a convolution's bias."""
    return lambda gradient, *_: gradient.flatten(2).sum(2)


_CONVOLUTION = "ConvolutionBackward0"
_ADDEND = ("AddmmBackward0", 0)
# By the name of a node and which of its inputs meets the examples: the axis where the result then has them, the kernel.
_KERNELS: dict[tuple[str, int], tuple[int, Callable[[Any], Kernel]]] = {
    ("MmBackward0", 0): (1, lambda node: _kernel_of_first(node._saved_mat2.detach())),
    ("MmBackward0", 1): (0, lambda node: _kernel_of_second(node._saved_self.detach())),
    _ADDEND: (0, lambda node: _kernel_of_added(float(node._saved_beta), _own(node, 0))),
    ("AddmmBackward0", 1): (1, lambda node: _kernel_of_first(node._saved_mat2.detach(), float(node._saved_alpha))),
    ("AddmmBackward0", 2): (0, lambda node: _kernel_of_second(node._saved_mat1.detach(), float(node._saved_alpha))),
    ("BmmBackward0", 0): (2, lambda node: _kernel_of_first(node._saved_mat2.detach())),
    ("BmmBackward0", 1): (1, lambda node: _kernel_of_second(node._saved_self.detach())),
    ("MvBackward0", 1): (0, _kernel_of_vector),
    (_CONVOLUTION, 1): (0, _kernel_of_weight),
    (_CONVOLUTION, 2): (0, _kernel_of_bias),
}
