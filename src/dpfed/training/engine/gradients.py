"""Σᵢ cᵢgᵢ, the clipped sum of per-example gradients, at little more than the price of plain SGD.

Book-keeping (Bu et al. 2023): one forward pass, one backward pass with respect to the layers' outputs only. From each
layer's input and output gradient come the norms of all examples' gradients and, once these are known, the clipped sum.
Nothing is differentiated twice, and gradients of single examples are written out only where that is cheaper.

This takes row i of a layer for example i. Every program (a graph of autograd by its form) is inspected first: all of
its parameters must be explained by layers (`attribution`), and all of its operations must be on the allow-list
(`independence`). Any other program runs on one example at a time, where nothing can mix.

>>> import torch
>>> from torch import nn
>>> from dpfed.training.engine.forward import make_forward
>>> model = nn.Linear(2, 1, bias=False)
>>> inputs, targets = torch.tensor([[3.0, 4.0], [0.0, 0.5]]), torch.zeros(2)
>>> with ClippedGradients(model, clip_norm=1.0) as gradients:
...     sums, norms = gradients.clipped(make_forward(model, lambda output, _: output.squeeze(1), inputs, targets))
>>> [round(value, 3) for value in sums["weight"].flatten().tolist()]      # (3, 4) is cut to length 1
[0.6, 1.3]
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from dpfed.errors import InvalidArgument
from dpfed.training.engine import capture, shared, slow
from dpfed.training.engine.attribution import Part, Way, is_ready
from dpfed.training.engine.clip import TOLERANCE, Clip, Named, require_full_precision
from dpfed.training.engine.forward import Forward, Recorder, anomaly_mode_off, require_losses
from dpfed.training.engine.placing import bring_to_front
from dpfed.training.engine.programs import Programs, Run
from dpfed.training.engine.rules import registry
from dpfed.training.engine.rules.contributions import Materialised, Rows, rows_of, without
from dpfed.training.engine.sums import (
    RecordFails,
    Sums,
    differentiate,
    make_dense,
    require_mask,
    sum_clipped,
    widen,
    zero_call,
)
from dpfed.training.faults import STOPS
from dpfed.training.layers import compat

__all__ = ["REACH", "TOLERANCE", "ClippedGradients"]
# A gradient this many clip norms long counts as not finite: its coefficient would leave the range of float32.
REACH = 1e30


class ClippedGradients:
    """Hooks on a model that turn a forward pass over examples into the clipped sum of their gradients.

    `norm` and `layers` say what is clipped to `clip_norm` (`clip.Clip`). With `is_exact` all that comes after a
    layer's input and output gradient is computed in float64, and so are the sums. An error in the first pass is raised;
    in later ones, or from the start if model and loss were tried before (`is_tried`), it is an example's fault, which
    then counts as zero. Unless it `takes_losses`, only passes can be summed (`clipped`).

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
        """The reasons why programs seen so far run on one example at a time; empty if none does."""
        return self._programs.reasons

    @contextmanager
    def as_tried(self) -> Iterator[None]:
        """Count an example as zero if a pass inside fails on it, and take no pass inside for a trial of the model."""
        before = self._is_tried, self._programs.is_tried
        self._is_tried = self._programs.is_tried = True
        try:
            yield
        finally:
            self._is_tried, self._programs.is_tried = before

    def close(self) -> None:
        """Remove the hooks from the model."""
        self._programs.close()
        self._recorder.close()

    def clipped(self, forward: Forward) -> tuple[Sums, Tensor]:
        """Return Σ min(1, clip/‖gᵢ‖)·gᵢ for every trainable parameter, and every ‖gᵢ‖ before clipping.

        The norms are as private as the examples; ∞ stands for one that is not finite.
        """
        require_full_precision(self._device)
        if not forward.size:
            return self._make_zeros()
        with self._recorder.paused(), self._programs.kept.scope():
            run = self._try_run(forward)
            with suppress(RecordFails):
                if run is not None:
                    return self._sum_run(run, forward, None)
            return self._sum_passing(forward)

    def _try_run(self, forward: Forward) -> Run | None:
        """Run a pass; return None where it fails for a reason in an example."""
        try:
            return self._programs.run(forward)
        except STOPS:
            raise
        except BaseException:
            if not self._is_tried:
                raise
            return None

    def _sum_passing(self, forward: Forward) -> tuple[Sums, Tensor]:
        """Sum the gradients of the examples on which the passes work; the others count as zero.

        A record on which a pass fails must not stop the others, nor change how they are served: methods leave unequal
        room for rounding, and of many examples together that is more than a clip norm.
        """
        good = self._programs.find_passing(forward)
        some = forward.rows(good) if 0 < len(good) < forward.size else None
        run = None if some is None else self._try_run(some)
        with suppress(RecordFails):
            if some is not None and run is not None:
                norms = torch.full((forward.size,), torch.inf, dtype=torch.float64)
                sums, norms[good] = self._sum_run(run, some, None)
                return sums, norms
        return self._sum_one_by_one(forward, None)

    def way(self, forward: Forward) -> Way:
        """Return how the gradients of a pass would be computed, without computing them."""
        with self._recorder.paused():
            return self._programs.way(self._programs.run(forward), forward)

    def sum(self, losses: Tensor, *, weights: Tensor | None = None) -> Sums:
        """Return Σ weightᵢ·min(1, clip/‖gᵢ‖)·gᵢ for every trainable parameter, from the losses of calls of the model.

        ``weights`` are 0 or 1, a mask of padding. What the hooks recorded of the forward pass is dropped afterwards.
        """
        return self.sum_and_norms(losses, weights=weights)[0]

    def sum_and_norms(self, losses: Tensor, *, weights: Tensor | None = None) -> tuple[Sums, Tensor]:
        """Return the same sum, and ‖gᵢ‖ of every example before clipping.

        Each loss must come from the model's outputs for its own example. What comes after the model is not watched here
        (`Private` does it); that a loss has no gradient in other rows is tried once for each program.
        """
        require_full_precision(self._device)
        try:
            mask = require_mask(weights, losses) if require_losses(losses) else None
            if not len(losses):
                return self._make_zeros()
            if losses.grad_fn is None:
                raise InvalidArgument(
                    "losses", "losses have no gradient, so nothing can be learned: compute them outside torch.no_grad()"
                )
            with self._programs.kept.scope():
                return self._sum_run(self._programs.record(losses, self._recorder), None, mask)
        finally:
            self._programs.capture.take()
            self._recorder.forget()

    def _make_zeros(self) -> tuple[Sums, Tensor]:
        """Return the sum over no example, and no norms."""
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

    def _sum_run(self, run: Run, forward: Forward | None, mask: Tensor | None) -> tuple[Sums, Tensor]:
        """Sum the gradients of a run by the fastest way that its program allows; without `forward`, of given losses."""
        way = self._programs.find_known(run)
        again = forward
        if again is None and (way is None or not way.is_certain):
            again = self._recorder.make_forward(run.losses)
        if way is None and again is not None:
            way = self._programs.way(run, again)
        found = None if way is None or way.why is not None else self._sum_by_layers(way, run, mask, forward)
        if found is None:
            again = self._recorder.make_forward(run.losses) if again is None else again
            if forward is None:
                self._require_apart(way)
                self._require_within(run)
            if forward is None and not self._is_tried:
                self._recorder.require_repeatable(again)
            found = None if forward is None or way is None else self._sum_by_vmap(way, forward)
            found = self._sum_one_by_one(again, mask) if found is None else found
        self._is_tried = True
        return found

    def _require_apart(self, way: Way | None) -> None:
        """Refuse losses of a model in which examples may meet: what comes after it was computed from all of them."""
        if way is not None and way.why is not None and not way.is_apart:
            message = f"examples may meet in the model ({way.why}), so that a loss may be of more than one example"
            raise InvalidArgument("losses", f"{message}: give make_private the loss and call step(batch)")

    def _require_within(self, run: Run) -> None:
        """Refuse losses that use parameters outside of the model's own calls, since only those can be run again."""
        nodes = self._programs.leaves.nodes
        every, within = (capture.count_uses(graph, nodes) for graph in (run.graph, run.model))
        for name, count in every.items():
            if count != within[name]:
                message = f"these losses use {name} outside of the model's call, and that part would be lost"
                remedy = "compute it inside the model, give make_private the loss, or use the optimizer's weight_decay"
                raise InvalidArgument("losses", f"{message}: {remedy}")

    # --- all examples at once ---

    def _sum_by_layers(
        self, way: Way, run: Run, mask: Tensor | None, forward: Forward | None
    ) -> tuple[Sums, Tensor] | None:
        """Return sums and norms by book-keeping, None where that cannot be done for this run of the program."""
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
                differentiate([part.call for part in parts], run.losses, self._programs.leaves.type)
            except STOPS:
                raise
            except BaseException:
                if forward is None or not self._is_tried:
                    raise
                raise RecordFails from None
            try:
                with torch.no_grad():
                    for part in parts:
                        part.call = bring_to_front(part.call, part.place, size)
                    return self._clip_parts(parts, mask)
            except _NoRule as error:
                self._programs.mark_slow(run, str(error))
                return None

    def _clip_parts(self, parts: list[Part], mask: Tensor | None) -> tuple[Sums, Tensor]:
        """Return the clipped sum of what the layers' calls contribute, and the norms before clipping."""
        dtype = self._programs.leaves.type
        if self.is_exact:
            dtype = torch.float64
            for part in parts:
                part.call = widen(part.call)
        groups, lengths, total = self._measure(parts)
        return sum_clipped(self.clip, groups, lengths, self._parameters, dtype, mask), total

    def _measure(self, parts: Sequence[Part]) -> tuple[list[list[Named]], list[Tensor], Tensor]:
        """Return the pieces of each group, every example's norm in each, and the norm of its whole gradient."""
        groups = self.clip.group(self._make_pieces(parts))
        lengths = [self.clip.measure(pieces) for pieces in groups]
        longest = REACH * self.clip.clip_norm
        if all(own.sum().item() <= longest for own in lengths):
            return groups, lengths, self.clip.combine(lengths)
        # A value that is not finite would poison the sum even with coefficient 0, so its example is emptied.
        bad = ~(torch.stack(lengths) <= longest).all(0)
        emptied = self._make_pieces([replace(part, call=zero_call(part.call, bad)) for part in parts])
        groups = self.clip.group([(without(piece, bad), names) for piece, names in emptied])
        lengths = [self.clip.measure(pieces) for pieces in groups]
        for own in lengths:
            own.masked_fill_(~(own <= longest), torch.inf)  # the coefficient of what still is not finite is 0
        return groups, lengths, self.clip.combine(lengths).masked_fill(bad, torch.inf)

    def _make_pieces(self, parts: Sequence[Part]) -> list[Named]:
        """Return the gradients of all calls with the full names of parameters, each of which is in one piece only."""
        pieces: list[Named] = []
        for group in shared.group_calls(parts):
            call = group[0].call
            try:
                if group[0].is_shared:
                    pieces += shared.make_pieces(group, self._chosen, is_written=self._is_written)
                else:
                    pinned = self._pinned.get(call.path)
                    piece = registry.choose_contribution(
                        call, group[0].rule, pinned, self._chosen, is_written=self._is_written
                    )
                    pieces.append((piece, group[0].names))
            except RuntimeError as error:
                if all(part.rule.is_known for part in group):
                    raise
                # vmap refuses randomness, state and some operations.
                raise _NoRule(f"no rule serves {call.path or 'the model'} ({type(call.module).__name__})") from error
        return pieces

    # --- one example at a time ---

    def _sum_by_vmap(self, way: Way, forward: Forward) -> tuple[Sums, Tensor] | None:
        """Return sums and norms by vmap, for a program that keeps examples apart but has no rules; None if vmap fails.

        Not with `is_exact`, where the numbers must be those of one example alone.
        """
        if not way.is_apart or self.is_exact or forward.size < 2 or not forward.is_separable:
            return None
        self._programs.leaves.find()
        with self._programs.capture.paused(), self._recorder.paused():
            try:
                found = slow.compute_rows(self._model, forward, self._parameters)
            except STOPS:
                raise
            except BaseException:  # of torch, which does not know how; or of a record, which must not stop the others
                return None
            finally:
                self._programs.kept.bring_back()
        with torch.no_grad():
            return self._clip_rows({name: rows_of(value) for name, value in found.items()})

    def _clip_rows(self, rows: Mapping[str, Rows]) -> tuple[Sums, Tensor]:
        """Return the clipped sum of gradients that are written out, and their norms before clipping."""
        named = {name: name for name in rows}
        longest = REACH * self.clip.clip_norm
        lengths = [self.clip.measure(pieces) for pieces in self.clip.group([(Materialised(rows), named)])]
        bad = ~(torch.stack(lengths) <= longest).all(0)
        if bool(bad.any()):  # 0 times NaN is NaN
            rows = {name: own.without(bad) for name, own in rows.items()}
        groups = self.clip.group([(Materialised(rows), named)])
        lengths = [own.masked_fill(bad, torch.inf) for own in lengths]
        sums = sum_clipped(self.clip, groups, lengths, self._parameters, self._programs.leaves.type)
        return sums, self.clip.combine(lengths)

    def _sum_one_by_one(self, forward: Forward, mask: Tensor | None) -> tuple[Sums, Tensor]:
        """Run one pass per example and sum their clipped gradients: whatever the model does, examples cannot mix."""
        self._programs.leaves.find()
        dtype = torch.float64 if self.is_exact else self._programs.leaves.type
        sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in self._parameters.items()}
        norms = torch.zeros(forward.size, dtype=torch.float64)
        with self._programs.capture.paused(), self._recorder.paused():
            for number in range(forward.size) if mask is None else mask.nonzero().flatten().tolist():
                self._programs.kept.bring_back()  # what the pass before has written
                own, norms[number] = self._clip_alone(forward.rows([number]))
                for name, value in own.items():
                    sums[name] += value
        return {name: value.to(dtype) for name, value in sums.items()}, norms

    def _clip_alone(self, forward: Forward) -> tuple[Sums, Tensor]:
        """Return one example's clipped gradient, and its norm before clipping."""
        try:
            with torch.enable_grad(), anomaly_mode_off():
                losses = forward.losses()
                found = torch.autograd.grad(losses.sum(), list(self._parameters.values()), allow_unused=True)
        except STOPS:
            raise
        except BaseException as error:
            if not self._is_tried:
                message = f"the model or the loss fails on one example alone ({type(error).__name__})"
                reason = "where examples may mix, each must be run alone"
                raise InvalidArgument("model", f"{message}; {reason}: make it work for a batch of one") from error
            return {}, torch.tensor(torch.inf)
        wide = torch.float64 if self.is_exact else self._programs.leaves.type
        named = zip(self._parameters.items(), found, strict=True)
        rows = {name: rows_of(make_dense(p, row).to(wide)[None]) for (name, p), row in named}
        groups = self.clip.group([(Materialised(rows), {name: name for name in rows})])
        lengths = [self.clip.measure(pieces) for pieces in groups]
        if not all(own.item() <= REACH * self.clip.clip_norm for own in lengths):
            return {}, torch.tensor(torch.inf)
        return sum_clipped(self.clip, groups, lengths, self._parameters, wide), self.clip.combine(lengths)[0]


class _NoRule(Exception):
    """The error of a layer that no rule can serve."""


def _require_methods(model: nn.Module, methods: Mapping[str, str]) -> dict[str, str]:
    """Return the methods by the paths of modules; refuse paths that the model does not have."""
    paths = {path for path, _ in model.named_modules()}
    if unknown := sorted(set(methods) - paths):
        message = f"methods names modules that the model does not have: {', '.join(unknown)}, and would do nothing"
        raise InvalidArgument("methods", f"{message}; take names from model.named_modules()")
    return dict(methods)
