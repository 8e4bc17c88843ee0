"""What the forward pass leaves for book-keeping: each layer's input, and the edge of its output in autograd's graph.

Hooks record every call of a module that has parameters of its own. A walk through autograd's graph then counts where
each parameter is really used, so that a use no hook saw (a tied weight, a functional call) is noticed at every
step and not taken for zero.

>>> import torch
>>> from torch import nn
>>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
>>> capture = Capture(model)
>>> losses = model(torch.ones(4, 2)).squeeze(1)
>>> [call.path for call in capture.take()]
['0', '2']
>>> leaves = Leaves(model)
>>> list(count_uses(leaves.graph([losses.grad_fn]), leaves.nodes).values())
[1, 1, 1, 1]
>>> capture.close()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from dpfed.errors import InvalidArgument
from dpfed.training.engine.rules import bag, norms
from dpfed.training.engine.rules.contributions import Call
from dpfed.training.layers import twins


class Capture:
    """Hooks that record the calls of every module with parameters of its own, until they are closed."""

    def __init__(self, model: nn.Module) -> None:
        self._calls: list[Call] = []
        self._is_recording = True
        self._observer: Callable[[Call, Any], None] | None = None
        self._twins = twins.install(model)
        self._handles = [
            # First of all hooks: one that changes the output comes after what this one records.
            module.register_forward_hook(partial(self._record, path), with_kwargs=True, prepend=True)
            for path, module in self._find_layers(model)
        ]

    def _find_layers(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules with parameters of their own; for a layer with a twin, the modules that the twin runs."""
        for path, module in model.named_modules():
            if path in self._twins:
                yield from self._twins[path].products(path)
            elif any(True for _ in module.parameters(recurse=False)):
                yield path, module

    def close(self) -> None:
        """Remove the hooks and the twins from the model."""
        for handle in self._handles:
            handle.remove()
        for twin in self._twins.values():
            twin.leave()
        self._handles.clear()
        self._twins.clear()
        self._calls.clear()

    def take(self) -> list[Call]:
        """Return the calls recorded since the last time, and drop them here."""
        calls, self._calls = self._calls, []
        return calls

    @contextmanager
    def shown_to(self, observer: Callable[[Call, Any], None]) -> Iterator[None]:
        """Pass every call that is recorded inside, and its output, to the observer."""
        self._observer = observer
        try:
            yield
        finally:
            self._observer = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing inside, where rules run modules again."""
        before, self._is_recording = self._is_recording, False
        try:
            yield
        finally:
            self._is_recording = before

    def _record(
        self, path: str, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any
    ) -> None:
        if self._is_recording and torch.is_grad_enabled():
            with DisableTorchFunction():  # what is asked of torch in here is not the model's doing
                self._note(path, module, arguments, keywords, output)

    def _note(
        self, path: str, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any
    ) -> None:
        trainable = tuple([n for n, p in module._parameters.items() if p is not None and p.requires_grad])
        if not trainable:
            return
        first = arguments[0] if arguments else keywords.get("input", next(iter(keywords.values()), None))
        x, version = (first.detach(), first._version) if isinstance(first, Tensor) else (None, 0)
        edge, shape = (_find_edge(output), output.shape) if isinstance(output, Tensor) else (None, torch.Size())
        call = Call(path, module, arguments, keywords, x, version, trainable, edge, shape)
        if edge is not None and isinstance(module, norms.KINDS):
            call.statistics = norms.read_statistics(edge.node)
        if isinstance(module, bag.KINDS):
            bag.note_bags(call)
        self._calls.append(call)
        if self._observer is not None:
            self._observer(call, output)


def _find_edge(output: Tensor) -> GradientEdge | None:
    """Return the output's edge in the graph, if it has one; for a mere reshape, that of what it reshapes.

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


def is_unchanged(call: Call) -> bool:
    """Return whether nothing was written into the saved input since the layer used it."""
    return call.x is None or call.x._version == call.version


class Leaves:
    """A model's trainable parameters, by the nodes at which autograd's graph ends.

    Finding them takes longer than a small layer's step, so they are kept until a graph ends elsewhere or without one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.find()

    def find(self) -> None:
        """Read the trainable parameters of the model again."""
        self.parameters = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise InvalidArgument(
                "model", "the model has no trainable parameter, so nothing would be learned: set requires_grad_(True)"
            )
        self.type = _require_one_type(self.parameters)
        self.names = {id(parameter): name for name, parameter in self.parameters.items()}
        self.nodes = {get_gradient_edge(parameter).node: name for name, parameter in self.parameters.items()}

    def graph(self, roots: Sequence[Node | None]) -> Graph:
        """Return the graph below the roots, with the parameters by name."""
        found = _walk(roots, self.nodes)
        if found.has_strangers or len(found.used) < len(self.nodes):
            self.find()
            found = _walk(roots, self.nodes)
        return found


def _require_one_type(parameters: Mapping[str, nn.Parameter]) -> torch.dtype:
    """Return the type of all parameters; refuse types that differ, or with fewer digits than norms need."""
    kinds = {p.dtype for p in parameters.values()}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        found = ", ".join(sorted(map(str, kinds)))
        message = f"trainable parameters must all be float32 or all float64, got {found}"
        message += ", and norms need the precision: call model.float()"
        raise InvalidArgument("model", message)
    return kinds.pop()


def form_of(losses: Tensor) -> Hashable:
    """Return the form of the graph behind losses, without the names of parameters."""
    return _walk([losses.grad_fn], {}).form


class Graph(NamedTuple):
    """A graph of autograd: its nodes in the order of a walk, and its form, which all graphs of one program share.

    The form has every node's type and axes, which nodes it leads to, and the names of the parameters where it ends.
    What is not in it, sizes and numbers, may differ between two graphs of one form.
    """

    numbers: dict[Node, int]
    form: tuple[Any, ...]
    used: set[str]
    has_strangers: bool

    def place(self, call: Call) -> int | None:
        """Return the number of the node that made the call's output, None if the losses do not use it."""
        return None if call.edge is None else self.numbers.get(call.edge.node)


