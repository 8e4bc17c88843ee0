"""Which calls explain which parameters, and which programs can be served by book-keeping at all.

A parameter that no rule saw would be a missing term in every norm. So each use of each trainable parameter in the
graph of the losses has to belong to a recorded call whose input and output have the examples in front. Where that is so
for all of them, the program has a fast way; everywhere else the model sees one example at a time.

>>> import torch
>>> from torch import nn
>>> from dpfed.training.engine.capture import Capture, Leaves
>>> model = nn.Linear(2, 2)
>>> capture, leaves = Capture(model), Leaves(model)
>>> losses = model(torch.ones(3, 2)).sum(1)
>>> sight = Sight([FRONT], {})
>>> [part.names for part in attribute(capture.take(), leaves.graph([losses.grad_fn]), leaves, {}, sight).parts]
[{'weight': 'weight', 'bias': 'bias'}]
>>> losses = (model(torch.ones(3, 2)) @ model.weight).sum(1)      # the weight is used once more
>>> attribute(capture.take(), leaves.graph([losses.grad_fn]), leaves, {}, sight).why
'weight is used outside its layer'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from dpfed.training.engine import capture
from dpfed.training.engine.capture import Graph, Leaves
from dpfed.training.engine.placing import FRONT, has_batch
from dpfed.training.engine.rules import product
from dpfed.training.engine.rules.contributions import Call
from dpfed.training.engine.rules.meeting import Meeting
from dpfed.training.engine.rules.registry import MEETING, Rule, rule_of
from dpfed.training.engine.watch.marks import Place
from dpfed.training.layers.packed import Pack, Pad, Turn, Unpack
from dpfed.training.layers.projection import KnownResult
from dpfed.training.layers.recurrent import Steps

KNOWN_NAMES = ("weight", "bias")
WHOLE = "whole"
# Gradients in Python that keep examples apart: those of layers in this package.
OURS = tuple([kind._backward_cls for kind in (Steps, KnownResult, Unpack, Pack, Turn, Pad)])


class Sight(NamedTuple):
    """Where examples were seen: in input and output of each call, and in the results of nodes, by their numbers.

    None is for a call without examples, or with different places; and for a result without any example.
    """

    calls: Sequence[Place | None]
    nodes: Mapping[int, Place | None]


@dataclass(frozen=True, slots=True)
class Claim:
    """The parameters that one call explains: its number among the calls, its rule, own names → the model's."""

    number: int
    rule: Rule
    names: Mapping[str, str]
    place: Place = FRONT
    is_shared: bool = False  # another call, or a meeting, explains one of the same parameters


@dataclass(frozen=True, slots=True)
class Met:
    """A use of a parameter outside layers: at which node, by number, and as which of its inputs, examples meet it."""

    number: int
    input: int
    name: str
    place: Place
    is_shared: bool = False


