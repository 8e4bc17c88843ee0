"""What the forward pass leaves for book-keeping: each layer's input, and the edge of its output in autograd's graph.

Hooks record every call of a module that has parameters of its own. A walk through autograd's graph then counts where
each parameter is really used, so that a use no hook saw (a tied weight, a functional call) is noticed at every
step and not taken for zero.

>>> import torch
>>> from torch import nn
>>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
>>> capture = Capture(model)
>>> losses = model(torch.ones(4, 2)).squeeze(1)
>>> [call.path for call in capture.taken()]
['0', '2']
>>> list(Leaves(model).uses(losses.grad_fn).counts.values())
[1, 1, 1, 1]
>>> capture.close()
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from dpfed.errors import InvalidArgument
from dpfed.training.rules import norms
from dpfed.training.rules.pieces import Call


class Capture:
    """Records the calls of every module with parameters of its own, until it is closed."""

    def __init__(self, model: nn.Module) -> None:
        self._calls: list[Call] = []
        self._is_recording = True
        self._handles = [
            # First of all hooks: one that changes the output comes after what this one records.
            module.register_forward_hook(partial(self._record, path), with_kwargs=True, prepend=True)
            for path, module in model.named_modules()
            if any(True for _ in module.parameters(recurse=False))
        ]

    def close(self) -> None:
        """Takes the hooks off the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._calls.clear()

    def taken(self) -> list[Call]:
        """The calls since the last time, which are forgotten here."""
        calls, self._calls = self._calls, []
        return calls

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is recorded inside: rules run modules again."""
        before, self._is_recording = self._is_recording, False
        try:
            yield
        finally:
            self._is_recording = before

    def _record(
        self, path: str, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any
    ) -> None:
        if not self._is_recording or not torch.is_grad_enabled():
            return
        trainable = tuple([n for n, p in module._parameters.items() if p is not None and p.requires_grad])
        if not trainable:
            return
        first = arguments[0] if arguments else next(iter(keywords.values()), None)
        x, version = (first.detach(), first._version) if isinstance(first, Tensor) else (None, 0)
        edge, shape = (_edge(output), output.shape) if isinstance(output, Tensor) else (None, torch.Size())
        call = Call(path, module, arguments, keywords, x, version, trainable, edge, shape)
        if edge is not None and isinstance(module, norms.KINDS):
            call.statistics = norms.statistics(edge.node)
        self._calls.append(call)


def _edge(output: Tensor) -> GradientEdge | None:
    """The output's edge in the graph, if it has one; for a mere reshape, that of what it reshapes.

    An operation in place on a view (ReLU(inplace=True) after a Linear on sequences) takes the view's own edge out
    of the graph, but not that of its base.
    """
    if output.grad_fn is None:
        return None
    base = output._base if output._is_view() else None
    if base is None or base.grad_fn is None or base.numel() != output.numel():
        return get_gradient_edge(output)
    is_reshape = base.is_contiguous() and output.is_contiguous()
    return get_gradient_edge(base if is_reshape else output)


def require_unchanged(call: Call) -> None:
    """Nothing, unless a saved input was changed in place after its layer used it."""
    if call.x is not None and call.x._version != call.version:
        message = (
            f"the input of {call.path or 'the model'} was changed in place after the layer used it: "
            "use the operation that makes a new tensor (inplace=False, x = x + y)"
        )
        raise InvalidArgument("model", message)


class Leaves:
    """A model's trainable parameters, by the nodes at which autograd's graph ends.

    Finding them takes longer than a small layer's step, so they are kept until a graph ends elsewhere or without one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.find()

    def find(self) -> None:
        """Looks at the model again."""
        self.parameters = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise InvalidArgument("model", "the model has no trainable parameter: nothing would be learned")
        self.type = _one_type(self.parameters)
        self.names = {id(parameter): name for name, parameter in self.parameters.items()}
        self._nodes = {get_gradient_edge(parameter).node: name for name, parameter in self.parameters.items()}

    def uses(self, root: Node | None) -> Uses:
        """Where the parameters are used in the graph below the root."""
        found = _walked(root, self._nodes, ())
        if found.has_strangers or not all(found.counts.values()):
            self.find()
            found = _walked(root, self._nodes, ())
        return found


def _one_type(parameters: Mapping[str, nn.Parameter]) -> torch.dtype:
    """The type of all parameters; another one is another leaf of the graph."""
    kinds = {p.dtype for p in parameters.values()}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        found = ", ".join(sorted(map(str, kinds)))
        message = f"trainable parameters must all be float32 or all float64, got {found}: norms need the precision"
        raise InvalidArgument("model", message)
    return kinds.pop()


class Uses(NamedTuple):
    """How many times each parameter is used in a graph, all nodes there, and whether other leaves were met."""

    counts: dict[str, int]
    nodes: set[Node]
    has_strangers: bool


def uses_within(call: Call, parameters: Mapping[str, Tensor]) -> dict[str, int]:
    """How many times each parameter is used between the call's output and its inputs."""
    leaves = {get_gradient_edge(parameter).node: name for name, parameter in parameters.items()}
    return _walked(call.edge.node if call.edge else None, leaves, _stops(call)).counts


def places_within(call: Call, parameter: Tensor) -> set[tuple[Node, int]]:
    """Where between the call's output and its inputs the parameter is used: the nodes, and which input of each."""
    leaf = get_gradient_edge(parameter).node
    nodes = _walked(call.edge.node if call.edge else None, {leaf: ""}, _stops(call)).nodes - _stops(call)
    return {(node, place) for node in nodes for place, (used, _) in enumerate(node.next_functions) if used is leaf}


def _stops(call: Call) -> set[Node]:
    values = (*call.arguments, *call.keywords.values())
    return {value.grad_fn for value in values if isinstance(value, Tensor) and value.grad_fn is not None}


def _walked(root: Node | None, leaves: Mapping[Node, str], stops: Collection[Node]) -> Uses:
    counts = dict.fromkeys(leaves.values(), 0)
    seen = set(stops)
    again: list[Node] = []
    has_strangers = False
    waiting = [] if root is None or root in seen else [root]
    seen.update(waiting)
    while waiting:
        following = waiting.pop().next_functions
        has_strangers |= not following
        for node, _ in following:
            if node is None:
                continue
            name = leaves.get(node)
            if name is not None:
                counts[name] += 1
            elif node in seen:
                again.append(node)
            else:
                seen.add(node)
                waiting.append(node)
    # A parameter in another form (a transposed weight) may be used several times: each is a use of the parameter.
    for node in again:
        if node not in stops and (name := _form_of(node, leaves)) is not None:
            counts[name] += 1
    return Uses(counts, seen, has_strangers)


def _form_of(node: Node, leaves: Mapping[Node, str]) -> str | None:
    """The parameter of which the node's result is another form: nothing else goes into it."""
    while len(node.next_functions) == 1:
        ((below, _),) = node.next_functions
        if below is None or below in leaves:
            return None if below is None else leaves[below]
        node = below
    return None
