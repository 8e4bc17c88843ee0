"""Which calls explain which parameters, checked at every step against autograd's graph.

A parameter that no rule saw would be a missing term in every norm. So each use of each trainable parameter in the
graph of the losses has to belong to a recorded call; a parameter with a use that does not (tied through an
expression, used as a function, in a module with several inputs) is a *stray* and goes the slow way, whole.

>>> import torch
>>> from torch import nn
>>> from dpfed.training.capture import Capture, Leaves
>>> model = nn.Linear(2, 2)
>>> capture = Capture(model)
>>> losses = (model(torch.ones(3, 2)) @ model.weight).sum(1)      # the weight is used once more
>>> found = attributed(capture.taken(), losses, Leaves(model), {})
>>> found.strays, [part.names for part in found.parts]
(('weight',), [{'bias': 'bias'}])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from dpfed.errors import InvalidArgument
from dpfed.training import capture
from dpfed.training.capture import Leaves
from dpfed.training.rules.pieces import Call
from dpfed.training.rules.registry import AXES, Rule, known_kind, rule_of

KNOWN_NAMES = ("weight", "bias")
WHOLE = "whole"


@dataclass(slots=True, eq=False)
class Part:
    """One call, its rule, and the parameters that it explains: the module's own name → the model's."""

    call: Call
    rule: Rule
    names: dict[str, str]
    is_shared: bool = False  # another call explains one of the same parameters


class Attribution(NamedTuple):
    """The calls that explain parameters, and the parameters that none explains."""

    parts: list[Part]
    strays: tuple[str, ...]

    @property
    def needs_graph(self) -> bool:
        """Whether the graph is needed after the one backward pass."""
        return bool(self.strays) or not all(part.rule.is_known for part in self.parts)


def attributed(calls: list[Call], losses: Tensor, leaves: Leaves, pinned: Mapping[str, str]) -> Attribution:
    """Who explains what in the graph of these losses."""
    counts, nodes, _ = leaves.uses(losses.grad_fn)
    _require_used(counts)
    parts = []
    claimed = dict.fromkeys(counts, 0)
    for call in calls:
        if call.edge is None or call.edge.node not in nodes or pinned.get(call.path) == WHOLE:
            continue
        part = Part(call, rule_of(call.module), _names(call, leaves))
        if _is_servable(part):
            parts.append(part)
            for name, count in _claims(part).items():
                claimed[name] += count
    strays = {name for name, count in counts.items() if claimed[name] != count} if claimed != counts else set()
    if max(counts.values()) > 1:
        strays |= {name for name in counts if _is_contested(name, parts, leaves)}
    kept = [part for part in parts if _keeps(part, strays, len(losses))]
    if max(counts.values()) > 1:
        users = Counter(name for part in kept for name in part.names.values())
        for part in kept:
            part.is_shared = any(users[name] > 1 for name in part.names.values())
    return Attribution(kept, tuple(name for name in counts if name in strays))


def _names(call: Call, leaves: Leaves) -> dict[str, str]:
    own = call.module._parameters
    return {name: full for name in call.trainable if (full := leaves.names.get(id(own[name]))) is not None}


def _keeps(part: Part, strays: set[str], size: int) -> bool:
    """Whether parameters are left that the call explains; its names are cut down to these."""
    if strays or part.rule.is_known:
        is_known = part.rule.is_known
        part.names = {
            own: full for own, full in part.names.items() if full not in strays and (not is_known or own in KNOWN_NAMES)
        }
    if not part.names:
        return False
    part.call.trainable = tuple(part.names)
    _require_examples(part.call, size)
    return True


def _claims(part: Part) -> dict[str, int]:
    """How many uses of each parameter the call explains."""
    if part.rule.is_known:
        return {full: 1 for own, full in part.names.items() if own in KNOWN_NAMES}
    own = part.call.module._parameters
    return capture.uses_within(
        part.call, {full: p for name, full in part.names.items() if (p := own[name]) is not None}
    )


def _is_contested(name: str, parts: list[Part], leaves: Leaves) -> bool:
    """Whether a use of the parameter is claimed twice: counts could then agree although another use has no claim.

    A module with parameters of its own claims their uses in its children as well, and in whatever it remembers.
    """
    users = [part for part in parts if name in part.names.values()]
    if len(users) < 2 or all(part.rule.is_known for part in users):
        return False
    places = [capture.places_within(part.call, leaves.parameters[name]) for part in users]
    return len(set().union(*places)) < sum(map(len, places))


def _is_servable(part: Part) -> bool:
    """Whether the call has one tensor as input; a module with more goes the slow way."""
    call = part.call
    if call.x is None:
        return False
    others = [*call.arguments[1:], *call.keywords.values()] if call.arguments else [*call.keywords.values()][1:]
    return part.rule.is_known or (not call.keywords and not any(isinstance(value, Tensor) for value in others))


def _require_used(counts: Mapping[str, int]) -> None:
    if unused := [name for name, count in counts.items() if not count]:
        message = (
            f"the losses do not depend on {', '.join(unused)}: freeze it with requires_grad_(False), or use it; "
            "checkpointing with use_reentrant=True hides parameters, use False"
        )
        raise InvalidArgument("model", message)


def _require_examples(call: Call, size: int) -> None:
    """Nothing, unless the first axis of the call's input or output is not the example."""
    shape = tuple(call.x.shape) if call.x is not None else ()
    kind = known_kind(call.module)
    axes = AXES.get(kind, len(shape)) if kind else len(shape)
    if len(shape) != axes:
        message = (
            f"{_where(call)} got one example of shape {shape}, not a batch: give it {axes} axes, the example first"
        )
        raise InvalidArgument("model", message)
    if shape[:1] != (size,) or tuple(call.shape[:1]) != (size,):
        message = (
            f"{_where(call)} maps {shape} to {tuple(call.shape)}, but there are {size} examples: keep the example as "
            f"first axis (batch_first=True, no reshape or broadcast), or pin methods={{{call.path!r}: 'whole'}} (slow)"
        )
        raise InvalidArgument("model", message)


def _where(call: Call) -> str:
    return f"{call.path or 'the model'} ({type(call.module).__name__})"