@dataclass(slots=True, eq=False)
class Part:
    """One call, its rule, and the parameters that it explains: the module's own name → the model's."""

    call: Call
    rule: Rule
    names: Mapping[str, str]
    place: Place = FRONT
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Way:
    """How the gradients of a program are made: by these calls, or one example at a time if there is a reason why.

    `is_apart` says that examples were seen to stay apart nevertheless, only not where layers need them.
    """

    parts: tuple[Claim, ...] = ()
    met: tuple[Met, ...] = ()
    why: str | None = None
    is_apart: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether the fast way will do: a general rule may turn out not to work."""
        return self.why is None and all(claim.rule.is_known for claim in self.parts)

    def parts_of(self, calls: Sequence[Call], meetings: Sequence[Meeting] = ()) -> list[Part]:
        """Return the parts of a run of the program, from its calls and the meetings that `met` says."""
        for claim in self.parts:
            calls[claim.number].trainable = tuple(claim.names)
        return [
            *(Part(calls[claim.number], claim.rule, claim.names, claim.place, claim.is_shared) for claim in self.parts),
            *(
                Part(call, MEETING, {"weight": met.name}, met.place, met.is_shared)
                for met, call in zip(self.met, meetings, strict=True)
            ),
        ]


def find_reason_against(graph: Graph, pinned: Mapping[str, str]) -> str | None:
    """Return why a program must run on one example at a time whatever its layers are, if it must."""
    if any(issubclass(type(node), BackwardCFunction) and type(node) not in OURS for node in graph.numbers):
        return "a gradient of its own (autograd.Function, or a hook on a module) may mix examples"
    if WHOLE in pinned.values():
        return f"{next(path for path, method in pinned.items() if method == WHOLE)} is pinned to {WHOLE!r}"
    return None


def attribute(calls: Sequence[Call], graph: Graph, leaves: Leaves, pinned: Mapping[str, str], sight: Sight) -> Way:
    """Return who explains what in a graph, or why nobody can."""
    if (why := find_reason_against(graph, pinned)) is not None:
        return Way(why=why)
    used = [number for number, call in enumerate(calls) if graph.place(call) is not None]
    claims = [
        claim
        for number in used
        if (claim := _make_claim(number, calls[number], leaves, sight.calls[number])) is not None
    ]
    known = {name for claim in claims if claim.rule.is_known for name in claim.names.values()}
    meetings = _find_meetings(graph, leaves, known, sight.nodes)
    claims = [claim for claim in (_drop_served(claim, meetings) for claim in claims) if claim.names]
    for claim in claims:
        if claim.place != FRONT and not claim.rule.is_positional:
            path = calls[claim.number].path or "the model"
            return Way(why=f"{path} has not the example as first axis", is_apart=True)
    outputs = {edge.node for claim in claims if claim.rule.is_known and (edge := calls[claim.number].edge)}
    counts = capture.count_uses(graph, leaves.nodes, outputs)
    claimed = dict.fromkeys(counts, 0)
    for claim in claims:
        for name, count in _count_explained(claim, calls[claim.number]).items():
            claimed[name] += count
    for name, count in counts.items():
        if name in meetings:
            continue
        if claimed[name] != count:
            return Way(why=f"{name} is used outside its layer")
        if count > 1 and _is_contested(name, claims, calls, leaves):
            return Way(why=f"{name} is used by a layer and its child")
    if stashed := _find_stashed(claims, calls, graph, leaves):
        return Way(why=f"{stashed} keeps something for later that the losses use")
    users = Counter(name for claim in claims for name in claim.names.values())
    return Way(
        tuple(replace(claim, is_shared=any(users[name] > 1 for name in claim.names.values())) for claim in claims),
        tuple(replace(met, is_shared=len(uses) > 1) for uses in meetings.values() for met in uses),
    )


def _drop_served(claim: Claim, meetings: Mapping[str, Sequence[Met]]) -> Claim:
    """Return the claim without parameters that are served where they meet the examples."""
    return replace(claim, names={own: name for own, name in claim.names.items() if name not in meetings})


def _find_meetings(
    graph: Graph, leaves: Leaves, known: Collection[str], seen: Mapping[int, Place | None]
) -> dict[str, list[Met]]:
    """Return where each parameter that no layer explains meets the examples, for those whose every use is served."""
    users: dict[Node, list[tuple[Node, int]]] = {}
    for node in graph.numbers:
        for place, (child, _) in enumerate(node.next_functions):
            if child is not None:
                users.setdefault(child, []).append((node, place))
    found = {}
    for leaf, name in leaves.nodes.items():
        if name not in known and (uses := _follow_uses(leaf, name, users, graph, seen)):
            found[name] = uses
    return found


def _follow_uses(
    leaf: Node,
    name: str,
    users: Mapping[Node, Sequence[tuple[Node, int]]],
    graph: Graph,
    seen: Mapping[int, Place | None],
) -> list[Met]:
    """Return all meetings of one parameter with the examples; none if one of its uses is not served."""
    waiting, done, found = [leaf], {leaf}, list[Met]()
    while waiting:
        for node, place in users.get(waiting.pop(), ()):
            number = graph.numbers[node]
            if number not in seen:
                return []
            at = seen[number]
            if at is None and node not in done:
                done.add(node)
                waiting.append(node)
            if at is not None:
                if not product.is_served(node, place, at):
                    return []
                found.append(Met(number, place, name, at))
    return found


def _make_claim(number: int, call: Call, leaves: Leaves, place: Place | None) -> Claim | None:
    """Return what a call could explain, None for one without a single tensor as input or without examples."""
    rule = rule_of(call.module)
    if place is None:
        return None
    has_others = bool(call.keywords) or any(isinstance(value, Tensor) for value in call.arguments[1:])
    if call.x is None or (has_others and not rule.is_known):
        return None
    names = _find_names(call, rule, leaves)
    return Claim(number, rule, names, place) if names else None


def _find_names(call: Call, rule: Rule, leaves: Leaves) -> dict[str, str]:
    """Return the trainable parameters that the rule knows, of those in the model."""
    own, names = call.module._parameters, leaves.names
    known = [name for name in call.trainable if name in KNOWN_NAMES] if rule.is_known else call.trainable
    return {name: names[key] for name in known if (key := id(own[name])) in names}


def _count_explained(claim: Claim, call: Call) -> dict[str, int]:
    """Return how many uses of each parameter the call explains."""
    if claim.rule.is_known:
        return dict.fromkeys(claim.names.values(), 1)
    return capture.count_uses_within(call, _own(claim, call))


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
    places = [capture.find_uses_within(calls[claim.number], leaves.parameters[name]) for claim in users]
    return len(set().union(*places)) < sum(map(len, places))


def _find_stashed(claims: Sequence[Claim], calls: Sequence[Call], graph: Graph, leaves: Leaves) -> str | None:
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
        inside = _find_dependent(owned, capture.find_interior(call, leaves.nodes), users)
        start = call.edge.node if call.edge else None
        if any(node is not start and not users.get(node, set()) <= inside for node in inside):
            return call.path or "the model"
    return None


def _find_dependent(leaves: set[Node], inside: set[Node], users: Mapping[Node, set[Node]]) -> set[Node]:
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
    return all(
        has_batch(part.call, part.place, size) and _has_axes(part) and capture.is_unchanged(part.call) for part in parts
    )


def _has_axes(part: Part) -> bool:
    axes = part.rule.axes
    return axes is None or (part.call.x is not None and part.call.x.dim() == axes)
