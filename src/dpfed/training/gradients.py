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

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from dpfed.errors import InvalidArgument
from dpfed.training import compat, shared
from dpfed.training.attribution import Attribution, Part, attributed
from dpfed.training.capture import Capture, Leaves, require_unchanged
from dpfed.training.clip import TOLERANCE, Clip, Named
from dpfed.training.rerun import Root
from dpfed.training.rules import registry
from dpfed.training.rules.pieces import Call, Materialised, rows_of

__all__ = ["REACH", "TOLERANCE", "ClippedGradients"]

# A gradient this many clip norms long counts as not finite: its coefficient would leave the range of float32.
REACH = 1e30


class ClippedGradients:
    """Hooks on a model that turn per-example losses into the clipped sum of per-example gradients.

    `norm` and `layers` say what is clipped to `clip_norm` (`clip.Clip`). With `is_exact` all that comes after a
    layer's input and output gradient is computed in float64, and so are the sums that are given.

    Privacy: with examples that do not mix, adding or removing one example moves the sum by at most ``clip_norm`` in
    the norm (all trainable parameters together): each is cut to a little less (`clip.TOLERANCE`), and one whose
    gradient is not finite counts as zero. This is for ideal sums; with `is_exact` and examples given one at a time
    (and kernels that give the same for the same) it is so for up to `clip.MOST_EXACT` examples as computed. In a larger
    batch torch may round an example's input and output gradient otherwise when other examples are beside it, which
    no clipping sees. That examples do not mix is tested on the losses' gradients at steps 1, 2, 4, 8, …, and by
    ``compat.check`` on the layers; values that mix without a gradient are found by ``compat.probe`` only.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        clip_norm: float,
        norm: str = "l2",
        layers: str = "together",
        is_exact: bool = False,
        methods: Mapping[str, str] | None = None,
    ) -> None:
        self.clip = Clip(clip_norm, norm, layers)
        self.is_exact = is_exact
        # Gram matrices have no L1 norm, and the sum apart from them rounds by more than its norm may tell.
        self._is_written = is_exact or norm == "l1"
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
        return self.sum_and_norms(losses, weights=weights)[0]

    def sum_and_norms(self, losses: Tensor, *, weights: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """The same, and ‖gᵢ‖ of every example before it was cut, as private as the examples; ∞ if it is not finite."""
        calls = self._capture.taken()
        size = _require_losses(losses)
        mask = _require_weights(weights, losses)
        if size == 0:
            self._leaves.find()
            wide = torch.float64 if self.is_exact else None
            zeros = {name: torch.zeros_like(value, dtype=wide) for name, value in self._leaves.parameters.items()}
            return zeros, losses.new_zeros(0, dtype=torch.float64)
        if losses.grad_fn is None:
            raise InvalidArgument("losses", "losses have no gradient: compute them outside torch.no_grad()")
        with self._capture.paused():
            try:
                return self._summed(attributed(calls, losses, self._leaves, self._pinned), losses, mask)
            finally:
                self._root.forget()

    def _summed(self, plan: Attribution, losses: Tensor, mask: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        parameters, dtype = self._leaves.parameters, self._leaves.type
        calls = [part.call for part in plan.parts]
        for call in calls:
            require_unchanged(call)
        self._require_independent(calls, losses)
        _differentiate(calls, losses, dtype, is_kept=plan.needs_graph)
        strays = self._root.gradients(losses, {name: parameters[name] for name in plan.strays}) if plan.strays else {}
        with torch.no_grad():
            if self.is_exact:
                dtype = torch.float64
                for part in plan.parts:
                    part.call = _widened(part.call)
            groups, lengths, total = self._measured(plan, strays, losses)
            limit = self.clip.limit(len(groups))
            coefficients = [_coefficients(own, limit, mask).to(dtype) for own in lengths]
            return _weighted(groups, coefficients, parameters), total

    def _measured(
        self, plan: Attribution, strays: dict[str, Tensor], losses: Tensor
    ) -> tuple[list[list[Named]], list[Tensor], Tensor]:
        """The pieces of each group, every example's norm in each, and the norm of its whole gradient."""
        groups = self.clip.grouped(self._pieces(plan.parts, strays, losses))
        lengths = [self.clip.lengths(pieces) for pieces in groups]
        longest = REACH * self.clip.clip_norm
        if all(own.sum().item() <= longest for own in lengths):
            return groups, lengths, self.clip.total(lengths)
        # A value that is not finite would poison the sum even with coefficient 0, so its example is emptied.
        bad = ~(torch.stack(lengths) <= longest).all(0)
        parts = [replace(part, call=_emptied(part.call, bad)) for part in plan.parts]
        groups = self.clip.grouped(self._pieces(parts, strays, losses, bad))
        lengths = [self.clip.lengths(pieces) for pieces in groups]
        for own in lengths:
            own.masked_fill_(~(own <= longest), torch.inf)  # the coefficient of what still is not finite is 0
        return groups, lengths, self.clip.total(lengths).masked_fill(bad, torch.inf)

    def _pieces(
        self, parts: Sequence[Part], strays: dict[str, Tensor], losses: Tensor, bad: Tensor | None = None
    ) -> list[Named]:
        """What each call contributes, with the full names of its parameters; each parameter is in one piece only."""
        pieces: list[Named] = []
        joint: dict[str, Tensor] = {**strays}
        for group in shared.grouped(parts):
            call = group[0].call
            try:
                if group[0].is_shared:
                    pieces += shared.pieces(group, self._chosen, is_written=self._is_written)
                else:
                    pinned = self._pinned.get(call.path)
                    piece = registry.made(call, group[0].rule, pinned, self._chosen, is_written=self._is_written)
                    pieces.append((piece, group[0].names))
            except RuntimeError as error:
                if all(part.rule.is_known for part in group):
                    raise
                # vmap refuses randomness, state and some operations: the whole model is the way that is left.
                missing = {full: self._leaves.parameters[full] for part in group for full in part.names.values()}
                joint.update(self._by_whole(losses, missing, call, error))
        if joint:
            wide = {name: values.double() if self.is_exact else values for name, values in joint.items()}
            rows = {name: rows_of(values if bad is None else _zeroed(values, bad)) for name, values in wide.items()}
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
        """Nothing, unless losses of some examples have a gradient at the places of the others."""
        self._steps += 1
        if self._steps & (self._steps - 1) or len(losses) < 2 or not calls:
            return
        edges = [call.edge for call in calls if call.edge is not None]
        some = _some(len(losses), self._steps.bit_length() - 1)
        weights = torch.where(some, torch.linspace(1, 2, len(losses)), 0.0).to(losses)
        found: Sequence[Tensor | None] = torch.autograd.grad(
            losses, edges, weights, retain_graph=True, allow_unused=True
        )
        for call, gradient in zip(calls, found, strict=True):
            if gradient is None:
                continue
            others = gradient.reshape(call.shape)[~some]
            if bool((others.nan_to_num(posinf=0.0, neginf=0.0) != 0).any()):
                message = (
                    f"the loss of one example depends on other examples at {call.path or 'the model'}: clipping "
                    "protects no record then; keep the example as first axis (batch_first) and mix nothing across it"
                )
                raise InvalidArgument("losses", message)


