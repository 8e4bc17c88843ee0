"""Gradients of single examples on the slow way, also when one of them is not finite.

``rules.whole`` differentiates the loss of one example through the graph of the whole batch, with zeros for the others,
and 0·∞ is not 0: one example that is not finite spoils the gradients of all. Dropping all of them is not private,
and refusing tells that the example was drawn. So the model then runs again, on one example at a time.

>>> import torch
>>> from torch import nn
>>> model = nn.Linear(1, 1, bias=False)
>>> root = Root(model)
>>> losses = model(torch.tensor([[1.0], [float("inf")], [5.0]])).squeeze(1)
>>> root.gradients(losses, {"weight": model.weight})["weight"].flatten().tolist()
[1.0, inf, 5.0]
>>> root.close()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from dpfed.errors import InvalidArgument
from dpfed.training.capture import uses_within
from dpfed.training.compat import DRIFT
from dpfed.training.rules import whole
from dpfed.training.rules.pieces import Call


class Root:
    """Remembers how the model itself was called, until a step shows that no parameter needs it, or it is closed."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._calls: list[tuple[Call, Tensor]] = []
        self._is_recording = True
        self._is_needed = False
        self._handle: RemovableHandle | None = None
        self._watch()

    def close(self) -> None:
        """Takes the hook off the model."""
        self._is_needed = False
        self.forget()

    def forget(self) -> None:
        """Nothing; the calls so far, and the graphs that they hold, are not needed any more."""
        self._calls.clear()
        if self._handle is not None and not self._is_needed:
            self._handle.remove()
            self._handle = None

    def gradients(self, losses: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """∂lossᵢ/∂parameter for every example i; not finite only for an example that is not. The graph is kept."""
        self._is_needed = True
        self._watch()
        found = whole.gradients(losses, parameters)
        if all(bool(torch.isfinite(rows).all()) for rows in found.values()):
            return found
        call, output = self._only(losses, parameters)
        state, self._is_recording = torch.get_rng_state(), False
        try:
            found, again = _one_by_one(call, parameters)
        finally:
            self._is_recording = True
        if not torch.equal(state, torch.get_rng_state()) or not _are_equal(again, output):
            raise _refused(parameters, "the model does not give the same twice (random numbers, state)")
        return found

    def _watch(self) -> None:
        if self._handle is None:
            # First of all hooks, as in capture: one that changes the output comes after.
            self._handle = self._model.register_forward_hook(self._record, with_kwargs=True, prepend=True)

    def _record(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        if not self._is_recording or not torch.is_grad_enabled() or not isinstance(output, Tensor):
            return
        if output.grad_fn is not None:
            edge = get_gradient_edge(output)
            call = Call("", module, arguments, keywords, None, 0, (), edge, output.shape)
            self._calls.append((call, output.detach()))

    def _only(self, losses: Tensor, parameters: Mapping[str, Tensor]) -> tuple[Call, Tensor]:
        """The one call of the model in which all parameters were used, with its gradient set, and its output."""
        root = Call("", self._model, (), {}, None, 0, (), get_gradient_edge(losses), losses.shape)
        total = uses_within(root, parameters)
        for call, output in self._calls:
            if call.edge is None or not _has_examples(call, losses) or uses_within(call, parameters) != total:
                continue
            found: Sequence[Tensor | None] = torch.autograd.grad(
                losses, [call.edge], torch.ones_like(losses), retain_graph=True, allow_unused=True
            )
            if found[0] is not None:  # else a call on other data, which these losses do not use
                return replace(call, gradient=found[0].reshape(call.shape)), output
        raise _refused(parameters, "the model is not called once, with one row per example, for all of the loss")


def _has_examples(call: Call, losses: Tensor) -> bool:
    """Whether the first axis of all that goes in and comes out is the example."""
    inputs = [value for value in (*call.arguments, *call.keywords.values()) if isinstance(value, Tensor)]
    is_known = losses.device.type == "cpu"  # the state of other devices' random numbers is not looked at
    return is_known and all(shape[:1] == losses.shape for shape in (call.shape, *[value.shape for value in inputs]))


def _one_by_one(call: Call, parameters: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients by one forward and one backward pass for each example alone, and what the model gave."""
    if call.gradient is None:
        raise RuntimeError("the call has no gradient")
    found = {name: parameter.new_empty(call.shape[0], *parameter.shape) for name, parameter in parameters.items()}
    outputs = torch.empty_like(call.gradient)
    for place in range(call.shape[0]):
        one = slice(place, place + 1)
        arguments = [value[one] if isinstance(value, Tensor) else value for value in call.arguments]
        keywords = {name: value[one] if isinstance(value, Tensor) else value for name, value in call.keywords.items()}
        output = call.module(*arguments, **keywords)
        outputs[one] = output.detach()
        rows = torch.autograd.grad(output, list(parameters.values()), call.gradient[one], allow_unused=True)
        for (name, parameter), row in zip(parameters.items(), rows, strict=True):
            found[name][place] = torch.zeros_like(parameter) if row is None else row
    return found, outputs


def _are_equal(again: Tensor, before: Tensor) -> bool:
    """Whether outputs agree up to the rounding of another batch size; where one is not finite, so is the other."""
    scale = float(before.nan_to_num(0.0, 0.0, 0.0).abs().amax())
    return torch.allclose(again, before, rtol=DRIFT, atol=DRIFT * scale, equal_nan=True)


def _refused(parameters: Mapping[str, Tensor], reason: str) -> InvalidArgument:
    message = f"a value that is not finite reached {', '.join(parameters)}, which only the whole batch explains"
    return InvalidArgument("losses", f"{message}, and {reason}: remove such values, or put the parameters in a layer")
