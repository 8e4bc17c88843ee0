"""Σᵢ cᵢgᵢ, the clipped sum of per-example gradients, at little more than the price of plain SGD.

Book-keeping (Bu et al. 2023): one forward pass, one backward pass with respect to the layers' outputs only. From each
layer's input and output gradient come the norms of all examples' gradients and, once these are known, the clipped sum.
Nothing is differentiated twice, and gradients of single examples are written out only where that is cheaper.

>>> import torch
>>> from torch import nn
>>> model = nn.Linear(2, 1, bias=False)
>>> with ClippedGradients(model, clip_norm=1.0) as gradients:
...     losses = model(torch.tensor([[3.0, 4.0], [0.0, 0.5]])).squeeze(1)      # one loss per example
...     total = gradients.sum(losses)["weight"]
>>> [round(value, 3) for value in total.flatten().tolist()]      # (3, 4) is cut to length 1
[0.6, 1.3]
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.training import compat, shared
from dpfed.training.attribution import Attribution, Part, attributed
from dpfed.training.capture import Capture, Leaves, require_unchanged
from dpfed.training.rerun import Root
from dpfed.training.rules import registry
from dpfed.training.rules.pieces import Call, Materialised, Piece, rows_of

# Gradients are cut to clip_norm·(1 − TOLERANCE). A norm is at most NORM_ERROR = 3.2e-5 of itself too small (proved in
# rules/pieces.py), and its coefficient has a few roundings, below 1e-6 together. The rest, two thirds, is for the
# rounding of the sum: n examples added in float32 are off by at most n²·2⁻²⁴·clip_norm, whatever the order, so that
# n ≤ 23 is covered for certain; in practice it is about √n·2⁻²⁴·clip_norm. Beyond that the promise is for ideal sums,
# as it is for ideal noise; with ``exact`` everything is added in float64 and covered for certain.
TOLERANCE = 1e-4
# √n · 1.1e-19 of a gradient of n numbers may vanish by underflow: nothing beside the tolerance from this clip norm on.
LEAST_CLIP_NORM = 1e-9
# A gradient this many clip norms long counts as not finite: its coefficient would leave the range of float32.
REACH = 1e30

# A piece, and the model's names of its parameters by the module's own.
Named = tuple[Piece, Mapping[str, str]]


class ClippedGradients:
    """Hooks on a model that turn per-example losses into the clipped sum of per-example gradients.

    Privacy: with examples that do not mix, adding or removing one example moves the sum by at most ``clip_norm`` in
    L2 (all trainable parameters together): each is cut to clip_norm·(1 − TOLERANCE), one whose gradient is not finite
    counts as zero. That examples do not mix is tested on the losses' gradients at steps 1, 2, 4, 8, …, and by
    ``compat.check`` on the layers; values that mix without a gradient are found by ``compat.probe`` only.
    """

    def __init__(self, model: nn.Module, *, clip_norm: float, methods: Mapping[str, str] | None = None) -> None:
        self.clip_norm = _require_clip_norm(clip_norm)
        compat.check(model)
        self._model = model
        self._pinned = _require_methods(model, methods or {})
        self._chosen: dict[Hashable, str] = {}
        self._steps = 0
        self._leaves = Leaves(model)
        self._capture = Capture(model)
        self._root = Root(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Takes the hooks off the model."""
        self._capture.close()
        self._root.close()

    def sum(self, losses: Tensor, *, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Σ weightᵢ·min(1, clip/‖gᵢ‖)·gᵢ for every trainable parameter, from the losses of one forward pass.

        ``weights`` are 0 or 1, a mask of padding. Whatever the forward pass has recorded is used up.
        """
        calls = self._capture.taken()
        size = _require_losses(losses)
        mask = _require_weights(weights, losses)
        if size == 0:
            self._leaves.find()
            return {name: torch.zeros_like(parameter) for name, parameter in self._leaves.parameters.items()}
        if losses.grad_fn is None:
            raise InvalidArgument("losses", "losses have no gradient: compute them outside torch.no_grad()")
        with self._capture.paused():
            plan = attributed(calls, losses, self._leaves, self._pinned)
            try:
                return self._summed(plan, losses, mask)
            finally:
                self._root.forget()

    def _summed(self, plan: Attribution, losses: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        parameters = self._leaves.parameters
        dtype = _one_type(parameters)
        for part in plan.parts:
            require_unchanged(part.call)
        self._require_independent([part.call for part in plan.parts], losses)
        _differentiate(plan, losses, dtype)
        strays = self._root.gradients(losses, {name: parameters[name] for name in plan.strays}) if plan.strays else {}
        with torch.no_grad():
            pieces = self._pieces(plan.parts, strays, losses)
            norms = _norms(pieces)
            longest = REACH * self.clip_norm
            if not norms.sum().item() <= longest:
                # A value that is not finite would poison the sum even with coefficient 0, so its example is emptied.
                bad = ~(norms <= longest)
                parts = [replace(part, call=_emptied(part.call, bad)) for part in plan.parts]
                pieces = self._pieces(parts, strays, losses, bad)
                norms = _norms(pieces)
                norms.masked_fill_(~(norms <= longest), torch.inf)  # the coefficient of what still is not is 0
            return _weighted(pieces, self._coefficients(norms, mask).to(dtype), parameters)

    def _coefficients(self, norms: Tensor, mask: Tensor | None) -> Tensor:
        """min(1, clip/norm) of every example, 0 for one that is masked; the norms are used up."""
        limit = self.clip_norm * (1 - TOLERANCE)
        found = norms.reciprocal_().mul_(limit).clamp_(max=1.0)
        return found if mask is None else found.mul_(mask)

    def _pieces(
        self, parts: Iterable[Part], strays: dict[str, Tensor], losses: Tensor, bad: Tensor | None = None
    ) -> list[Named]:
        """What each call contributes, with the full names of its parameters; each parameter is in one piece only."""
        pieces: list[Named] = []
        joint: dict[str, Tensor] = {**strays}
        for group in shared.grouped(parts):
            call = group[0].call
            try:
                if group[0].is_shared:
                    pieces += shared.pieces(group, self._chosen)
                else:
                    piece = registry.made(call, group[0].rule, self._pinned.get(call.path), self._chosen)
                    pieces.append((piece, group[0].names))
            except RuntimeError as error:
                if all(part.rule.is_known for part in group):
                    raise
                # vmap refuses randomness, state and some operations: the whole model is the way that is left.
                missing = {full: self._leaves.parameters[full] for part in group for full in part.names.values()}
                joint.update(self._by_whole(losses, missing, call, error))
        if joint:
            rows = {name: rows_of(values if bad is None else _zeroed(values, bad)) for name, values in joint.items()}
            pieces.append((Materialised(rows), {name: name for name in rows}))
        return pieces

    def _by_whole(
        self, losses: Tensor, missing: dict[str, nn.Parameter], call: Call, error: RuntimeError
    ) -> dict[str, Tensor]:
        with torch.enable_grad():
            try:
                return self._root.gradients(losses, missing)
            except RuntimeError:
                message = f"no rule can clip the gradients of {call.path or 'the model'} ({type(call.module).__name__})"
                raise InvalidArgument("model", f"{message}: {error}") from error

    def _require_independent(self, calls: list[Call], losses: Tensor) -> None:
        """Nothing, unless the loss of one example has a gradient at another example's place."""
        self._steps += 1
        edges = [call.edge for call in calls if call.edge is not None]
        if len(losses) < 2 or not edges or self._steps & (self._steps - 1):
            return
        place = len(losses) // 2
        found: Sequence[Tensor | None] = torch.autograd.grad(losses[place], edges, retain_graph=True, allow_unused=True)
        for call, gradient in zip(calls, found, strict=True):
            if gradient is None:
                continue
            others = gradient.reshape(call.shape).clone()
            others[place] = 0
            if bool((others.nan_to_num(posinf=0.0, neginf=0.0) != 0).any()):
                message = (
                    f"the loss of one example depends on other examples at {call.path or 'the model'}: clipping "
                    "protects no record then; keep the example as first axis (batch_first) and mix nothing across it"
                )
                raise InvalidArgument("losses", message)


def _differentiate(plan: Attribution, losses: Tensor, dtype: torch.dtype) -> None:
    """Sets the output gradient of every call, by the one backward pass."""
    calls = [part.call for part in plan.parts]
    if not calls:
        return
    edges = [call.edge for call in calls if call.edge is not None]
    found: Sequence[Tensor | None] = torch.autograd.grad(
        losses, edges, torch.ones_like(losses), retain_graph=plan.needs_graph, allow_unused=True
    )
    for call, gradient in zip(calls, found, strict=True):
        if gradient is None:
            gradient = losses.new_zeros(call.shape, dtype=dtype)
        call.gradient = gradient if gradient.shape == call.shape else gradient.reshape(call.shape)
        _require_same_type(call, dtype)


def _norms(pieces: list[Named]) -> Tensor:
    first, *others = (piece.square_norms() for piece, _ in pieces)
    for other in others:
        first = first.add_(other)
    return first.sqrt_()


def _weighted(pieces: list[Named], coefficients: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The sums of all pieces under the parameters' full names, every trainable parameter exactly once."""
    sums: dict[str, Tensor] = {}
    while pieces:
        piece, names = pieces.pop()
        sums.update({names[own]: value for own, value in piece.weighted(coefficients).items()})
    if missing := parameters.keys() - sums.keys():
        raise InvalidArgument("model", f"no rule gave a gradient of {', '.join(sorted(missing))}")
    return {name: sums[name] for name in parameters}


def _emptied(call: Call, bad: Tensor) -> Call:
    """The call with zeros for the examples that are not finite."""
    x, g = call.pair
    x = _zeroed(x, bad) if x.is_floating_point() else x
    return replace(call, x=x, gradient=_zeroed(g, bad), statistics=None)


def _zeroed(values: Tensor, bad: Tensor) -> Tensor:
    return values.masked_fill(bad.view(-1, *[1] * (values.dim() - 1)), 0)


def _require_clip_norm(clip_norm: float) -> float:
    if checks.positive(clip_norm=clip_norm) < LEAST_CLIP_NORM:
        message = f"clip_norm must be at least {LEAST_CLIP_NORM:g} for sums in floating point, got {clip_norm}"
        raise InvalidArgument("clip_norm", message)
    return clip_norm


def _require_losses(losses: Tensor) -> int:
    if not isinstance(losses, Tensor) or losses.dim() != 1:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        message = f'losses must have one value per example, shape (batch,), got {shape}: use reduction="none"'
        raise InvalidArgument("losses", message + ", and .flatten(1).mean(1) where an example has several values")
    return len(losses)


def _require_weights(weights: Tensor | None, losses: Tensor) -> Tensor | None:
    if weights is None:
        return None
    if weights.shape != losses.shape or not bool(((weights == 0) | (weights == 1)).all()):
        message = f"weights must be 0 or 1 for each of the {len(losses)} examples, got {tuple(weights.shape)} values"
        raise InvalidArgument("weights", message)
    return weights.to(torch.float64)


def _one_type(parameters: Mapping[str, nn.Parameter]) -> torch.dtype:
    """The type of all parameters."""
    kinds = {p.dtype for p in parameters.values()}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        found = ", ".join(sorted(map(str, kinds)))
        message = f"trainable parameters must all be float32 or all float64, got {found}: norms need the precision"
        raise InvalidArgument("model", message)
    return kinds.pop()


def _require_same_type(call: Call, expected: torch.dtype) -> None:
    x, g = call.pair
    if g.dtype != expected or (x.is_floating_point() and x.dtype != expected):
        message = f"{call.path or 'the model'} ran in {g.dtype} with {expected} parameters: train without autocast"
        raise InvalidArgument("model", message)


def _require_methods(model: nn.Module, methods: Mapping[str, str]) -> dict[str, str]:
    paths = {path for path, _ in model.named_modules()}
    if unknown := sorted(set(methods) - paths):
        raise InvalidArgument("methods", f"methods names modules that the model does not have: {', '.join(unknown)}")
    return dict(methods)
