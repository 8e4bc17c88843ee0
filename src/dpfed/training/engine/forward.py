"""A forward pass that can be run again, on all of its examples or on some of them.

The engine runs a pass again to watch it (`independence`), and one example at a time where it cannot rely on the
places of examples. A step that knows model and loss is such a pass. Of a loop that gives only losses the model's own
call is one: the gradients of the losses with respect to its outputs stand for the loss.

>>> import torch
>>> forward = Forward(lambda x, y: (x.sum(1) - y).square(), (torch.ones(3, 2), torch.arange(3.0)), size=3)
>>> forward.losses().tolist(), forward.rows([2, 0]).losses().tolist()
([4.0, 1.0, 0.0], [0.0, 4.0])
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from dpfed.errors import InvalidArgument
from dpfed.training.engine.copied import copy_on_write
from dpfed.training.engine.watch.calls import CallLog, CallRecorder, Identity

_ROUNDING = 1e-4
_SEVERAL = (list, tuple)


@dataclass(frozen=True, eq=False)
class Forward:
    """A function of some values to one loss for each of `size` examples, which are the first axis of tensors in them.

    A tensor with another first axis is the same for all examples. `loss` distinguishes programs whose graphs are equal.
    `part` is given for a pass that stands for a part of another one: the last nodes of its own part, and the log of
    that part's calls of torch (`calls`).
    """

    function: Callable[..., Tensor]
    values: tuple[Any, ...]
    size: int
    loss: Hashable = None
    part: Callable[[], tuple[list[Node], CallLog]] | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors in the values that have the examples."""
        return [tensor for tensor in tensors_of(self.values) if tensor.shape[:1] == (self.size,)]

    @property
    def shapes(self) -> Hashable:
        """The shape and type of each tensor, for one example."""
        return tuple([(tensor.shape[1:], tensor.dtype) for tensor in tensors_of(self.values)])

    @property
    def is_separable(self) -> bool:
        """Whether every tensor has the examples, so that the pass can be run on some of them."""
        return all(tensor.shape[:1] == (self.size,) for tensor in tensors_of(self.values))

    def losses(self) -> Tensor:
        """Run the pass and return the losses; refuse any other number than one per example."""
        losses = self.function(*self.values)
        require_losses(losses, self.size)
        return losses

    def run(self) -> tuple[Tensor, list[Node] | None, CallLog]:
        """Run the pass; return the losses, the roots of its own part (None if all of it is), and the log of calls."""
        # A pass may write into what it is given, and then the next one, over single examples, would see what all of
        # them together have made of it.
        values = map_tensors(self.values, copy_on_write)
        if self.part is not None:
            return replace(self, values=values).losses(), *self.part()
        with CallRecorder(self.size, tensors_of(values)) as calls:
            losses = self.function(*values)
        require_losses(losses, self.size)
        return losses, None, calls.log

    def rows(self, numbers: Sequence[int]) -> Forward:
        """Return the pass over the examples with these numbers, which may be repeated."""
        chosen = torch.tensor(numbers, dtype=torch.long)

        def rows(value: Tensor) -> Tensor:
            return value[chosen.to(value.device)] if value.shape[:1] == (self.size,) else value

        return replace(self, values=map_tensors(self.values, rows), size=len(numbers))


def make_forward(model: nn.Module, loss: Callable[[Any, Any], Tensor], inputs: Any, targets: Any) -> Forward:
    """Return the pass that gives loss(model(inputs), targets)."""
    sizes = {tensor.shape[:1] for tensor in tensors_of((inputs, targets))}
    if len(sizes) != 1 or not (first := sizes.pop()) or not _are_tensors((inputs, targets)):
        message = "inputs and targets must be tensors, or tuples and dicts of tensors, with the example as first axis"
        raise InvalidArgument("data", f"{message}: let the collate_fn make them so")
    return Forward(lambda given, wanted: loss(model(given), wanted), (inputs, targets), first[0], Identity(loss))


def _are_tensors(value: Any) -> bool:
    """Return whether the value has nothing but tensors: anything else cannot be split into examples."""
    if isinstance(value, Tensor):
        return True
    if isinstance(value, _SEVERAL):
        return all(map(_are_tensors, value))
    return isinstance(value, Mapping) and all(map(_are_tensors, value.values()))


