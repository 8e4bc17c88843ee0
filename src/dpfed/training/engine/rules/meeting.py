"""Parameters that meet the examples by broadcasting: positions that are added, a class token, a scale, a bare bias.

Up to the operation at which it meets them, such a parameter has nothing of any example, so there is one gradient of it
for all. The gradient of that operation's *result* still has the examples apart: multiplied by the other factor, if
there is one, and added up over the axes along which the parameter was repeated, it is each example's own.

>>> import torch
>>> scale = torch.nn.Parameter(torch.ones(2))
>>> meeting = (torch.tensor([[3.0, 4.0], [5.0, 6.0]]) * scale).grad_fn
>>> is_served(meeting, 1, axis=0), compute_factor(meeting, 1).tolist()
(True, [[3.0, 4.0], [5.0, 6.0]])
>>> sum_repeated(torch.ones(4, 3, 2), axis=0, shape=torch.Size([2])).tolist()[0]  # added up over the three positions
[3.0, 3.0]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from dpfed.training.engine.rules.contributions import Call, Materialised, Method, rows_of
from dpfed.training.engine.watch.marks import Place

Factor = Tensor | float
# Which operations are served, by the name of their node; a factor for each of their inputs.
_FACTORS: dict[str, tuple[Callable[[Any], Factor], ...]] = {
    "AddBackward0": (lambda _: 1.0, lambda node: float(node._saved_alpha)),
    "SubBackward0": (lambda _: 1.0, lambda node: -float(node._saved_alpha)),
    "MulBackward0": (lambda node: node._saved_other.detach(), lambda node: node._saved_self.detach()),
    "ExpandBackward0": (lambda _: 1.0,),
    "RepeatBackward0": (lambda _: 1.0,),
}
_LEAF = "torch::autograd::AccumulateGrad"
NOBODY = nn.Identity()  # stands for the module: the parameter is used outside a layer


@dataclass(slots=True, eq=False)
class Meeting(Call):
    """One operation at which a parameter, or what was made of it alone, meets the examples."""

    parameter: Tensor | None = None
    below: GradientEdge | None = None  # of what was made of the parameter; None if it is the parameter itself
    factor: Factor = 1.0
    own: torch.Size = field(default_factory=torch.Size)  # the shape of what meets the examples

    def has_examples(self, place: Place, size: int) -> bool:
        """Return whether the result has so many examples at the place."""
        return place.axis < len(self.shape) and self.shape[place.axis] == size

    def apart_at(self, place: Place, size: int) -> Meeting:
        """Return the call with each example's gradient of what meets it."""
        return self.apart(place.axis)

    def apart(self, axis: int) -> Meeting:
        """Return the call with each example's gradient of what meets it, (B, *own), from that of the result."""
        _, gradient = self.pair
        is_one = isinstance(self.factor, float) and self.factor == 1.0
        found = gradient if is_one else (gradient * self.factor).to(gradient.dtype)
        return replace(self, gradient=sum_repeated(found, axis, self.own))


def of_node(name: str, parameter: Tensor, node: Node, place: int, size: int) -> Meeting:
    """Return the meeting at a node, of its input at the place; before the backward pass, which frees its factor."""
    below, output = node.next_functions[place]
    is_made = below is not None and below.name() != _LEAF
    return Meeting(
        path=name,
        module=NOBODY,
        arguments=(),
        keywords={},
        x=parameter.detach().new_empty(size, 0),
        version=0,
        trainable=("weight",),
        edge=GradientEdge(node, 0),
        shape=shape_of(node, 0),
        parameter=parameter,
        below=GradientEdge(below, output) if is_made and below is not None else None,
        factor=compute_factor(node, place) if place < len(_FACTORS.get(node.name(), ())) else 1.0,
        own=shape_of(below, output),
    )


def shape_of(node: Any, output: int) -> torch.Size:
    """Return the shape of a node's result, which the gradient that goes into it has as well."""
    return torch.Size(node.variable.shape if node.name() == _LEAF else node._input_metadata[output].shape)


def is_served(node: Any, place: int, axis: int) -> bool:
    """Return whether the operation is a known one, and repeats its input at the place along the examples' axis."""
    if place >= len(_FACTORS.get(node.name(), ())):
        return False
    if not node._input_metadata[0].dtype.is_floating_point:  # complex numbers are met by pairs of real ones
        return False
    return is_repeated(node, place, axis)


def is_repeated(node: Node, place: int, axis: int) -> bool:
    """Return whether the input at the place is the same for all along an axis of the result, by its shape."""
    below, output = node.next_functions[place]
    shape, own = shape_of(node, 0), shape_of(below, output)
    whole = [1] * (len(shape) - len(own)) + list(own)
    return whole[axis] == 1 and all(length in (1, full) for length, full in zip(whole, shape, strict=True))


def compute_factor(node: Node, place: int) -> Factor:
    """Return what the gradient of the result is multiplied by; it must be asked for before the backward pass."""
    return _FACTORS[node.name()][place](node)


def sum_repeated(gradient: Tensor, axis: int, shape: torch.Size) -> Tensor:
    """Return (B, *shape): the gradient, with the examples at the axis, added up where the shape was repeated."""
    whole = [1] * (gradient.dim() - len(shape)) + list(shape)
    del whole[axis]
    found = gradient.movedim(axis, 0)
    gone = [place for place, (length, own) in enumerate(zip(found.shape[1:], whole, strict=True), 1) if own < length]
    return (found.sum(gone) if gone else found).reshape(len(found), *shape)


def methods(_: Call) -> dict[str, Method]:
    """Return the one way."""
    return {"meeting": direct}


def direct(call: Call) -> Materialised:
    """Return the gradients written out, through what was made of the parameter before it met the examples."""
    if not isinstance(call, Meeting) or call.parameter is None:
        raise TypeError(f"{call.path} is no meeting of a parameter with examples")
    _, rows = call.pair
    found = rows if call.below is None else _through(rows, call.below, call.parameter)
    return Materialised({"weight": rows_of(found)})


def _through(rows: Tensor, below: GradientEdge, parameter: Tensor) -> Tensor:
    """Return the gradients of the parameter from those of what was made of it."""
    with torch.enable_grad():
        (found,) = torch.autograd.grad(
            [below], [parameter], [rows.to(parameter.dtype)], is_grads_batched=True, retain_graph=True
        )
    return found.to(rows.dtype)