def _walk(roots: Sequence[Node | None], leaves: Mapping[Node, str]) -> Graph:
    """Walk the graph below the roots, and note its form on the way."""
    order = list(dict.fromkeys(root for root in roots if root is not None))
    numbers = {node: number for number, node in enumerate(order)}
    form: list[Any] = []
    used: set[str] = set()
    has_strangers = False
    for node in order:  # which grows during the walk
        kind = type(node)
        following = node.next_functions
        has_strangers |= not following
        form.append(_name_of(kind))
        form.extend([getattr(node, name) for name in _axes_of(kind)])
        for child, output in following:
            if child is None:
                form.append(None)
                continue
            leaf = leaves.get(child)
            if leaf is not None:
                used.add(leaf)
                form.append(leaf)
                continue
            number = numbers.get(child)
            if number is None:
                number = numbers[child] = len(order)
                order.append(child)
            form.append(number if not output else (number, output))
    return Graph(numbers, tuple(form), used, has_strangers)


@cache
def _name_of(kind: type[Node]) -> Hashable:
    """Return the name of a node's type in a form; torch has two nodes for a reshape, by whether it is watched."""
    return "ViewBackward0" if kind.__name__ in ("ReshapeAliasBackward0", "ViewBackward0") else kind


@cache
def _axes_of(kind: type[Node]) -> tuple[str, ...]:
    """Return the attributes of a node that name axes, or say how a loss is added up."""
    return tuple(name for name in dir(kind) if name in _AXES)


_AXES = frozenset({"_saved_dim", "_saved_dims", "_saved_dim0", "_saved_dim1", "_saved_dimension", "_saved_reduction"})


def count_uses(graph: Graph, leaves: Mapping[Node, str], outputs: Collection[Node] = ()) -> dict[str, int]:
    """Count the uses of each parameter in the graph; `outputs` are the nodes of layers' results."""
    return _count(graph.numbers, leaves, outputs)


def count_uses_within(call: Call, parameters: Mapping[str, Tensor]) -> dict[str, int]:
    """Count the uses of each parameter between the call's output and its inputs."""
    leaves = {get_gradient_edge(parameter).node: name for name, parameter in parameters.items()}
    return _count(find_interior(call, leaves), leaves, _find_inputs(call))


def find_uses_within(call: Call, parameter: Tensor) -> set[tuple[Node, int]]:
    """Return the uses of a parameter between the call's output and its inputs: nodes, and which input of each."""
    leaf = get_gradient_edge(parameter).node
    nodes = find_interior(call, {leaf: ""})
    return {(node, place) for node in nodes for place, (used, _) in enumerate(node.next_functions) if used is leaf}


def find_interior(call: Call, leaves: Collection[Node]) -> set[Node]:
    """Return the nodes between the call's output and its inputs, without parameters."""
    stops = {*_find_inputs(call), *leaves}
    start = call.edge.node if call.edge else None
    waiting = [] if start is None or start in stops else [start]
    seen = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in stops and node not in seen:
                seen.add(node)
                waiting.append(node)
    return seen


def _find_inputs(call: Call) -> set[Node]:
    """Return the nodes of the call's inputs, at which a walk from its output ends."""
    values = (*call.arguments, *call.keywords.values())
    return {value.grad_fn for value in values if isinstance(value, Tensor) and value.grad_fn is not None}


def _count(nodes: Collection[Node], leaves: Mapping[Node, str], stops: Collection[Node]) -> dict[str, int]:
    """Count how often nodes use each parameter, also in another form."""
    found = dict.fromkeys(leaves.values(), 0)
    met: Counter[Node] = Counter()
    for node in nodes:
        for child, _ in node.next_functions:
            name = None if child is None else leaves.get(child)
            if name is not None:
                found[name] += 1
            elif child is not None:
                met[child] += 1
    # A parameter in another form (a transposed weight) may be used several times: each is a use of the parameter.
    for child, times in met.items():
        if times > 1 and (name := _find_parameter(child, leaves, stops)) is not None:
            found[name] += times - 1
    return found


def _find_parameter(node: Node, leaves: Mapping[Node, str], stops: Collection[Node]) -> str | None:
    """Return the parameter of which the node's result is another form (a transposed weight, say), if it is one."""
    while len(node.next_functions) == 1 and node not in stops:
        ((below, _),) = node.next_functions
        if below is None or below in leaves:
            return None if below is None else leaves[below]
        node = below
    return None