def require_losses(losses: Any, size: int | None = None) -> int:
    """Return the number of losses; refuse losses that are not one value per example."""
    if isinstance(losses, Tensor) and losses.dim() == 1 and size in (None, losses.shape[0]):
        return losses.shape[0]
    shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    wanted = "(batch,)" if size is None else f"({size},)"
    message = f'losses must have one value per example, shape {wanted}, got {shape}: use reduction="none"'
    raise InvalidArgument("losses", message + ", and .flatten(1).mean(1) where an example has several values")


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in a value, which may be nested in tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, _SEVERAL):
        return [tensor for part in value for tensor in tensors_of(part)]
    if isinstance(value, Mapping):
        return tensors_of(tuple(value.values()))
    return []


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply the function to each tensor in a value; a tensor that occurs twice is replaced by one and the same."""
    made: dict[int, Tensor] = {}

    def walk(part: Any) -> Any:
        if isinstance(part, Tensor):
            if id(part) not in made:
                made[id(part)] = function(part)
            return made[id(part)]
        if isinstance(part, Mapping):
            return {name: walk(inner) for name, inner in part.items()}
        if isinstance(part, list | tuple):
            parts = [walk(inner) for inner in part]
            return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
        return part

    return walk(value)


def anomaly_mode_off() -> AbstractContextManager[Any]:
    """Switch torch's anomaly detection off inside, which would stop at an example whose gradient is not finite."""
    return torch.autograd.set_detect_anomaly(False) if torch.is_anomaly_enabled() else nullcontext()


