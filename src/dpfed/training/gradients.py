"""Σᵢ cᵢgᵢ, the clipped sum of per-example gradients, at little more than the price of plain SGD.

Book-keeping (Bu et al. 2023): one forward pass, one backward pass with respect to the layers' outputs only. From each
layer's input and output gradient come the norms of all examples' gradients and, once these are known, the clipped sum.
Nothing is differentiated twice, and gradients of single examples are written out only where that is cheaper.

This takes row i of a layer for example i. Every program (a graph of autograd by its form) is looked at before it is
served so: all of its parameters must be explained by layers (`attribution`), and all of its operations must be on the
allow-list (`independence`). Any other program runs on one example at a time, where nothing can mix.

>>> import torch
>>> from torch import nn
>>> from dpfed.training.forward import of_model
>>> model = nn.Linear(2, 1, bias=False)
>>> inputs, targets = torch.tensor([[3.0, 4.0], [0.0, 0.5]]), torch.zeros(2)
>>> with ClippedGradients(model, clip_norm=1.0) as gradients:
...     sums, norms = gradients.clipped(of_model(model, lambda output, _: output.squeeze(1), inputs, targets))
>>> [round(value, 3) for value in sums["weight"].flatten().tolist()]      # (3, 4) is cut to length 1
[0.6, 1.3]
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from dpfed.errors import InvalidArgument
from dpfed.training import capture, compat, shared
from dpfed.training.attribution import Part, Way, is_ready
from dpfed.training.clip import TOLERANCE, Clip, Named, require_full_precision
from dpfed.training.faults import STOPS
from dpfed.training.forward import Forward, Recorder, require_losses, silenced
from dpfed.training.placing import fronted
from dpfed.training.programs import Programs, Run
from dpfed.training.rules import registry, whole
from dpfed.training.rules.pieces import Call, Materialised, Rows, rows_of

__all__ = ["REACH", "TOLERANCE", "ClippedGradients"]

Sums = dict[str, Tensor]
# A gradient this many clip norms long counts as not finite: its coefficient would leave the range of float32.
REACH = 1e30


class ClippedGradients:
    """Hooks on a model that turn a forward pass over examples into the clipped sum of their gradients.

    `norm` and `layers` say what is clipped to `clip_norm` (`clip.Clip`). With `is_exact` all that comes after a
    layer's input and output gradient is computed in float64, and so are the sums that are given. What fails the first
    time is refused; from then on, or from the start if model and loss were tried before (`is_tried`), it is an
    example's fault. Unless it `takes_losses`, it is given passes only (`clipped`).

    Privacy: adding or removing one example moves the sum by at most ``clip_norm`` in the norm (all trainable parameters
    together): each is cut to a little less (`clip.TOLERANCE`); one whose gradient is not finite, or on which the pass
    fails, counts as zero; and none acts on the share of another. The last is so by construction: rows of layers are
    taken for examples only in programs of which every operation is on the allow-list and whose constants do not
    change with the number of examples; other programs run on one example at a time. What Python decides out of
    torch's sight is noticed by the calls that it makes (`calls`). What is assumed: a model keeps nothing that a later
    call uses, and computes in the thread that called it. This is for ideal sums; with `is_exact` and examples given one
    at a time (and kernels that give the same for the same) it is so for up to `clip.MOST_EXACT` examples as computed.
    In a larger batch torch may round an example's input and output gradient otherwise when other examples are beside
    it, which no clipping sees.
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
        is_tried: bool = False,
        takes_losses: bool = True,
    ) -> None:
        self.clip = Clip(clip_norm, norm, layers)
        self.is_exact = is_exact
        # Gram matrices have no L1 norm, and the sum apart from them rounds by more than its norm may tell.
        self._is_written = is_exact or norm == "l1"
        compat.check(model)
        self._pinned = _require_methods(model, methods or {})
        self._chosen: dict[Hashable, str] = {}
        self._model = model
        self._is_tried = is_tried
        self._programs = Programs(model, self._pinned, is_tried=is_tried)
        self._recorder = Recorder(model, is_on=takes_losses)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def slow_reasons(self) -> tuple[str, ...]:
        """Why programs seen so far run on one example at a time; empty if none does."""
        return self._programs.reasons

    @contextmanager
    def as_tried(self) -> Iterator[None]:
        """Take what fails inside for an example's fault, and what works for no proof that model and loss do."""
        before = self._is_tried, self._programs.is_tried
        self._is_tried = self._programs.is_tried = True
        try:
            yield
        finally:
            self._is_tried, self._programs.is_tried = before

    def close(self) -> None:
        """Take the hooks off the model."""
        self._programs.close()
        self._recorder.close()

    def clipped(self, forward: Forward) -> tuple[Sums, Tensor]:
        """Return Σ min(1, clip/‖gᵢ‖)·gᵢ for every trainable parameter, and ‖gᵢ‖ before it was cut.

        The norms are as private as the examples; ∞ stands for one that is not finite.
        """
        require_full_precision(self._device)
        if not forward.size:
            return self._nothing()
        with self._recorder.paused(), self._programs.kept.scope():
            try:
                run = self._programs.run(forward)
            except STOPS:
                raise
            except BaseException:
                if not self._is_tried:
                    raise
                return self._one_by_one(forward, None)  # a record on which the pass fails must not stop the others
            return self._summed(run, forward, None)

    def way(self, forward: Forward) -> Way:
        """Return how the gradients of a pass are made, without making them."""
        with self._recorder.paused():
            return self._programs.way(self._programs.run(forward), forward)

    def sum(self, losses: Tensor, *, weights: Tensor | None = None) -> Sums:
        """Return Σ weightᵢ·min(1, clip/‖gᵢ‖)·gᵢ for every trainable parameter, from the losses of calls of the model.

        ``weights`` are 0 or 1, a mask of padding. Whatever the forward pass has recorded is used up.
        """
        return self.sum_and_norms(losses, weights=weights)[0]

    def sum_and_norms(self, losses: Tensor, *, weights: Tensor | None = None) -> tuple[Sums, Tensor]:
        """Return the same, and ‖gᵢ‖ of every example before it was cut.

        Each loss must come from the model's outputs for its own example. What comes after the model is not watched here
        (`Private` does it); that a loss has no gradient in other rows is tried once for each program.
        """
        require_full_precision(self._device)
        try:
            mask = _require_weights(weights, losses) if require_losses(losses) else None
            if not len(losses):
                return self._nothing()
            if losses.grad_fn is None:
                raise InvalidArgument("losses", "losses have no gradient: compute them outside torch.no_grad()")
            with self._programs.kept.scope():
                return self._summed(self._programs.recorded(losses, self._recorder), None, mask)
        finally:
            self._programs.capture.taken()
            self._recorder.forget()

    def _nothing(self) -> tuple[Sums, Tensor]:
        self._programs.leaves.find()
        wide = torch.float64 if self.is_exact else None
        zeros = {name: torch.zeros_like(value, dtype=wide) for name, value in self._parameters.items()}
        return zeros, torch.zeros(0, dtype=torch.float64)

    @property
    def _device(self) -> str:
        return next((value.device.type for value in self._parameters.values()), "cpu")

    @property
    def _parameters(self) -> Mapping[str, nn.Parameter]:
        return self._programs.leaves.parameters

    def _summed(self, run: Run, forward: Forward | None, mask: Tensor | None) -> tuple[Sums, Tensor]:
        way = self._programs.known(run)
        again = forward
        if again is None and (way is None or not way.is_certain):
            again = self._recorder.forward(run.losses)
        if way is None and again is not None:
            way = self._programs.way(run, again)
        found = None if way is None or way.why is not None else self._by_layers(way, run, mask, forward)
        if found is None:
            again = self._recorder.forward(run.losses) if again is None else again
            if forward is None:
                self._require_apart(way)
                self._require_within(run)
            if forward is None and not self._is_tried:
                self._recorder.require_repeatable(again)
            found = None if forward is None or way is None else self._by_vmap(way, forward)
            found = self._one_by_one(again, mask) if found is None else found
        self._is_tried = True
        return found

    def _require_apart(self, way: Way | None) -> None:
        """Refuse losses of a model in which examples may meet: what comes after it was computed from all of them."""
        if way is not None and way.why is not None and not way.is_apart:
            message = f"examples may meet in the model ({way.why}), and these losses were computed from all of them"
            raise InvalidArgument("losses", f"{message}: give make_private the loss and call step(batch)")

    def _require_within(self, run: Run) -> None:
        """Refuse losses that use parameters outside of the model's own calls, which alone can be run again."""
        nodes = self._programs.leaves.nodes
        every, within = (capture.counts(graph, nodes) for graph in (run.graph, run.model))
        for name, count in every.items():
            if count != within[name]:
                message = f"these losses use {name} outside of the model's call, and that part would be lost"
                remedy = "compute it inside the model, give make_private the loss, or use the optimizer's weight_decay"
                raise InvalidArgument("losses", f"{message}: {remedy}")

    # --- all examples at once ---

    def _by_layers(
        self, way: Way, run: Run, mask: Tensor | None, forward: Forward | None
    ) -> tuple[Sums, Tensor] | None:
        """Return what book-keeping gives, None where this run of the program cannot be served by it."""
        size = len(run.losses)
        try:
            parts = way.parts_of(run.calls, self._programs.meetings(way, run))
        except RuntimeError:  # a factor was changed in place: the backward pass would fail as well
            if forward is None or not self._is_tried:
                raise
            return None
        if not parts or not is_ready(parts, size):
            return None
        with self._programs.capture.paused(), self._recorder.paused():
            try:
                _differentiate([part.call for part in parts], run.losses, self._programs.leaves.type)
            except STOPS:
                raise
            except BaseException:
                if forward is None or not self._is_tried:
                    raise
                return None  # a record on which the backward pass fails must not stop the others
            try:
                with torch.no_grad():
                    for part in parts:
                        part.call = fronted(part.call, part.place, size)
                    return self._kept(parts, mask)
            except _NoRule as error:
                self._programs.slow(run, str(error))
                return None

    def _kept(self, parts: list[Part], mask: Tensor | None) -> tuple[Sums, Tensor]:
        dtype = self._programs.leaves.type
        if self.is_exact:
            dtype = torch.float64
            for part in parts:
                part.call = _widened(part.call)
        groups, lengths, total = self._measured(parts)
        limit = self.clip.limit(len(groups))
        coefficients = [_coefficients(own, limit, mask).to(dtype) for own in lengths]
        return _weighted(groups, coefficients, self._parameters, dtype), total

    def _measured(self, parts: Sequence[Part]) -> tuple[list[list[Named]], list[Tensor], Tensor]:
        """Return the pieces of each group, every example's norm in each, and the norm of its whole gradient."""
        groups = self.clip.grouped(self._pieces(parts))
        lengths = [self.clip.lengths(pieces) for pieces in groups]
        longest = REACH * self.clip.clip_norm
        if all(own.sum().item() <= longest for own in lengths):
            return groups, lengths, self.clip.total(lengths)
        # A value that is not finite would poison the sum even with coefficient 0, so its example is emptied.
        bad = ~(torch.stack(lengths) <= longest).all(0)
        groups = self.clip.grouped(self._pieces([replace(part, call=_emptied(part.call, bad)) for part in parts]))
        lengths = [self.clip.lengths(pieces) for pieces in groups]
        for own in lengths:
            own.masked_fill_(~(own <= longest), torch.inf)  # the coefficient of what still is not finite is 0
        return groups, lengths, self.clip.total(lengths).masked_fill(bad, torch.inf)

    def _pieces(self, parts: Sequence[Part]) -> list[Named]:
        """Return what each call contributes, with the full names of its parameters; each is in one piece only."""
        pieces: list[Named] = []
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
                # vmap refuses randomness, state and some operations.
                raise _NoRule(f"no rule serves {call.path or 'the model'} ({type(call.module).__name__})") from error
        return pieces

    # --- one example at a time ---

    def _by_vmap(self, way: Way, forward: Forward) -> tuple[Sums, Tensor] | None:
        """Return what vmap gives for a program that keeps examples apart, but that no rules explain; None if nothing.

        Not where the numbers must be those of one example alone.
        """
        if not way.is_apart or self.is_exact or forward.size < 2 or not forward.is_separable:
            return None
        self._programs.leaves.find()
        with self._programs.capture.paused(), self._recorder.paused():
            try:
                found = whole.rows(self._model, forward, self._parameters)
            except STOPS:
                raise
            except BaseException:  # of torch, which does not know how; or of a record, which must not stop the others
                return None
            finally:
                self._programs.kept.bring_back()
        with torch.no_grad():
            return self._cut({name: rows_of(value) for name, value in found.items()})

    def _cut(self, rows: Mapping[str, Rows]) -> tuple[Sums, Tensor]:
        """Return the clipped sum of gradients that are written out, and their norms."""
        named = {name: name for name in rows}
        longest = REACH * self.clip.clip_norm
        lengths = [self.clip.lengths(pieces) for pieces in self.clip.grouped([(Materialised(rows), named)])]
        bad = ~(torch.stack(lengths) <= longest).all(0)
        if bool(bad.any()):  # 0 times NaN is NaN; not in place, since rows that are all the same may be one in memory
            rows = {name: replace(own, values=_zeroed(own.values, bad)) for name, own in rows.items()}
        groups = self.clip.grouped([(Materialised(rows), named)])
        limit, dtype = self.clip.limit(len(groups)), self._programs.leaves.type
        lengths = [own.masked_fill(bad, torch.inf) for own in lengths]
        coefficients = [_coefficients(own, limit, None).to(dtype) for own in lengths]
        return _weighted(groups, coefficients, self._parameters, dtype), self.clip.total(lengths)

    def _one_by_one(self, forward: Forward, mask: Tensor | None) -> tuple[Sums, Tensor]:
        """Return the sum of gradients of passes over a single example each: whatever the model does, none can mix."""
        self._programs.leaves.find()
        dtype = torch.float64 if self.is_exact else self._programs.leaves.type
        sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in self._parameters.items()}
        norms = torch.zeros(forward.size, dtype=torch.float64)
        with self._programs.capture.paused(), self._recorder.paused():
            for number in range(forward.size) if mask is None else mask.nonzero().flatten().tolist():
                self._programs.kept.bring_back()  # what the pass before has written
                own, norms[number] = self._alone(forward.rows([number]))
                for name, value in own.items():
                    sums[name] += value
        return {name: value.to(dtype) for name, value in sums.items()}, norms

    def _alone(self, forward: Forward) -> tuple[Sums, Tensor]:
        """Return one example's clipped gradient, and its norm before."""
        try:
            with torch.enable_grad(), silenced():
                losses = forward.losses()
                found = torch.autograd.grad(losses.sum(), list(self._parameters.values()), allow_unused=True)
        except STOPS:
            raise
        except BaseException as error:
            if not self._is_tried:
                message = "the model or the loss fails on one example alone, which programs that may mix examples need"
                raise InvalidArgument("model", f"{message}: {type(error).__name__}") from error
            return {}, torch.tensor(torch.inf)
        wide = torch.float64 if self.is_exact else self._programs.leaves.type
        named = zip(self._parameters.items(), found, strict=True)
        rows = {name: rows_of(_dense(p, row).to(wide)[None]) for (name, p), row in named}
        groups = self.clip.grouped([(Materialised(rows), {name: name for name in rows})])
        lengths = [self.clip.lengths(pieces) for pieces in groups]
        if not all(own.item() <= REACH * self.clip.clip_norm for own in lengths):
            return {}, torch.tensor(torch.inf)
        limit = self.clip.limit(len(groups))
        coefficients = [_coefficients(own, limit, None).to(wide) for own in lengths]
        return _weighted(groups, coefficients, self._parameters, wide), self.clip.total(lengths)[0]


