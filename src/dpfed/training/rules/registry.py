"""Which rule serves which module, and which of its methods is fastest here.

A rule is chosen by what the module's forward pass really is: a subclass that overrides ``forward`` (or an instance
with one of its own) is not the layer it derives from, and goes to the general rule.

>>> from torch import nn
>>> rule_of(nn.Linear(2, 2)).name, rule_of(nn.Bilinear(2, 2, 2)).name
('linear', 'leaf')
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from dpfed.errors import InvalidArgument
from dpfed.training.projection import Known
from dpfed.training.rules import bag, conv, embedding, leaf, linear, meeting, norms, parameter
from dpfed.training.rules.pieces import Call, Materialised, Method, Piece

TRIALS = 3
EXAMPLES = 64  # that methods are timed on, at most, and half of a batch: else it would take the most memory of a run
GHOSTS = ("ghost", "kernel")  # norms from Gram matrices, the sum apart from them
_CHOICES: dict[tuple[object, ...], str] = {}


@dataclass(frozen=True, slots=True)
class Rule:
    """How the gradients of one kind of module are made; ``direct`` writes them out in the parameter's own order."""

    name: str
    methods: Callable[[Call], dict[str, Method]]
    direct: Callable[[Call], Materialised]
    is_known: bool = True
    axes: int | None = None  # of an input with the example first; with one less, torch takes it for one example
    is_positional: bool = False  # the same for each position, whichever axes examples and positions are


LINEAR = Rule("linear", linear.methods, linear.direct, is_positional=True)
CONV = Rule("conv", conv.methods, conv.direct)
EMBEDDING = Rule("embedding", embedding.methods, embedding.direct, is_positional=True)
BAG = Rule("bag", bag.methods, bag.direct, axes=2)
NORM = Rule("norm", norms.methods, norms.direct)
MEETING = Rule("meeting", meeting.methods, meeting.direct)
LEAF = Rule("leaf", leaf.methods, leaf.direct, is_known=False)
PARAMETER = Rule("parameter", parameter.methods, leaf.direct, is_known=False)

_RULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((*linear.KINDS, Known), LINEAR),
    **{kind: replace(CONV, axes=conv.DIMENSIONS[kind]) for kind in conv.KINDS},
    **dict.fromkeys(embedding.KINDS, EMBEDDING),
    **dict.fromkeys(bag.KINDS, BAG),
    **{
        kind: replace(NORM, axes=norms.DIMENSIONS.get(kind), is_positional=kind not in norms.BY_CHANNEL)
        for kind in norms.KINDS
    },
}


def rule_of(module: nn.Module) -> Rule:
    """The rule that serves the module."""
    kind = type(module)
    rule = None if "forward" in module.__dict__ else _rule_with(kind, kind.forward)  # type: ignore[arg-type]  # hashable
    if rule is not None:
        return rule
    return PARAMETER if parameter.owns_bare_parameters(module) else LEAF


@cache
def _rule_with(type_: type[nn.Module], forward: object) -> Rule | None:
    """The rule of the layer that the class is, if its forward pass is that layer's."""
    kind = next((kind for kind in type_.__mro__ if kind in _RULES), None)
    return _RULES[kind] if kind is not None and forward is kind.forward else None


def made(call: Call, rule: Rule, pinned: str | None, chosen: dict[Hashable, str], *, is_written: bool = False) -> Piece:
    """The call's piece by the pinned method, or by the fastest one known for its shape.

    With ``is_written`` only by methods that write gradients, or their factors, out.
    """
    ways = rule.methods(call)
    if is_written:
        ways = {name: way for name, way in ways.items() if name not in GHOSTS} or {"direct": rule.direct}
    if pinned is not None:
        if pinned not in ways:
            message = f"{call.path} has the methods {', '.join(ways)} or whole, not {pinned!r}"
            raise InvalidArgument("methods", message)
        return ways[pinned](call)
    if len(ways) == 1:
        return next(iter(ways.values()))(call)
    x, g = call.pair
    key = (call.path, x.shape[1:], g.shape[1:], len(g).bit_length(), call.trainable)
    name = chosen.get(key)
    if name not in ways:
        name = chosen[key] = _fastest(call, ways, key)
    return ways[name](call)


def _fastest(call: Call, ways: dict[str, Method], key: tuple[Hashable, ...]) -> str:
    """The name of the method that took the least processor time; the same layer elsewhere is not timed again."""
    _, g = call.pair
    layer: tuple[object, ...] = (
        type(call.module),
        call.module.extra_repr(),
        *key[1:],
        g.dtype,
        g.device,
        torch.get_num_threads(),
    )
    name = _CHOICES.get(layer)
    if name not in ways:
        part = _part(call)
        name = _CHOICES[layer] = min(ways, key=lambda way: _seconds(ways[way], part))
    return name


def _part(call: Call) -> Call:
    """The call with its first examples only."""
    x, g = call.pair
    some = slice(min(EXAMPLES, -(-len(g) // 2)))
    statistics = call.statistics and (call.statistics[0][some], call.statistics[1][some])
    weights = None if call.weights is None else call.weights[some]
    return replace(call, x=x[some], gradient=g[some], statistics=statistics, weights=weights)


def _seconds(method: Method, call: Call) -> float:
    _, g = call.pair
    ones = g.new_ones(len(g))
    return min(_once(method, call, ones) for _ in range(TRIALS))


def _once(method: Method, call: Call, coefficients: Tensor) -> float:
    start = time.process_time()
    piece = method(call)
    piece.norms()
    piece.weighted(coefficients)
    return time.process_time() - start