class Recorder:
    """Hooks that record how the model itself was called, until losses show which of the calls they come from.

    One that is not `is_on` records nothing.
    """

    def __init__(self, model: nn.Module, *, is_on: bool = True) -> None:
        self._model = model
        self._calls: list[_ModelCall] = []
        self._is_recording = True
        self._replayed: tuple[list[Node], CallLog] = ([], CallLog())  # by the calls that were run again last
        self._asking: CallRecorder | None = None
        self._handles: list[RemovableHandle] = []
        if is_on:
            self._handles = [
                model.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True),
                # First of all hooks: one that changes the output comes after what this one records.
                model.register_forward_hook(self._record, with_kwargs=True, prepend=True),
                model.register_forward_hook(self._end, always_call=True),
            ]

    def close(self) -> None:
        """Remove the hooks from the model."""
        for handle in self._handles:
            handle.remove()
        self._end(self._model, (), None)
        self.forget()

    def keep(self, nodes: Collection[Node]) -> list[Node]:
        """Drop calls whose outputs are not among the nodes of a graph; return the output nodes of the others."""
        self._calls = [call for call in self._calls if any(edge.node in nodes for edge in call.edges)]
        return [edge.node for call in self._calls for edge in call.edges]

    @property
    def asked(self) -> CallLog:
        """The log of what the calls that were kept have called of torch."""
        return CallLog(tuple([call.asked for call in self._calls]))

    def forget(self) -> None:
        """Drop what was recorded, together with the graphs that it holds."""
        self._calls.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing inside."""
        before, self._is_recording = self._is_recording, False
        try:
            yield
        finally:
            self._is_recording = before

    def make_forward(self, losses: Tensor) -> Forward:
        """Return a pass that runs the model's calls again and has the same gradients as these losses.

        The gradient of a loss with respect to an output stands for all that comes after it. It must have rows for the
        examples: losses that depend on the outputs of several are refused.
        """
        edges = [edge for call in self._calls for edge in call.edges]
        if not edges:
            raise _make_refusal("the model itself was not called")
        weights = torch.linspace(1, 2, len(losses), dtype=losses.dtype, device=losses.device)
        with anomaly_mode_off():
            plain, weighted = (
                torch.autograd.grad(losses, edges, each, retain_graph=True, allow_unused=True)
                for each in (torch.ones_like(losses), weights)
            )
        shaped = [output for call in self._calls for output in call.outputs]
        found = [_find_rows(*parts, weights) for parts in zip(plain, weighted, shaped, strict=True)]
        calls = map_tensors([(call.arguments, call.keywords) for call in self._calls], Tensor.detach)
        again = partial(self._run_again, [None if each is None else each[0] for each in found])
        gradients = [None if each is None else each[1] for each in found]
        return Forward(again, (calls, gradients), len(losses), part=lambda: self._replayed)

    def require_repeatable(self, forward: Forward) -> None:
        """Refuse calls that fail on single examples, or that give other results there."""
        if not forward.is_separable:
            raise _make_refusal("the model was called with tensors whose first axis is not the example")
        with self.paused():
            made = [_find_differentiable(self._model(*call.arguments, **call.keywords)) for call in self._calls]
        for call, outputs in zip(self._calls, made, strict=True):
            if not all(map(_are_close, call.outputs, outputs)):
                raise _make_refusal("the model does not give the same twice (random numbers, state)")
        together = forward.losses()
        try:
            alone = torch.cat([forward.rows([number]).losses() for number in range(forward.size)])
        except Exception as error:
            raise _make_refusal(f"the model fails on one example alone ({type(error).__name__})") from error
        if not _are_close(together, alone):
            raise _make_refusal("the model mixes examples: one alone gives something else")

    def _run_again(self, axes: list[int | None], calls: list[Any], gradients: list[Tensor | None]) -> Tensor:
        """Run the calls again; return ⟨output, gradient⟩ for every example, which is at these axes of the outputs."""
        made, asked = [], []
        for arguments, keywords in calls:
            with self.paused(), _record_calls(arguments, keywords) as asking:
                output = self._model(*arguments, **keywords)
            made.append(_find_differentiable(output))
            asked.append(asking.log)
        outputs = [output for each in made for output in each]
        with DisableTorchFunction():  # this is not the model's doing
            self._replayed = [get_gradient_edge(output).node for output in outputs], CallLog(tuple(asked))
        parts = [
            (output.movedim(axis, 0) * own).reshape(len(own), -1).sum(1)
            for output, axis, own in zip(outputs, axes, gradients, strict=True)
            if axis is not None and own is not None
        ]
        return torch.stack(parts).sum(0)

    def _begin(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._end(module, arguments, None)  # of a call that was interrupted
        if self._is_recording and torch.is_grad_enabled():
            self._asking = _record_calls(arguments, keywords)
            self._asking.__enter__()  # type: ignore[no-untyped-call]

    def _end(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.__exit__(None, None, None)

    def _record(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        asking = self._asking
        if asking is not None:
            self._end(module, arguments, output)
            with DisableTorchFunction():  # what is asked of torch in here is not the model's doing
                self._calls.append(_ModelCall(arguments, keywords, _find_differentiable(output), asking.log))


def _record_calls(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> CallRecorder:
    """Return a recorder of the calls of a pass over these values."""
    given = list(tensors_of((arguments, keywords)))
    return CallRecorder(given[0].shape[0] if given and given[0].dim() else 0, given)


class _ModelCall:
    """One call of the model: its arguments, the log of its calls of torch, and its outputs with their edges."""

    def __init__(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], outputs: list[Tensor], asked: CallLog
    ) -> None:
        self.arguments, self.keywords, self.asked = arguments, keywords, asked
        self.edges = [get_gradient_edge(output) for output in outputs]
        self.outputs = [output.detach() for output in outputs]


def _are_close(before: Tensor, after: Tensor) -> bool:
    """Return whether values agree up to rounding; where one is not finite, so is the other."""
    scale = float(before.detach().nan_to_num(0.0, 0.0, 0.0).abs().amax()) * _ROUNDING
    return torch.allclose(after, before, rtol=_ROUNDING, atol=scale, equal_nan=True)


def _find_differentiable(output: Any) -> list[Tensor]:
    """Return the tensors of an output that have a gradient."""
    return [value for value in tensors_of(output) if value.requires_grad]


def _find_rows(one: Tensor | None, two: Tensor | None, output: Tensor, weights: Tensor) -> tuple[int, Tensor] | None:
    """Return the axis of an output along which each loss has a gradient in its own row only, and the gradient by rows.

    `two` is the gradient with weights for the losses; an output that the losses do not use has none.
    """
    if one is None or two is None:
        return None
    for axis, length in enumerate(output.shape):
        if length == len(weights):
            first, second = (gradient.reshape(output.shape).movedim(axis, 0) for gradient in (one, two))
            if _is_scaled(first, second, weights):
                return axis, first
    raise _make_refusal("the loss of one depends on other examples")


def _is_scaled(one: Tensor, two: Tensor, weights: Tensor) -> bool:
    """Return whether row i of the second gradient is weight i times that of the first, up to rounding."""
    scaled = one * weights.to(one).view(-1, *[1] * (one.dim() - 1))
    is_finite = one.isfinite() & two.isfinite()  # a row that is not finite counts as zero later
    apart = torch.where(is_finite, scaled - two, 0.0).abs()
    return bool((apart <= _ROUNDING * torch.where(is_finite, scaled, 0.0).abs().amax()).all())


def _make_refusal(reason: str) -> InvalidArgument:
    """Return the error for losses from which single examples' gradients cannot be computed."""
    message = f"these losses cannot be clipped example by example: {reason}"
    remedy = "mix nothing across the first axis, or give make_private the loss and call step(batch)"
    return InvalidArgument("losses", f"{message}; {remedy}")
