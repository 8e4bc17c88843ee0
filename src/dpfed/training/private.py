"""DP-SGD around a model and an optimizer you have: Poisson draws, clipped sums, noise, and the charge before it.

The plan says what a step is, and the same object is what is executed and charged. Training looks as ever::

    plan = LocalPlan(size=60_000, batch_size=256, epochs=10, clip_norm=1.0).calibrated(Guarantee(3.0, 1e-5))
    private = make_private(model, optimizer, data, plan, loss=nn.CrossEntropyLoss(reduction="none"))
    for batch in private.loader:  # a Poisson sample: its size varies, and may be 0
        private.step(batch)

>>> import torch
>>> from torch import nn
>>> from torch.utils.data import TensorDataset
>>> from dpfed.guarantee import Guarantee
>>> from dpfed.plan import LocalPlan
>>> data = TensorDataset(torch.randn(50, 3), torch.zeros(50))
>>> plan = LocalPlan(size=50, batch_size=10, steps=5, clip_norm=1.0).calibrated(Guarantee(3.0, 1e-5))
>>> model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
>>> private = make_private(
...     model,
...     torch.optim.SGD(model.parameters(), lr=0.1),
...     data,
...     plan,
...     loss=nn.BCEWithLogitsLoss(reduction="none"),
... )
>>> for batch in private.loader:
...     private.step(batch)
>>> private.steps_taken, private.spent().epsilon <= 3.0
(5, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from dpfed import checks
from dpfed.accounting.questions import epsilon as epsilon_of
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.events import Event, Repeated
from dpfed.guarantee import Account, Guarantee
from dpfed.plan import LocalPlan
from dpfed.randomness import RandomSource, or_system
from dpfed.training import canaries as extra
from dpfed.training import compat, memory, programs, screening, slowness
from dpfed.training.canaries import Canaries
from dpfed.training.clip import MOST_EXACT
from dpfed.training.correlated import require_floats
from dpfed.training.faults import unheard
from dpfed.training.forward import Forward, of_model
from dpfed.training.generators import Generators, devices_of
from dpfed.training.gradients import ClippedGradients
from dpfed.training.kept import Kept
from dpfed.training.loading import Batch, Loader
from dpfed.training.noise import FLOAT, GRID, NoiseSource, is_finite
from dpfed.training.own_loop import Handed, OwnLoop, second_time
from dpfed.training.paid import PaidSteps, paid_steps
from dpfed.training.passes import sampler_of
from dpfed.training.reading import Piece
from dpfed.training.release import Release
from dpfed.training.schedules import Schedule
from dpfed.training.screening import Loss

OWN_LOOP_ROWS = 256  # of a micro-batch of a loop whose losses nobody tried, if none are asked for


class Private:
    """A model in private training; made by `make_private`.

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
        self._kept = Kept(loss) if isinstance(loss, nn.Module) else None
        # By made-up records, or the first ones of an own loop: later on it would tell what was drawn.
        self._slow_reasons = None if loss is None else self._gradients.slow_reasons
        self._is_closed = False
        self._open: Batch | None = None  # the draw that was handed out and not charged yet
        self._start(None)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @property
    def loader(self) -> Iterator[Batch]:
        """The draws that are left, each as a batch; what its size is must stay secret.

        A draw without a step comes again: leaving a loop because of the records in it would be a release of them.
        """
        with self._generators.scope(), self._watching():
            while (batch := self._next_batch()) is not None:
                self._start(batch)
                if self._own_loop is not None:
                    batch.shown_to(self._own_loop.begin)
                taken = self.steps_taken
                yield batch
                if self.steps_taken == taken:
                    message = "no step was taken for a draw, and which draws count must not follow the records in them"
                    remedy = "take one for every batch, also for one that is empty; this draw comes again in a new loop"
                    raise InvalidArgument("batch", f"{message}: {remedy}")

    @property
    def arithmetic(self) -> str:
        """What the guarantee holds for: ideal arithmetic, or the grid on which everything was computed."""
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

        It is about records like the first ones: that others may be slow, and came, is not told.
        """
        return self._slow_reasons or ()

    def step(self, batch: Batch) -> None:
        """Take one step with the batch: forward, clip, charge, noise, optimizer."""
        if self._loss is None:
            raise InvalidArgument("loss", "step needs a loss: give make_private one, or use backward(losses)")
        if batch is not self._open:
            raise InvalidArgument("batch", "batch must be the one that the loader gave last: each draw is used once")
        self._start(batch)
        with self._generators.scope():
            with self._whole_or_nothing(), unheard():
                self._has_losses = True
                for forward in filter(None, map(partial(self._forward, self._loss), batch.pieces())):
                    self._take(*self._gradients.clipped(forward))
            self.optimizer.step()

    def _forward(self, loss: Loss, piece: Piece) -> Forward | None:
        """Return the pass over a micro-batch; None for records of a form that was not tried, which count as zero."""
        try:
            inputs, targets = screening.pair(piece.values)
            forward = of_model(self.model, loss, inputs, targets)
        except InvalidArgument:
            return None
        return forward if forward.size == piece.drawn else None

    def backward(self, losses: Tensor) -> None:
        """Add the clipped gradients of these losses, one for each example, to the step."""
        self._current()
        with self._whole_or_nothing():
            if self._own_loop is None:
                message = "make_private was given a loss, so a loop of your own is not watched"
                raise InvalidArgument("losses", f"{message}: call step(batch), or leave the loss out")
            self._require_private_numbers()
            handed = self._own_loop.handed
            if handed.number in self._used:
                raise second_time()
            gradients, norms = self._clipped(self._own_loop, handed, losses)
            self._used.add(handed.number)
            self._has_losses = True
            self._take(gradients, norms)
            if self._slow_reasons is None and handed.is_usual:
                self._slow_reasons = self._gradients.slow_reasons
                slowness.warn(self.model, self.slow_reasons, stacklevel=2)

    def _clipped(self, loop: OwnLoop, handed: Handed, losses: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        """Return the clipped sum over a micro-batch of an own loop, and the norms.

        Records of another form than the first one's count as zero where the loop or the model would be refused with
        them, first or later: a refusal would tell that they were drawn.
        """
        if handed.is_usual:
            return self._sum_and_norms(loop, handed, losses)
        try:
            with self._gradients.as_tried():
                return self._sum_and_norms(loop, handed, losses)
        except Exception:
            return {}, torch.full((handed.drawn,), torch.inf, dtype=torch.float64)

    def _sum_and_norms(self, loop: OwnLoop, handed: Handed, losses: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        loop.require_apart(losses)
        mask = torch.arange(len(losses)) < handed.drawn
        gradients, norms = self._gradients.sum_and_norms(losses, weights=mask)
        return gradients, norms[: handed.drawn]

    def _take(self, gradients: Mapping[str, Tensor], norms: Tensor) -> None:
        """Add the clipped gradients of examples, which had these norms, to the step."""
        self._seen += norms.shape[0]
        if self._gradients.is_exact and self._seen > MOST_EXACT:
            message = f"a draw of more than {MOST_EXACT} records is not added up exactly"
            raise InvalidArgument("losses", f'{message}: plan smaller batches, or use noise="float"')
        self._add(gradients)
        if self.plan.adaptive:
            self._count += int((norms <= self.clip_norm).sum()) - len(norms) / 2

    def spent(self, delta: float | None = None) -> Guarantee:
        """The ε of the steps taken so far (ex post), at δ; that of the plan's guarantee if none is given.

        The steps of a tree are paid for together: it is the ε of all of them from the first on.
        """
        chosen = self.plan.delta if delta is None else delta
        if chosen is None:
            raise InvalidArgument("delta", "this plan was not calibrated to a guarantee, so say at which delta")
        spent = epsilon_of(self._charged, chosen, adjacency=self.plan.adjacency) if self.steps_taken else 0.0
        return Guarantee(spent, chosen, self.plan.unit, self.plan.adjacency)

    def close(self) -> None:
        """Takes all hooks off the model and the optimizer; returns what was never charged to the account.

        No draw is handed out or used from here on: nothing would take back what a pass writes into a buffer.
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
        """Stop watching an own loop when it is left, however that happens."""
        try:
            yield
        finally:
            if self._own_loop is not None:
                self._own_loop.end()

    def _next_batch(self) -> Batch | None:
        if self._is_closed:
            raise InvalidArgument("batch", "this run was closed, so there is no draw to use: make_private a new one")
        if self._open is None:
            self._open = next(self._served, None)
        return self._open

    def _current(self) -> Batch:
        if self._batch is None:
            raise InvalidArgument(
                "batch",
                "there is no draw to use: iterate over private.loader and take one step for each of its batches",
            )
        return self._batch

    def _require_private_numbers(self) -> None:
        if not self._generators.are_private:
            message = "these losses may have been made with random numbers that others can repeat (dropout by a seed)"
            remedy = "compute them inside `for batch in private.loader`, and seed nothing there"
            raise InvalidArgument("losses", f"{message}, and then one record moves the others' gradients: {remedy}")

    def _start(self, batch: Batch | None) -> None:
        """Begin the sum of a draw, or drop the one begun."""
        if self.plan.adaptive:  # here, so that however the last step ended, what is cut and the noise agree
            self._gradients.clip = replace(self._gradients.clip, clip_norm=self.clip_norm)
        self._batch = batch
        self._has_losses = False
        self._used: set[int] = set()  # micro-batches of an own loop that are in the sum
        self._sum: dict[str, Tensor] = {}
        self._seen = 0
        self._count = 0.0  # +1/2 for each example that was not cut and −1/2 for each that was

    def _add(self, gradients: Mapping[str, Tensor]) -> None:
        for name, value in gradients.items():
            before = self._sum.get(name)
            # float64 between micro-batches: their number must not use up the margin of the clipping.
            self._sum[name] = value if before is None else before.to(torch.float64) + value

    @contextmanager
    def _whole_or_nothing(self) -> Iterator[None]:
        """A draw of which a part failed is not released: one record could keep the others out of the sum."""
        try:
            yield
        except BaseException:
            self._start(None)
            if self._own_loop is not None:
                self._own_loop.end()
            raise

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Charge the draw, then put the noised mean gradient where the optimizer looks for it."""
        if any(value is not None for value in (*args[1:], *kwargs.values())):
            raise InvalidArgument("closure", "a closure would compute gradients again, without noise: leave it out")
        batch = self._current()
        if self.plan.tree and batch.number != self._noised:
            message = f"draw {self._noised} failed or was stopped, so records would take part sooner than declared"
            raise InvalidArgument("batch", f"{message}: repair what failed, and charge and start a new run")
        self._require_losses(batch)
        with self._whole_or_nothing():
            for canary in self._canaries(self.steps_taken) if self._canaries else ():
                self._add(extra.clipped(canary, self._parameters, self._gradients.clip))
            self._set_rates(optimizer)
            self._paid.take()
            batch.token.use()
        self._open = None
        self.steps_taken += 1
        for group in optimizer.param_groups:
            for value in group["params"]:
                value.grad = None  # of parameters that were added or unfrozen since, which no noise covers
        for name, mean in self._release.mean(self._sum, self._count).items():
            self._parameters[name].grad = mean
        self._noised += 1  # last: a step that was stopped before has none, and with a tree no other may follow
        self._start(None)

    def _require_losses(self, batch: Batch) -> None:
        # Not one for each record: a loop may leave out a record for a reason of its own, and then it counts as zero.
        # Also for a draw of nobody, which looks like any other: without records at all there is nothing to call it for.
        if batch.parts != 0 and not self._has_losses:
            message = "nothing was added up for this draw, so the model would get noise alone; loss.backward() does not"
            remedy = "use private.backward(losses), with one loss for each record, or private.step(batch)"
            raise InvalidArgument(
                "losses", f"{message} clip: {remedy}; nothing was charged, and the draw is still open"
            )
        if self._own_loop is not None and len(self._used) != batch.parts:
            message = "a part of this draw was left out, and which records are in it depends on others"
            raise InvalidArgument("losses", f"{message}: call backward for every micro-batch of it, to the last")

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
                    f"{name} is no longer finite after step {self.steps_taken}: what was charged stays spent; "
                    "start again from a checkpoint with a smaller learning rate"
                )


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    data: Dataset[Any] | DataLoader[Any],
    plan: LocalPlan,
    *,
    loss: Loss | None = None,
    account: Account | None = None,
    run: str | None = None,
    source: RandomSource | None = None,
    noise: str = FLOAT,
    max_physical_batch: int | None = None,
    ahead: int | None = None,
    schedule: Schedule | None = None,
    device: torch.device | str | None = None,
    canaries: Canaries | None = None,
) -> Private:
    """The model in private training by the plan.

    `loss` takes the model's output and the targets and gives one number per example (reduction="none"). `data` is
    a Dataset or a DataLoader, whose collate_fn and workers are kept: each record is collated alone, and those alike are
    joined. A data set must not put something of one record into another (the same record twice): that happens before
    anything here can see it. Without a `loss` the loop computes losses itself and calls `backward`: its micro-batches
    have all the same size, and rows that nobody was drawn for count as zero. With an `account` all steps
    are reserved under the name `run`, and blocks of `ahead` steps (a hundredth of the plan, at most 32) are committed
    before the first noise of the block is drawn.
    Draws come in micro-batches of at most `max_physical_batch` examples; without it as many as fit into a gigabyte, by
    the shapes of a pass over made-up records (`dpfed.training.memory`), and at most 1024, or 256 in a loop of your own.
    `schedule` multiplies the optimizer's learning rates (`dpfed.training.schedules`). The model and all batches are
    moved to the `device`; only the CPU is tested.

    `canaries` is for audits only, and each one is ONE MORE RECORD for the accounting: by the number of the step, extra
    gradients that are clipped like an example's and added to the sum before the noise; see
    `dpfed.training.canaries`.
    """
    wanted = _require_rows(max_physical_batch)
    programs.forget(model)  # what was found on the records of an earlier run must not show in this one
    screening.require_trainable(model, optimizer)
    compat.check(model)
    place = None if device is None else torch.device(device)
    if place is not None:
        model.to(place)
    tried = screening.require_sound(data, model, loss, place)
    physical = wanted or (OWN_LOOP_ROWS if tried is None else memory.rows(model, tried))
    origin = or_system(source)
    noises = NoiseSource(origin, noise)
    if plan.tree:
        require_floats(noises)
    if noises.mode == GRID:
        _require_exact(plan, data)
    generators = Generators(origin, devices_of(model))
    rows, parts = (physical, 0) if loss is not None else _own_parts(plan, physical)
    served = partial(_loader, data, plan, origin, generators, rows, parts, place)
    served(plan.steps)  # what it refuses must not have been reserved
    paid = paid_steps(plan, account, run, ahead)
    loader = served(paid.left)
    private = Private(
        model,
        optimizer,
        loader,
        plan,
        noises,
        paid,
        generators,
        loss=loss,
        schedule=schedule,
        canaries=canaries,
    )
    # Of made-up records, so that it says nothing of those that are drawn.
    slowness.warn(model, private.slow_reasons, stacklevel=2)
    return private


def _loader(
    data: Dataset[Any] | DataLoader[Any],
    plan: LocalPlan,
    source: RandomSource,
    generators: Generators,
    rows: int,
    parts: int,
    device: torch.device | None,
    steps: int,
) -> Loader:
    records = data.dataset if isinstance(data, DataLoader) else data
    sampler = sampler_of(plan, _length(records), steps, source)
    return Loader(
        data,
        sampler,
        max_physical_batch=rows,
        device=device,
        generators=generators,
        parts=parts,
    )


def _require_rows(max_physical_batch: int | None) -> int:
    """Return how many rows are asked for, 0 if none; refuse more than sums are precise enough for."""
    wanted = 0 if max_physical_batch is None else checks.count(max_physical_batch=max_physical_batch)
    if wanted > memory.MOST:
        message = f"max_physical_batch must be at most {memory.MOST}, got {wanted}: larger draws come in several"
        raise InvalidArgument("max_physical_batch", message)
    return wanted


def _require_exact(plan: LocalPlan, data: Dataset[Any] | DataLoader[Any]) -> None:
    """Refuse draws that may be too large to be added up exactly: refused when it is drawn, one would tell its size."""
    records = _length(data.dataset if isinstance(data, DataLoader) else data)
    drawn = plan.sample_rate * records
    if min(records, drawn + 10 * math.sqrt(drawn)) > MOST_EXACT:
        message = f"draws may have more than {MOST_EXACT} records, which are not added up exactly"
        raise InvalidArgument("plan", f'{message}: plan smaller batches, or use noise="float"')


def _own_parts(plan: LocalPlan, physical: int) -> tuple[int, int]:
    """Return how many rows each micro-batch of an own loop has, and how many there are at least.

    Four standard deviations more than planned, so that all but one draw of thirty thousand look alike, and nothing in
    such a loop can follow from how many records were drawn.
    """
    # In a pass as well: each record draws its batch on its own.
    most = plan.batch_size + 4 * math.sqrt(plan.batch_size * (1 - plan.sample_rate))
    parts = math.ceil(most / physical)
    return 1 if physical == 1 else max(2, math.ceil(most / parts)), parts


def _length(records: Any) -> int:
    return len(records) if hasattr(records, "__len__") else 0  # what has no length is refused by the loader
