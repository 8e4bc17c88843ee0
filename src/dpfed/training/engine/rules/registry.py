"""Choose the rule that serves a module, and the fastest of its methods here.

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
from dpfed.training.engine.rules import bag, conv, embedding, general, linear, meeting, norms
from dpfed.training.engine.rules.contributions import Call, Materialised, Method, Piece
from dpfed.training.layers.projection import KnownProjection

TRIALS = 3
EXAMPLES = 16  # made up, that methods are timed on
NUMBERS = 2**25  # of these together, at most: else a trial might take the most memory of a run
GHOSTS = ("ghost", "kernel", "multiplied")  # norms from Gram matrices, the sum apart from them
KERNELS = GHOSTS[1:]  # these two leave the same room
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
    hides: Callable[[Call], bool] | None = None  # whether gradients are not written out, by shapes alone


LINEAR = Rule("linear", linear.methods, linear.direct, is_positional=True, hides=linear.hides)
CONV = Rule("conv", conv.methods, conv.direct, hides=conv.hides)
EMBEDDING = Rule("embedding", embedding.methods, embedding.direct, is_positional=True)
BAG = Rule("bag", bag.methods, bag.direct, axes=2)
NORM = Rule("norm", norms.methods, norms.direct)
MEETING = Rule("meeting", meeting.methods, meeting.direct)
LEAF = Rule("leaf", general.methods, general.direct, is_known=False)
PARAMETER = Rule("parameter", general.owner_methods, general.direct, is_known=False)

_RULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((*linear.KINDS, KnownProjection), LINEAR),
    **{kind: replace(CONV, axes=conv.DIMENSIONS[kind]) for kind in conv.KINDS},
    **dict.fromkeys(embedding.KINDS, EMBEDDING),
    **dict.fromkeys(bag.KINDS, BAG),
    **{
        kind: replace(NORM, axes=norms.DIMENSIONS.get(kind), is_positional=kind not in norms.BY_CHANNEL)
        for kind in norms.KINDS
    },
}


def rule_of(module: nn.Module) -> Rule:
    """Return the rule that serves the module."""
    kind = type(module)
    rule = None if "forward" in module.__dict__ else _find_rule(kind, kind.forward)  # type: ignore[arg-type]  # hashable
    if rule is not None:
        return rule
    return PARAMETER if general.owns_bare_parameters(module) else LEAF


@cache
def _find_rule(type_: type[nn.Module], forward: object) -> Rule | None:
    """Return the rule of the layer that the class is, if its forward pass is that layer's."""
    kind = next((kind for kind in type_.__mro__ if kind in _RULES), None)
    return _RULES[kind] if kind is not None and forward is kind.forward else None


def choose_contribution(
    call: Call, rule: Rule, pinned: str | None, chosen: dict[Hashable, str], *, is_written: bool = False
) -> Piece:
    """Choose the method for a call, the pinned or the fastest one for its shape, and return the contribution.

    With ``is_written`` only by methods that write gradients, or their factors, out.

    Privacy: where positions of a record nearly cancel, what is left of its gradient is rounding, which each method does
    in its own way; two methods then give sums that are clip norms apart. So one method serves a layer in all batches,
    whatever their size, and it is chosen on made-up examples: neither by the records nor by how many were drawn.
    """
    ways = rule.methods(call)
    if is_written:
        ways = {name: way for name, way in ways.items() if name not in GHOSTS} or {"direct": rule.direct}
    if pinned is not None:
        if pinned not in ways:
            message = f"{call.path} has the methods {', '.join(ways)} or whole, not {pinned!r}"
            raise InvalidArgument("methods", message)
        return ways[pinned](call)
    ways = _keep_family(ways, rule, call)
    if len(ways) == 1:
        return next(iter(ways.values()))(call)
    x, g = call.pair
    key = (call.path, x.shape[1:], g.shape[1:], call.trainable)
    name = chosen.get(key)
    if name not in ways:
        name = chosen[key] = _find_fastest(call, ways, key)
    return ways[name](call)


def _keep_family(ways: dict[str, Method], rule: Rule, call: Call) -> dict[str, Method]:
    """Keep the methods that write gradients out or those that do not: never both, and not by the size of the batch.

    They leave unequal room for rounding, which a record makes matter by positions that cancel: one record more or less
    must not change which of them serves all the others.
    """
    written = {name: way for name, way in ways.items() if name not in GHOSTS}
    same_room = KERNELS if set(KERNELS) <= set(ways) else GHOSTS
    hidden = {name: ways[name] for name in same_room if name in ways}
    if not written or not hidden:
        return written or hidden
    return hidden if rule.hides is not None and rule.hides(call) else written


def _find_fastest(call: Call, ways: dict[str, Method], key: tuple[Hashable, ...]) -> str:
    """Return the name of the method that took the least processor time; the same layer elsewhere is not timed again."""
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
        part = _make_up(call)
        name = _CHOICES[layer] = min(ways, key=lambda way: _seconds(ways[way], part))
    return name


def _make_up(call: Call) -> Call:
    """Return the call with made-up examples, as many as its shapes allow."""
    x, g = call.pair
    parameters = sum(call.module.get_parameter(name).numel() for name in call.trainable)
    count = max(1, min(EXAMPLES, NUMBERS // (x.shape[1:].numel() + g.shape[1:].numel() + parameters)))
    statistics = call.statistics and (_ones(count, call.statistics[0]), _ones(count, call.statistics[1]))
    weights = None if call.weights is None else _ones(count, call.weights)
    return replace(call, x=_ones(count, x), gradient=_ones(count, g), statistics=statistics, weights=weights)


def _ones(count: int, like: Tensor) -> Tensor:
    return like.new_ones((count, *like.shape[1:]))


def _seconds(method: Method, call: Call) -> float:
    _, g = call.pair
    ones = g.new_ones(len(g))
    return min(_once(method, call, ones) for _ in range(TRIALS))


def _once(method: Method, call: Call, coefficients: Tensor) -> float:
    start = time.process_time()
    piece = method(call)
    piece.norms()
    piece.sum_weighted(coefficients)
    return time.process_time() - start
