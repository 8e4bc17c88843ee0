"""Which calls explain which parameters, and which programs can be served by book-keeping at all.

A parameter that no rule saw would be a missing term in every norm. So each use of each trainable parameter in the
graph of the losses has to belong to a recorded call whose input and output have the examples in front. Where that is so
for all of them, the program has a fast way; everywhere else the model sees one example at a time.

>>> import torch
>>> from torch import nn
>>> from dpfed.training.capture import Capture, Leaves
>>> model = nn.Linear(2, 2)
>>> capture, leaves = Capture(model), Leaves(model)
>>> losses = model(torch.ones(3, 2)).sum(1)
>>> [part.names for part in attributed(capture.taken(), leaves.graph([losses.grad_fn]), leaves, {}).parts]
[{'weight': 'weight', 'bias': 'bias'}]
>>> losses = (model(torch.ones(3, 2)) @ model.weight).sum(1)      # the weight is used once more
>>> attributed(capture.taken(), leaves.graph([losses.grad_fn]), leaves, {}).why
'weight is used outside its layer'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from dpfed.training import capture
from dpfed.training.capture import Graph, Leaves
from dpfed.training.projection import Used
from dpfed.training.recurrent import Steps
from dpfed.training.rules.pieces import Call
from dpfed.training.rules.registry import Rule, rule_of

KNOWN_NAMES = ("weight", "bias")
WHOLE = "whole"
# Gradients in Python that keep examples apart: those of layers in this package.
OURS = (Steps._backward_cls, Used._backward_cls)


@dataclass(frozen=True, slots=True)
class Claim:
    """The parameters that one call explains: its number among the calls, its rule, own names → the model's."""

    number: int
    rule: Rule
    names: Mapping[str, str]
    is_shared: bool = False  # another call explains one of the same parameters


