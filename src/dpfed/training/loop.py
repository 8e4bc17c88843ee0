"""The loop of DP-SGD: each batch is clipped, summed, charged, noised and given to the optimizer, in that order.

`make_private` (:mod:`dpfed.training.private`) checks model, data and plan, and returns a `Private`; whatever happens
between two batches afterwards is here.

>>> import torch
>>> from torch import nn
>>> from torch.utils.data import TensorDataset
>>> from dpfed.training.private import make_private
>>> data = TensorDataset(torch.randn(50, 3), torch.zeros(50))
>>> plan = LocalPlan(size=50, batch_size=10, steps=5, clip_norm=1.0, noise_multiplier=1.0)
>>> model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> private = make_private(model, optimizer, data, plan, loss=nn.BCEWithLogitsLoss(reduction="none"))
>>> private.step(next(iter(private.loader)))
>>> private
<Private: 1 of 5 steps, ideal arithmetic>
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dpfed import checks
from dpfed.accounting.queries import epsilon as epsilon_of
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.events import Event, Repeated
from dpfed.guarantee import Guarantee
from dpfed.plan.plan import LocalPlan
from dpfed.prepaid import PaidSteps
from dpfed.training import extra, screening, slowness
from dpfed.training.engine.clip import MOST_EXACT
from dpfed.training.engine.forward import Forward, make_forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.engine.kept import Restorer
from dpfed.training.extra import Canaries
from dpfed.training.faults import warnings_hidden
from dpfed.training.generators import Generators
from dpfed.training.loading import Batch
from dpfed.training.noise import GRID, NoiseSource, is_finite
from dpfed.training.optimizing import Schedule
from dpfed.training.own_loop import OpenMicroBatch, OwnLoop, make_stale_losses_error
from dpfed.training.reading import MicroBatch
from dpfed.training.release import Release
from dpfed.training.screening import Loss


class Private:
    """A model in private training: its loop of batches, and the state of the step; made by `make_private`.

    Privacy: a step is ``plan.step_event``: the sum over a Poisson sample of gradients clipped to `clip_norm`, with
    Gaussian noise of noise_multiplier × clip_norm, divided by the public `batch_size` (Abadi et al. 2016). Adding
    or removing one record moves the sum by at most clip_norm. A plan with norm="l1" clips in L1 and adds Laplace
    noise; one with layers="each" clips each layer on its own, so that the whole stays within clip_norm; an adaptive
    one releases a noised count of unclipped examples beside the sum, from the same draw. With a tree the draws are
    batches in passes (`PassSampler`) and the noise of the steps is correlated (`CorrelatedNoise`).

    All `plan.steps` together are ``plan.event``, under the plan's adjacency and for one record of the data, which must
    be the plan's `unit`. Each draw is charged, on disk if there is an account, before its noise is drawn, and can be
    charged once; the account is charged for blocks of steps, so it may show more than were taken and never less.
    `arithmetic` names what the statement holds for. On the grid norms and sums are computed in float64: removing a
    record moves what noise is added to by at most clip_norm + grid·√dimension, for which the noise is enough, as
    computed and not only in theory, if `max_physical_batch` is 1. With more examples at a time torch may round the
    values of one otherwise when others are beside it, by some 2⁻²⁴ of them in float32.

    What a step draws besides (dropout, augmentation) is private as well: inside the loop, in `step` and while a batch
    is read, the generators of torch, numpy and Python are filled from the run's source (`Generators`).
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loader: Iterable[Batch],
        plan: LocalPlan,
        noise: NoiseSource,
        paid: PaidSteps,
        generators: Generators,
        *,
        loss: Loss | None = None,
        schedule: Schedule | None = None,
        canaries: Canaries | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.plan = plan
        self.steps_taken = self._noised = plan.steps - paid.left
        self._loss = loss
        self._paid = paid
        self._noise = noise
        self._batches = loader
        self._served = iter(loader)
        self._generators = generators
        self._schedule = schedule
        self._rates = [group["lr"] for group in optimizer.param_groups] if schedule else []
        self._canaries = canaries
        self._gradients = ClippedGradients(
            model,
            clip_norm=plan.clip_norm,
            norm=plan.norm,
            layers=plan.layers,
            is_exact=noise.mode == GRID,
            is_tried=loss is not None,  # on made-up records, by whoever made this
            takes_losses=loss is None,
        )
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._release = Release(plan, noise, self._parameters)
        self._own_loop = OwnLoop(model) if loss is None else None
        self._kept = Restorer(loss) if isinstance(loss, nn.Module) else None
        # Found on made-up records, or the first ones of an own loop: later records would tell what was drawn.
        self._slow_reasons = None if loss is None else self._gradients.slow_reasons
        self._is_closed = False
        self._open: Batch | None = None  # the draw that the loop has and that is not charged yet
        self._start(None)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @property
    def loader(self) -> Iterator[Batch]:
        """An iterator over the batches that are left; their sizes must stay secret.

        A draw without a step comes again: a draw that could be skipped would tell of the records in it.
        """
        with self._generators.scope(), self._watching():
            while (batch := self._next_batch()) is not None:
                self._start(batch)
                if self._own_loop is not None:
                    batch.show_to(self._own_loop.begin)
                taken = self.steps_taken
                yield batch
                if self.steps_taken == taken:
                    message = (
                        "no step was taken for a batch, and skipping one because of its records would tell of them"
                    )
                    remedy = "take a step for every batch, also an empty one; this draw comes again in a new loop"
                    raise InvalidArgument("batch", f"{message}: {remedy}")

    @property
    def arithmetic(self) -> str:
        """The arithmetic in which the guarantee holds: ideal, or the grid on which everything was computed."""
        return self._noise.arithmetic

    @property
    def clip_norm(self) -> float:
        """The clip norm in force, which may be published: the plan's, or what its noised counts have made of it.

        A run that is resumed starts from the plan's again, which is as private; give it a plan with this one
        (``dataclasses.replace(plan, clip_norm=...)``) to go on where it was.
        """
        return self._release.clip_norm

    @property
    def is_private(self) -> bool:
        """Whether samples and noise are unpredictable; those of a seeded source are not."""
        return self._noise.is_private

    @property
    def slow_reasons(self) -> tuple[str, ...]:
        """Why the model runs on one example at a time, if it does; in an own loop known from the first losses on.

        It is about records like the first ones; whether slower ones were drawn is not shown.
        """
        return self._slow_reasons or ()

    def step(self, batch: Batch) -> None:
        """Take one step with the batch: forward, clip, charge, noise, optimizer."""
        if self._loss is None:
            raise InvalidArgument(
                "loss",
                "step has no loss to compute gradients of: call make_private(..., loss=...), or backward(losses)",
            )
        if batch is not self._open:
            raise InvalidArgument(
                "batch",
                "batch is not the last one of private.loader, and each draw is used once: pass on the loop's own batch",
            )
        self._start(batch)
        with self._generators.scope():
            with self._all_or_nothing(), warnings_hidden():
                self._has_losses = True
                for forward in filter(None, map(partial(self._forward, self._loss), batch.pieces())):
                    self._accumulate(*self._gradients.clipped(forward))
            self.optimizer.step()

    def _forward(self, loss: Loss, piece: MicroBatch) -> Forward | None:
        """Return the forward pass over a micro-batch; None for records of an untried form, which count as zero."""
        try:
            inputs, targets = screening.split_pair(piece.values)
            forward = make_forward(self.model, loss, inputs, targets)
        except InvalidArgument:
            return None
        return forward if forward.size == piece.drawn else None

    def backward(self, losses: Tensor) -> None:
        """Add the clipped gradients of these losses, one for each example, to the step."""
        self._require_batch()
        with self._all_or_nothing():
            if self._own_loop is None:
                message = "make_private was given a loss, so losses of your own loop are not checked for mixing"
                raise InvalidArgument("losses", f"{message}: call step(batch), or make_private without a loss")
            self._require_private_numbers()
            current = self._own_loop.current
            if current.number in self._used:
                raise make_stale_losses_error()
            gradients, norms = self._clip_losses(self._own_loop, current, losses)
            self._used.add(current.number)
            self._has_losses = True
            self._accumulate(gradients, norms)
            if self._slow_reasons is None and current.is_usual:
                self._slow_reasons = self._gradients.slow_reasons
                slowness.warn(self.model, self.slow_reasons, stacklevel=2)

    def _clip_losses(
        self, loop: OwnLoop, current: OpenMicroBatch, losses: Tensor
    ) -> tuple[Mapping[str, Tensor], Tensor]:
        """Return the clipped sum over a micro-batch of an own loop, and the norms before clipping.

        Records of another form than the first one's count as zero where the loop or the model would be refused with
        them: a refusal would tell that they were drawn.
        """
        if current.is_usual:
            return self._sum_and_norms(loop, current, losses)
        try:
            with self._gradients.as_tried():
                return self._sum_and_norms(loop, current, losses)
        except Exception:
            return {}, torch.full((current.drawn,), torch.inf, dtype=torch.float64)

    def _sum_and_norms(
        self, loop: OwnLoop, current: OpenMicroBatch, losses: Tensor
    ) -> tuple[Mapping[str, Tensor], Tensor]:
        loop.require_apart(losses)
        mask = torch.arange(len(losses)) < current.drawn
        gradients, norms = self._gradients.sum_and_norms(losses, weights=mask)
        return gradients, norms[: current.drawn]

    def _accumulate(self, gradients: Mapping[str, Tensor], norms: Tensor) -> None:
        """Add clipped gradients to the sum of the step; the norms are those before clipping."""
        self._seen += norms.shape[0]
        if self._gradients.is_exact and self._seen > MOST_EXACT:
            message = f"a draw of more than {MOST_EXACT} records is not added up exactly, as the grid promises"
            raise InvalidArgument("losses", f'{message}: plan smaller batches, or use noise="float"')
        self._add(gradients)
        if self.plan.adaptive:
            self._count += int((norms <= self.clip_norm).sum()) - len(norms) / 2

    def spent(self, delta: float | None = None) -> Guarantee:
        """Return the (ε, δ) of the steps taken so far (ex post), at the plan's own δ if none is given.

        The steps of a tree are charged together: from the first on it is the ε of all of them.
        """
        chosen = self.plan.delta if delta is None else delta
        if chosen is None:
            raise InvalidArgument(
                "delta",
                "this plan was not calibrated to a guarantee, and ε has no meaning without a δ: call spent(delta=1e-5)",
            )
        spent = epsilon_of(self._charged, chosen, adjacency=self.plan.adjacency) if self.steps_taken else 0.0
        return Guarantee(spent, chosen, self.plan.unit, self.plan.adjacency)

    def close(self) -> None:
        """Remove all hooks from model and optimizer; give the account back what was never charged.

        No draw can be used from here on: nothing would take back what a pass writes into a buffer.
        """
        self._is_closed, self._open = True, None
        self._start(None)
        self._gradients.close()
        if self._own_loop is not None:
            self._own_loop.close()
        if self._kept is not None:
            self._kept.close()
        for hook in self._hooks:
            hook.remove()
        self._paid.release()

    def __repr__(self) -> str:
        stamp = "" if self._canaries is None else " [WITH CANARIES]"
        stamp += "" if self.is_private else " [NOT PRIVATE]"
        return f"<Private: {self.steps_taken} of {self.plan.steps} steps, {self.arithmetic}>{stamp}"

    @property
    def _charged(self) -> Event:
        return self.plan.event if self.plan.tree else Repeated(self.plan.step_event, self.steps_taken)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Stop watching an own loop when it ends, also by an error or a break."""
        try:
            yield
        finally:
            if self._own_loop is not None:
                self._own_loop.end()

    def _next_batch(self) -> Batch | None:
        if self._is_closed:
            raise InvalidArgument(
                "batch", "this run was closed and its reservation given back: call make_private for a new one"
            )
        if self._open is None:
            self._open = next(self._served, None)
        return self._open

    def _require_batch(self) -> Batch:
        if self._batch is None:
            raise InvalidArgument(
                "batch",
                "there is no open batch, and gradients outside one would not be charged: iterate over private.loader "
                "and take one step for each of its batches",
            )
        return self._batch

    def _require_private_numbers(self) -> None:
        if not self._generators.are_private:
            message = "these losses may have been made with random numbers that others can repeat (dropout by a seed)"
            remedy = "compute them inside `for batch in private.loader`, and call no manual_seed there"
            raise InvalidArgument("losses", f"{message}, and then one record moves the others' gradients: {remedy}")

    def _start(self, batch: Batch | None) -> None:
        """Begin the sum of a batch, or with None discard the sum so far."""
        if self.plan.adaptive:  # here, so that clip and noise agree however the last step ended
            self._gradients.clip = replace(self._gradients.clip, clip_norm=self.clip_norm)
        self._batch = batch
        self._has_losses = False
        self._used: set[int] = set()  # micro-batches of an own loop that are in the sum
        self._sum: dict[str, Tensor] = {}
        self._seen = 0
        self._count = 0.0  # +1/2 for each example within the clip norm, −1/2 for each other

    def _add(self, gradients: Mapping[str, Tensor]) -> None:
        for name, value in gradients.items():
            before = self._sum.get(name)
            # float64 between micro-batches: their number must not use up the margin of the clipping.
            self._sum[name] = value if before is None else before.to(torch.float64) + value

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Discard the sum if a part of a draw fails: released, it would be one that a record kept the others out of."""
        try:
            yield
        except BaseException:
            self._start(None)
            if self._own_loop is not None:
                self._own_loop.end()
            raise

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Charge the draw, then put the noised mean gradient into ``parameter.grad`` for the optimizer."""
        if any(value is not None for value in (*args[1:], *kwargs.values())):
            raise InvalidArgument(
                "closure", "a closure would compute gradients again, without noise: call optimizer.step() without one"
            )
        batch = self._require_batch()
        if self.plan.tree and batch.number != self._noised:
            message = (
                f"step {self._noised} failed or was stopped, so records would take part sooner than the tree allows"
            )
            raise InvalidArgument("batch", f"{message}: repair what failed, and start a new run with make_private")
        self._require_losses(batch)
        with self._all_or_nothing():
            rest, clip_norm = dict(self._sum), self.clip_norm
            for canary in self._canaries(self.steps_taken) if self._canaries else ():
                self._add(extra.clip_canary(canary, self._parameters, self._gradients.clip))
            self._set_rates(optimizer)
            self._paid.take()
            batch.token.use()
        self._open = None
        self.steps_taken += 1
        for group in optimizer.param_groups:
            for value in group["params"]:
                value.grad = None  # of parameters that were added or unfrozen since, which get no noise
        means = self._release.mean(self._sum, self._count)
        for name, mean in means.items():
            self._parameters[name].grad = mean
        if (watch := extra.find_watch(self._canaries)) is not None:
            watch(rest, means, clip_norm)
        self._noised += 1  # last: a step that was stopped before has none, and with a tree no other may follow
        self._start(None)

    def _require_losses(self, batch: Batch) -> None:
        # Not one for each record: a loop may leave out a record for a reason of its own, and then it counts as zero.
        # Also for an empty draw, which looks like any other; only data without any record have no micro-batch.
        if batch.parts != 0 and not self._has_losses:
            message = "no gradient was clipped for this batch (loss.backward() clips none), so noise alone would train"
            remedy = "use private.backward(losses), with one loss for each record, or private.step(batch)"
            raise InvalidArgument("losses", f"{message}: {remedy}; nothing was charged, and the batch is still open")
        if self._own_loop is not None and len(self._used) != batch.parts:
            message = "a micro-batch of this batch was left out, and which records are in it depends on others"
            raise InvalidArgument("losses", f"{message}: call backward for each of its micro-batches")

    def _set_rates(self, optimizer: Optimizer) -> None:
        if self._schedule is None:
            return
        factor = checks.non_negative(schedule=self._schedule.factor(self.steps_taken, self.plan.steps))
        for group, rate in zip(optimizer.param_groups, self._rates, strict=False):
            group["lr"] = rate * factor

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for name, value in self._parameters.items():
            value.grad = None
            if not is_finite(value):
                raise PrivacyError(
                    f"{name} is no longer finite after step {self.steps_taken}, and what was charged stays spent: "
                    "start again from a checkpoint with a smaller learning rate"
                )
