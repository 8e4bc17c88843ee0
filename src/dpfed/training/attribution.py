"""Which calls explain which parameters, checked at every step against autograd's graph.

A parameter that no rule saw would be a missing term in every norm. So each use of each trainable parameter in the
graph of the losses has to belong to a recorded call; a parameter with a use that does not (tied through an
expression, used as a function, in a module with several inputs) is a *stray* and goes the slow way, whole.

>>> import torch
>>> from torch import nn
>>> from dpfed.training.capture import Capture
>>> model = nn.Linear(2, 2)
>>> capture = Capture(model)
>>> losses = (model(torch.ones(3, 2)) @ model.weight).sum(1)      # the weight is used once more
>>> found = attributed(capture.taken(), losses, dict(model.named_parameters()), {})
>>> found.strays, [call.trainable for call in found.calls]
(('weight',), [('bias',)])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from dpfed.errors import InvalidArgument
from dpfed.training import capture
from dpfed.training.rules.pieces import Call
from dpfed.training.rules.registry import AXES, Rule, known_kind, rule_of

KNOWN_NAMES = ("weight", "bias")
WHOLE = "whole"


@dataclass(slots=True)
class Attribution:
    """The calls that explain parameters, and the parameters that none explains."""

    calls: list[Call]
    strays: tuple[str, ...]
    _names: Mapping[int, str]
    _rules: Mapping[int, Rule]
    _users: Counter[str] = field(default_factory=Counter)

    def rule(self, call: Call) -> Rule:
        """The rule of the call's module."""
        return self._rules[id(call.module)]

    def names(self, call: Call) -> dict[str, str]:
        """The model's name of each parameter that the call explains, by the module's own name."""
        return {own: self._names[id(call.module._parameters[own])] for own in call.trainable}

    def is_shared(self, call: Call) -> bool:
        """Whether another call explains one of the same parameters."""
        return any(self._users[name] > 1 for name in self.names(call).values())


def attributed(
    calls: list[Call], losses: Tensor, parameters: Mapping[str, nn.Parameter], pinned: Mapping[str, str]
) -> Attribution:
    """Who explains what in the graph of these losses."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    counts, nodes = capture.uses(losses.grad_fn, parameters)
    _require_used(counts)
    used = [call for call in calls if call.edge is not None and call.edge.node in nodes]
    rules = {id(call.module): rule_of(call.module) for call in used}
    servable = [call for call in used if pinned.get(call.path) != WHOLE and _is_servable(call, rules[id(call.module)])]
    claimed: Counter[str] = Counter()
    for call in servable:
        claimed.update(_claims(call, rules[id(call.module)], names))
    strays = {name for name, count in counts.items() if claimed[name] != count}
    found = Attribution([], tuple(name for name in parameters if name in strays), names, rules)
    for call in servable:
        _keep(found, call, strays, len(losses))
    return found


def _keep(found: Attribution, call: Call, strays: set[str], size: int) -> None:
    """Adds the call with the parameters that it explains, if any."""
    explained = [own for own, full in found.names(call).items() if full not in strays]
    if found.rule(call).is_known:
        explained = [own for own in explained if own in KNOWN_NAMES]
    if not explained:
        return
    call.trainable = tuple(explained)
    _require_examples(call, size)
    found.calls.append(call)
    found._users.update(found.names(call).values())


def _claims(call: Call, rule: Rule, names: Mapping[int, str]) -> dict[str, int]:
    """How many uses of each parameter the call explains."""
    own = {name: call.module._parameters[name] for name in call.trainable}
    if rule.is_known:
        return {names[id(own[name])]: 1 for name in call.trainable if name in KNOWN_NAMES}
    return capture.uses_within(call, {names[id(p)]: p for p in own.values() if p is not None})


def _is_servable(call: Call, rule: Rule) -> bool:
    """Whether the call has one tensor as input; a module with more goes the slow way."""
    if call.x is None:
        return False
    others = [*call.arguments[1:], *call.keywords.values()] if call.arguments else [*call.keywords.values()][1:]
    return rule.is_known or (not call.keywords and not any(isinstance(value, Tensor) for value in others))


def _require_used(counts: Mapping[str, int]) -> None:
    if unused := [name for name, count in counts.items() if not count]:
        message = (
            f"the losses do not depend on {', '.join(unused)}: freeze it with requires_grad_(False), or use it; "
            "checkpointing with use_reentrant=True hides parameters, use False"
        )
        raise InvalidArgument("model", message)


def _require_examples(call: Call, size: int) -> None:
    """Nothing, unless the first axis of the call's input or output is not the example."""
    where = f"{call.path or 'the model'} ({type(call.module).__name__})"
    shape = tuple(call.x.shape) if call.x is not None else ()
    kind = known_kind(call.module)
    axes = AXES.get(kind, len(shape)) if kind else len(shape)
    if len(shape) != axes:
        message = f"{where} got one example of shape {shape}, not a batch: give it {axes} axes, the example first"
        raise InvalidArgument("model", message)
    if shape[:1] != (size,) or tuple(call.shape[:1]) != (size,):
        message = (
            f"{where} maps {shape} to {tuple(call.shape)}, but there are {size} examples: keep the example as first "
            f"axis (batch_first=True, no reshape, no broadcast), or pin methods={{{call.path!r}: {WHOLE!r}}} (slow)"
        )
        raise InvalidArgument("model", message)