def _some(size: int, number: int) -> Tensor:
    """About half of the examples, others each time: any two are parted, in both orders, within 2·log₂(size) times."""
    bit = number // 2 % (size - 1).bit_length()
    return (torch.arange(size) >> bit & 1) == number % 2


def _differentiate(calls: list[Call], losses: Tensor, dtype: torch.dtype, *, is_kept: bool) -> None:
    """Sets the output gradient of every call, by the one backward pass, after which the graph is kept or not."""
    if not calls:
        return
    edges = [call.edge for call in calls if call.edge is not None]
    found: Sequence[Tensor | None] = torch.autograd.grad(
        losses, edges, torch.ones_like(losses), retain_graph=is_kept, allow_unused=True
    )
    for call, gradient in zip(calls, found, strict=True):
        if gradient is None:
            gradient = losses.new_zeros(call.shape, dtype=dtype)
        call.gradient = gradient if gradient.shape == call.shape else gradient.reshape(call.shape)
        x = call.x
        if gradient.dtype != dtype or (x is not None and x.dtype != dtype and x.is_floating_point()):
            message = f"{call.path or 'the model'} ran in {gradient.dtype} with {dtype} parameters"
            raise InvalidArgument("model", f"{message}: train without autocast")


def _widened(call: Call) -> Call:
    """The call in float64."""
    x, g = call.pair
    statistics = None if call.statistics is None else (call.statistics[0].double(), call.statistics[1].double())
    return replace(call, x=x.double() if x.is_floating_point() else x, gradient=g.double(), statistics=statistics)


def _coefficients(lengths: Tensor, limit: float, mask: Tensor | None) -> Tensor:
    """min(1, limit/length) of every example, 0 for one that is masked."""
    found = lengths.reciprocal().mul_(limit).clamp_(max=1.0)
    return found if mask is None else found.mul_(mask)


def _weighted(
    groups: list[list[Named]], coefficients: list[Tensor], parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """The sums of all pieces under the parameters' full names, every trainable parameter exactly once."""
    sums: dict[str, Tensor] = {}
    for pieces, own_coefficients in zip(groups, coefficients, strict=True):
        while pieces:
            piece, names = pieces.pop()
            for own, value in piece.weighted(own_coefficients).items():
                sums[names[own]] = value
    if not parameters.keys() <= sums.keys():
        missing = sorted(parameters.keys() - sums.keys())
        raise InvalidArgument("model", f"no rule gave a gradient of {', '.join(missing)}")
    return {name: sums[name] for name in parameters}


def _emptied(call: Call, bad: Tensor) -> Call:
    """The call with zeros for the examples that are not finite."""
    x, g = call.pair
    x = _zeroed(x, bad) if x.is_floating_point() else x
    return replace(call, x=x, gradient=_zeroed(g, bad), statistics=None)


def _zeroed(values: Tensor, bad: Tensor) -> Tensor:
    return values.masked_fill(bad.view(-1, *[1] * (values.dim() - 1)), 0)


def _require_losses(losses: Tensor) -> int:
    if not isinstance(losses, Tensor) or losses.dim() != 1:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        message = f'losses must have one value per example, shape (batch,), got {shape}: use reduction="none"'
        raise InvalidArgument("losses", message + ", and .flatten(1).mean(1) where an example has several values")
    return losses.shape[0]


def _require_weights(weights: Tensor | None, losses: Tensor) -> Tensor | None:
    if weights is None:
        return None
    if weights.shape != losses.shape or not bool(((weights == 0) | (weights == 1)).all()):
        message = f"weights must be 0 or 1 for each of the {len(losses)} examples, got {tuple(weights.shape)} values"
        raise InvalidArgument("weights", message)
    return weights.to(torch.float64)


def _require_methods(model: nn.Module, methods: Mapping[str, str]) -> dict[str, str]:
    paths = {path for path, _ in model.named_modules()}
    if unknown := sorted(set(methods) - paths):
        raise InvalidArgument("methods", f"methods names modules that the model does not have: {', '.join(unknown)}")
    return dict(methods)
