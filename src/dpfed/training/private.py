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

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from dpfed import checks
from dpfed.accounting.questions import epsilon as epsilon_of
from dpfed.checks import ADD_REMOVE
from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InvalidArgument, PrivacyError
from dpfed.events import Repeated
from dpfed.guarantee import Account, Guarantee, Held
from dpfed.plan import LocalPlan
from dpfed.randomness import RandomSource, or_system
from dpfed.training import compat
from dpfed.training.gradients import ClippedGradients
from dpfed.training.noise import FLOAT, NoiseSource
from dpfed.training.sampling import Batch, PoissonLoader, PoissonSampler

Loss = Callable[[Any, Any], Tensor]

# Above this the rounding of a float32 sum of clipped gradients could use up the margin of `gradients.TOLERANCE`.
MOST_PHYSICAL = 1024


class Private:
    """A model in private training; made by `make_private`.

    Privacy: a step is ``plan.step_event``: the sum over a Poisson sample of gradients clipped to `clip_norm`, with
    Gaussian noise of noise_multiplier × clip_norm, divided by the public `batch_size` (Abadi et al. 2016). Adding
    or removing one record moves the sum by at most clip_norm. All `plan.steps` together are ``plan.event``, under
    add/remove and for one record. Each draw is charged, on disk if there is an account, before its noise is drawn,
    and can be charged once. `arithmetic` names what the statement holds for.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loader: PoissonLoader,
        plan: LocalPlan,
        noise: NoiseSource,
        *,
        loss: Loss | None = None,
        held: Held | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.plan = plan
        self.steps_taken = plan.steps - len(loader)
        self._loss = loss
        self._held = held
        self._noise = noise
        self._batches = loader
        self._gradients = ClippedGradients(model, clip_norm=plan.clip_norm)
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        dimension = sum(value.numel() for value in self._parameters.values())
        self._std = noise.std(plan.noise, plan.clip_norm, dimension)
        self._batch: Batch | None = None
        self._sum: dict[str, Tensor] = {}
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @property
    def loader(self) -> Iterator[Batch]:
        """The draws that are left, each as a batch; what its size is must stay secret."""
        for batch in self._batches:
            self._batch, self._sum = batch, {}
            yield batch
            self._batch = None

    @property
    def arithmetic(self) -> str:
        """What the guarantee holds for: ideal arithmetic, or the grid on which everything was computed."""
        return self._noise.arithmetic

    @property
    def is_private(self) -> bool:
        """Whether samples and noise are unpredictable; those of a seeded source are not."""
        return self._noise.is_private

    def step(self, batch: Batch) -> None:
        """Nothing; takes one step with the batch: forward, clip, charge, noise, optimizer."""
        if self._loss is None:
            raise InvalidArgument("loss", "step needs a loss: give make_private one, or use backward(losses)")
        if batch is not self._batch:
            raise InvalidArgument("batch", "batch must be the one that the loader gave last: each draw is used once")
        for inputs, targets in (_pair(piece) for piece in batch):
            self.backward(self._loss(self.model(inputs), targets))
        self.optimizer.step()

    def backward(self, losses: Tensor) -> None:
        """Nothing; adds the clipped gradients of these losses, one for each example, to the step."""
        self._current()
        for name, value in self._gradients.sum(losses).items():
            # float64 between micro-batches: their number must not use up the margin of the clipping.
            wide = value.to(torch.float64)
            self._sum[name] = self._sum[name] + wide if name in self._sum else wide

    def spent(self, delta: float | None = None) -> Guarantee:
        """The ε of the steps taken so far (ex post), at δ; that of the plan's guarantee if none is given."""
        chosen = self.plan.delta if delta is None else delta
        if chosen is None:
            raise InvalidArgument("delta", "this plan was not calibrated to a guarantee, so say at which delta")
        spent = epsilon_of(Repeated(self.plan.step_event, self.steps_taken), chosen) if self.steps_taken else 0.0
        return Guarantee(spent, chosen, "record", ADD_REMOVE)

    def close(self) -> None:
        """Takes all hooks off the model and the optimizer; returns what was never charged to the account."""
        self._gradients.close()
        for hook in self._hooks:
            hook.remove()
        if self._held is not None:
            self._held.release()

    def __repr__(self) -> str:
        stamp = "" if self.is_private else " [NOT PRIVATE]"
        return f"<Private: {self.steps_taken} of {self.plan.steps} steps, {self.arithmetic}>{stamp}"

    def _current(self) -> Batch:
        if self._batch is None:
            raise InvalidArgument(
                "batch",
                "there is no draw to use: iterate over private.loader and take one step for each of its batches",
            )
        return self._batch

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Charge the draw, then put the noised mean gradient where the optimizer looks for it."""
        if any(value is not None for value in (*args[1:], *kwargs.values())):
            raise InvalidArgument("closure", "a closure would compute gradients again, without noise: leave it out")
        self._current().token.use()
        if self._held is not None:
            self._held.commit(self.plan.step_event)
        self.steps_taken += 1
        clipped = {
            name: self._sum[name].to(value.dtype) if name in self._sum else torch.zeros_like(value)
            for name, value in self._parameters.items()
        }
        for group in optimizer.param_groups:
            for value in group["params"]:
                value.grad = None  # of parameters that were added or unfrozen since, which no noise covers
        for name, noisy in self._noise.add(clipped, self._std).items():
            self._parameters[name].grad = noisy / self.plan.batch_size
        self._batch, self._sum = None, {}

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for name, value in self._parameters.items():
            value.grad = None
            if not bool(torch.isfinite(value).all()):
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
    max_physical_batch: int = 256,
) -> Private:
    """The model in private training by the plan.

    `loss` takes the model's output and the targets and gives one number per example (reduction="none"). `data` is
    a Dataset or a DataLoader, whose collate_fn and workers are kept. With an `account` all steps are reserved
    under the name `run`, and each is committed before its noise is drawn.
    """
    physical = checks.count(max_physical_batch=max_physical_batch)
    if physical > MOST_PHYSICAL:
        message = f"max_physical_batch must be at most {MOST_PHYSICAL}, got {physical}: larger draws come in several"
        raise InvalidArgument("max_physical_batch", message)
    _require_optimised(model, optimizer)
    compat.check(model)
    origin = or_system(source)
    noises = NoiseSource(origin, noise)
    loader = _loader(data, plan, plan.steps, origin, physical)
    held = _reserved(account, run, plan)
    if held is not None:
        # After a restart only the draws that were never charged are left.
        loader = _loader(data, plan, _left(held, plan), origin, physical)
    return Private(model, optimizer, loader, plan, noises, loss=loss, held=held)


def _loader(
    data: Dataset[Any] | DataLoader[Any], plan: LocalPlan, steps: int, source: RandomSource, physical: int
) -> PoissonLoader:
    records = data.dataset if isinstance(data, DataLoader) else data
    sampler = PoissonSampler(_length(records), plan.sample_rate, steps, source=source)
    return PoissonLoader(data, sampler, max_physical_batch=physical)


def _left(held: Held, plan: LocalPlan) -> int:
    left = held.left(plan.step_event)
    if not left:
        raise BudgetExceeded(
            f"all {plan.steps} steps of run {held.run!r} are charged: plan a new run, or load its model"
        )
    return left


def _reserved(account: Account | None, run: str | None, plan: LocalPlan) -> Held | None:
    if (account is None) != (run is None):
        raise InvalidArgument("run", "account and run go together: the account that is charged, and the run's name")
    if account is None or run is None:
        return None
    if account.unit != "record":
        raise InvalidArgument(
            "account", f"clipping each example protects one record, and {account.name} is for one {account.unit}"
        )
    if account.adjacency != ADD_REMOVE:
        raise AdjacencyMismatch(
            f"Poisson sampling is stated for add_remove, and {account.name} for {account.adjacency}"
        )
    return account.reserve({plan.step_event: plan.steps}, run=run)


def _require_optimised(model: nn.Module, optimizer: Optimizer) -> None:
    trained = {id(value) for value in model.parameters() if value.requires_grad}
    given = {id(value) for group in optimizer.param_groups for value in group["params"]}
    if not trained:
        raise InvalidArgument("model", "model has no trainable parameter: set requires_grad on what is to be trained")
    if not trained <= given:
        raise InvalidArgument(
            "optimizer", "optimizer lacks trainable parameters of the model: make it from model.parameters()"
        )
    if given - {id(value) for value in model.parameters()}:
        raise InvalidArgument("optimizer", "optimizer holds parameters that are not the model's, which no noise covers")


def _length(records: Any) -> int:
    return len(records) if hasattr(records, "__len__") else 0  # what has no length is refused by the loader


def _pair(piece: Any) -> tuple[Any, Any]:
    if not isinstance(piece, list | tuple) or len(piece) != 2:
        raise InvalidArgument(
            "data", "step takes records of inputs and target: compute the losses yourself and call backward(losses)"
        )
    return piece[0], piece[1]