class _NoRule(Exception):
    """A layer that no rule can serve."""


def _differentiate(calls: list[Call], losses: Tensor, dtype: torch.dtype) -> None:
    """Set the output gradient of every call, by the one backward pass."""
    edges = [call.edge for call in calls if call.edge is not None]
    # Of the sum: for weights given as a tensor torch imports sympy, which takes a quarter of its own start.
    with silenced():
        found: Sequence[Tensor | None] = torch.autograd.grad(losses.sum(), edges, allow_unused=True)
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
    weights = None if call.weights is None else call.weights.double()
    x = x.double() if x.is_floating_point() else x
    return replace(call, x=x, gradient=g.double(), statistics=statistics, weights=weights)


def _dense(parameter: Tensor, row: Tensor | None) -> Tensor:
    """Return one example's gradient, also where it has none or a sparse one."""
    if row is None:
        return torch.zeros_like(parameter)
    return row.to_dense() if row.is_sparse else row


def _coefficients(lengths: Tensor, limit: float, mask: Tensor | None) -> Tensor:
    """min(1, limit/length) of every example, 0 for one that is masked."""
    found = lengths.reciprocal().mul_(limit).clamp_(max=1.0)
    return found if mask is None else found.mul_(mask)


def _weighted(
    groups: list[list[Named]], coefficients: list[Tensor], parameters: Mapping[str, nn.Parameter], dtype: torch.dtype
) -> Sums:
    """Return the sums of all pieces under the parameters' full names; one that no loss depends on has zeros."""
    sums: dict[str, Tensor] = {}
    for pieces, own_coefficients in zip(groups, coefficients, strict=True):
        while pieces:
            piece, names = pieces.pop()
            for own, value in piece.weighted(own_coefficients).items():
                sums[names[own]] = value
    return {
        name: sums[name] if name in sums else torch.zeros_like(own, dtype=dtype) for name, own in parameters.items()
    }


def _emptied(call: Call, bad: Tensor) -> Call:
    """The call with zeros for the examples that are not finite."""
    x, g = call.pair
    x = _zeroed(x, bad) if x.is_floating_point() else x
    weights = None if call.weights is None else _zeroed(call.weights, bad)
    return replace(call, x=x, gradient=_zeroed(g, bad), statistics=None, weights=weights)


def _zeroed(values: Tensor, bad: Tensor) -> Tensor:
    return values.masked_fill(bad.view(-1, *[1] * (values.dim() - 1)), 0)


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
