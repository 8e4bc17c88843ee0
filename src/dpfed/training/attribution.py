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
from dpfed.training.rules.registry import Rule, rule_of

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
        rule = rule_of(call.module)
        part = Part(call, rule, _names(call, rule, leaves))
        if _is_servable(part):
            parts.append(part)
            for name, count in _claims(part).items():
                claimed[name] += count
    strays = {name for name, count in counts.items() if claimed[name] != count} if claimed != counts else set()
    is_reused = max(counts.values()) > 1
    if is_reused:
        strays |= {name for name in counts if _is_contested(name, parts, leaves)}
    size = losses.shape[0]
    kept = [part for part in parts if _keeps(part, strays, size)]
    if is_reused:
        users = Counter(name for part in kept for name in part.names.values())
        for part in kept:
            part.is_shared = any(users[name] > 1 for name in part.names.values())
    return Attribution(kept, tuple([name for name in counts if name in strays]) if strays else ())


def _names(call: Call, rule: Rule, leaves: Leaves) -> dict[str, str]:
    """The trainable parameters that the rule knows, of those in the model."""
    own, names = call.module._parameters, leaves.names
    known = [name for name in call.trainable if name in KNOWN_NAMES] if rule.is_known else call.trainable
    return {name: names[key] for name in known if (key := id(own[name])) in names}


def _keeps(part: Part, strays: set[str], size: int) -> bool:
    """Whether parameters are left that the call explains; its names are cut down to these."""
    if strays:
        part.names = {own: full for own, full in part.names.items() if full not in strays}
    if not part.names:
        return False
    part.call.trainable = tuple(part.names)
    _require_examples(part, size)
    return True


def _claims(part: Part) -> dict[str, int]:
    """How many uses of each parameter the call explains."""
    if part.rule.is_known:
        return dict.fromkeys(part.names.values(), 1)
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
    if call.x is None or part.rule.is_known:
        return call.x is not None
    return not call.keywords and not any(isinstance(value, Tensor) for value in call.arguments[1:])


def _require_used(counts: Mapping[str, int]) -> None:
    if not all(counts.values()):
        unused = [name for name, count in counts.items() if not count]
        message = (
            f"the losses do not depend on {', '.join(unused)}: freeze it with requires_grad_(False), or use it; "
            "checkpointing with use_reentrant=True hides parameters, use False"
        )
        raise InvalidArgument("model", message)


def _require_examples(part: Part, size: int) -> None:
    """Nothing, unless the first axis of the call's input or output is not the example."""
    call, axes = part.call, part.rule.axes
    shape = tuple(call.x.shape) if call.x is not None else ()
    if axes is not None and len(shape) != axes:
        message = (
            f"{_where(call)} got one example of shape {shape}, not a batch: give it {axes} axes, the example first"
        )
        raise InvalidArgument("model", message)
    if not shape or not call.shape or shape[0] != size or call.shape[0] != size:
        message = (
            f"{_where(call)} maps {shape} to {tuple(call.shape)}, but there are {size} examples: keep the example as "
            f"first axis (batch_first=True, no reshape or broadcast), or pin methods={{{call.path!r}: 'whole'}} (slow)"
        )
        raise InvalidArgument("model", message)


def _where(call: Call) -> str:
    return f"{call.path or 'the model'} ({type(call.module).__name__})"