@dataclass(slots=True, eq=False)
class Part:
    """One call, its rule, and the parameters that it explains: the module's own name → the model's."""

    call: Call
    rule: Rule
    names: Mapping[str, str]
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Way:
    """How the gradients of a program are made: by these calls, or one example at a time if there is a reason why.

    `is_apart` says that examples were seen to stay apart nevertheless, only not where layers need them.
    """

    parts: tuple[Claim, ...] = ()
    why: str | None = None
    is_apart: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether the fast way will do: a general rule may turn out not to work."""
        return self.why is None and all(claim.rule.is_known for claim in self.parts)

    def parts_of(self, calls: Sequence[Call]) -> list[Part]:
        """Return the parts of a run of the program, from its calls."""
        for claim in self.parts:
            calls[claim.number].trainable = tuple(claim.names)
        return [Part(calls[claim.number], claim.rule, claim.names, claim.is_shared) for claim in self.parts]


def attributed(calls: Sequence[Call], graph: Graph, leaves: Leaves, pinned: Mapping[str, str]) -> Way:
    """Return who explains what in a graph, or why nobody can."""
    if any(issubclass(type(node), BackwardCFunction) and type(node) not in OURS for node in graph.numbers):
        return Way(why="a gradient of its own (autograd.Function, or a hook on a module) may mix examples")
    used = [number for number, call in enumerate(calls) if graph.place(call) is not None]
    if WHOLE in pinned.values():
        return Way(why=f"{next(path for path, method in pinned.items() if method == WHOLE)} is pinned to {WHOLE!r}")
    claims = [claim for number in used if (claim := _claim(number, calls[number], leaves)) is not None]
    outputs = {edge.node for claim in claims if claim.rule.is_known and (edge := calls[claim.number].edge)}
    counts = capture.counts(graph, leaves.nodes, outputs)
    claimed = dict.fromkeys(counts, 0)
    for claim in claims:
        for name, count in _explained(claim, calls[claim.number]).items():
            claimed[name] += count
    for name, count in counts.items():
        if claimed[name] != count:
            return Way(why=f"{name} is used outside its layer")
        if count > 1 and _is_contested(name, claims, calls, leaves):
            return Way(why=f"{name} is used by a layer and its child")
    if stashed := _stashed(claims, calls, graph, leaves):
        return Way(why=f"{stashed} keeps something for later that the losses use")
    users = Counter(name for claim in claims for name in claim.names.values())
    return Way(
        tuple(
            Claim(claim.number, claim.rule, claim.names, any(users[name] > 1 for name in claim.names.values()))
            for claim in claims
        )
    )


def _claim(number: int, call: Call, leaves: Leaves) -> Claim | None:
    """Return what a call could explain, None for one without a single tensor as input."""
    rule = rule_of(call.module)
    has_others = bool(call.keywords) or any(isinstance(value, Tensor) for value in call.arguments[1:])
    if call.x is None or (has_others and not rule.is_known):
        return None
    names = _names(call, rule, leaves)
    return Claim(number, rule, names) if names else None


def _names(call: Call, rule: Rule, leaves: Leaves) -> dict[str, str]:
    """Return the trainable parameters that the rule knows, of those in the model."""
    own, names = call.module._parameters, leaves.names
    known = [name for name in call.trainable if name in KNOWN_NAMES] if rule.is_known else call.trainable
    return {name: names[key] for name in known if (key := id(own[name])) in names}


def _explained(claim: Claim, call: Call) -> dict[str, int]:
    """Return how many uses of each parameter the call explains."""
    if claim.rule.is_known:
        return dict.fromkeys(claim.names.values(), 1)
    return capture.uses_within(call, _own(claim, call))


def _own(claim: Claim, call: Call) -> dict[str, Tensor]:
    own = call.module._parameters
    return {full: p for name, full in claim.names.items() if (p := own[name]) is not None}


def _is_contested(name: str, claims: Sequence[Claim], calls: Sequence[Call], leaves: Leaves) -> bool:
    """Return whether a use is claimed twice: counts could then agree although another use has no claim.

    A module with parameters of its own claims their uses in its children as well, and in whatever it remembers.
    """
    users = [claim for claim in claims if name in claim.names.values()]
    if len(users) < 2 or all(claim.rule.is_known for claim in users):
        return False
    places = [capture.places_within(calls[claim.number], leaves.parameters[name]) for claim in users]
    return len(set().union(*places)) < sum(map(len, places))


def _stashed(claims: Sequence[Claim], calls: Sequence[Call], graph: Graph, leaves: Leaves) -> str | None:
    """Return the path of a module of which the losses use more than its output; torch's own layers keep nothing."""
    general = [claim for claim in claims if not claim.rule.is_known]
    if not general:
        return None
    users: dict[Node, set[Node]] = {}
    for node in graph.numbers:
        for child, _ in node.next_functions:
            if child is not None:
                users.setdefault(child, set()).add(node)
    for claim in general:
        call = calls[claim.number]
        owned = {node for node, name in leaves.nodes.items() if name in claim.names.values()}
        inside = _above(owned, capture.interior(call, leaves.nodes), users)
        start = call.edge.node if call.edge else None
        if any(node is not start and not users.get(node, set()) <= inside for node in inside):
            return call.path or "the model"
    return None


def _above(leaves: set[Node], inside: set[Node], users: Mapping[Node, set[Node]]) -> set[Node]:
    """Return the nodes inside a call that depend on its own parameters."""
    waiting, found = list(leaves), set[Node]()
    while waiting:
        for node in users.get(waiting.pop(), set()) & inside:
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


def is_ready(parts: Sequence[Part], size: int) -> bool:
    """Return whether every call of a run has its examples in front, and its input is still what the layer used."""
    return all(_has_batch(part, size) and capture.is_unchanged(part.call) for part in parts)


def _has_batch(part: Part, size: int) -> bool:
    call, axes = part.call, part.rule.axes
    if call.x is None or (axes is not None and call.x.dim() != axes):
        return False
    return call.x.shape[:1] == call.shape[:1] == (size,)
