"""One round of private steps in somebody else's client: the model starts from what was sent, and is read by us.

The site's own code builds model, optimizer and data, and loops over the batches. What leaves is not what that code
returns: it is a copy of the parameters that was taken right after the last private step.

>>> import torch
>>> from torch import nn
>>> from torch.utils.data import TensorDataset
>>> sent = {"weight": np.zeros((1, 3), np.float32), "bias": np.zeros(1, np.float32)}
>>> plan = LocalPlan(size=50, batch_size=10, steps=5, clip_norm=1.0, noise_multiplier=1.0)
>>> own = SampleRound(sent, plan)
>>> model, data = nn.Linear(3, 1), TensorDataset(torch.randn(50, 3), torch.zeros(50, 1))
>>> loss = lambda output, target: (output - target).square().sum(1)
>>> private = own.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, loss=loss)
>>> for batch in private.loader:
...     private.step(batch)
>>> model.weight.data.fill_(7.0)  # what is done to the model afterwards stays here
tensor([[7., 7., 7.]])
>>> float(abs(own.released()["weight"]).max()) < 7.0
True
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import RandomSource
from dpfed.training.loop import Private
from dpfed.training.private import make_private
from dpfed.training.screening import Loss

Arrays = Mapping[str, NDArray[Any]]


class SampleRound:
    """One round that is paid for: it makes one private model, and gives out what that model's steps released.

    Privacy: ``plan.event`` for one record or person, which must be charged before, as long as the site's own code
    changes the model by private steps alone. Every parameter and buffer starts at what the server sent; an optimizer
    that has made steps before or has hooks is refused, and so are a model or an optimizer that was changed between two
    steps and one that stopped early. Steps after the last private one, also of another private model, stay at the site.
    What the site's code decides by its records without noise (a learning rate, say) is not covered.
    """

    def __init__(self, sent: Arrays, plan: LocalPlan, source: RandomSource | None = None) -> None:
        self._sent = sent
        self._plan = plan
        self._source = source
        self._private: Private | None = None
        self._last: dict[str, Tensor] = {}
        self._memory: Any = {}
        self._taken = self._kept = 0  # steps of the private model when a step begins, and those whose result was copied

    def make_private(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        data: Dataset[Any] | DataLoader[Any],
        *,
        loss: Loss | None = None,
        max_physical_batch: int | None = None,
        device: torch.device | str | None = None,
    ) -> Private:
        """Load what the server sent into the model, and return it in private training by the policy's plan."""
        if self._private is not None:
            raise InvalidArgument("model", "this round is paid for once: train one private model in it")
        if optimizer.state:
            message = "the optimizer has made steps before, and what it keeps of them would reach the model"
            raise InvalidArgument("optimizer", f"{message}: make a new one in each round")
        if _count_hooks(optimizer):
            message = "the optimizer has hooks, which could change the model in a step without noise"
            raise InvalidArgument("optimizer", f"{message}: make one without them")
        _load(model, self._sent)
        first = optimizer.register_step_pre_hook(self._begin)
        try:
            self._private = make_private(
                model,
                optimizer,
                data,
                self._plan,
                loss=loss,
                source=self._source,
                max_physical_batch=max_physical_batch,
                device=device,
            )
        except BaseException:
            first.remove()
            raise
        self._model = model
        self._last = _copy_state(model)
        # After those of the private model: its noise is in the gradients, and the step is not taken yet.
        optimizer.register_step_pre_hook(self._require_unchanged)
        optimizer.register_step_post_hook(self._keep)
        self._hooks = _count_hooks(optimizer)
        return self._private

    def released(self) -> dict[str, NDArray[Any]]:
        """Return what leaves: trained parameters after the last step, everything else as it was sent."""
        if self._private is None:
            message = "the round is paid for, and no private model was trained in it"
            raise PrivacyError(f"{message}: call private_model(...) in the client's training")
        if self._kept != self._plan.steps:
            message = f"a round has {self._plan.steps} steps, and when training stops early its records may decide it"
            raise PrivacyError(f"{message}: loop over all of private.loader")
        trained = {name for name, value in self._parameters() if value.requires_grad}
        names = _match_names(self._model, self._sent)
        return {
            key: _to_numpy(self._last[name], array) if name in trained else array
            for (key, array), name in zip(self._sent.items(), names, strict=True)
        }

    def close(self) -> None:
        """End the private training."""
        if self._private is not None:
            self._private.close()

    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(self._model.named_parameters(remove_duplicate=False))  # two names of one are both trained

    def _count_steps(self) -> int:
        return 0 if self._private is None else self._private.steps_taken

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Count the private steps before one begins: what changes the model and is none of them is not copied."""
        self._taken = self._count_steps()

    def _require_unchanged(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._kept == self._plan.steps:
            return  # what is done after the last private step stays at the site
        if not _are_equal(_list_tensors(self._model), self._last):
            message = "the model was changed between two private steps, by something that has no noise"
            raise PrivacyError(f"{message}: let private steps alone change it")
        if _count_hooks(optimizer) > self._hooks or not _are_equal(_list_memory(optimizer), self._memory):
            message = "the optimizer got hooks or a state of its own between two private steps, which have no noise"
            raise PrivacyError(f"{message}: leave both as private_model found them")

    def _keep(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Copy what the last private step made; a step of another kind, after private training, is not counted."""
        if self._count_steps() > self._taken:
            self._kept += 1
            self._last, self._memory = _copy_state(self._model), deepcopy(_list_memory(optimizer))


def _load(model: nn.Module, sent: Arrays) -> None:
    """Put what was sent in the place of everything that the model keeps; refuse a model of another form."""
    own = model.state_dict()
    wanted = dict(zip(_match_names(model, sent), sent.values(), strict=True))
    for name, array in wanted.items():
        if tuple(own[name].shape) != array.shape:
            message = f"{name} has the shape {tuple(own[name].shape)}, and the server sent {array.shape}"
            raise InvalidArgument("model", f"{message}: build the model that the server starts from")
    model.load_state_dict({name: torch.tensor(array) for name, array in wanted.items()})
    # A model may load by code of its own: a parameter that starts elsewhere may hold something of the records.
    for name, value in model.named_parameters(remove_duplicate=False):
        if name not in wanted or not torch.equal(value.detach().cpu(), torch.tensor(wanted[name]).to(value.dtype)):
            message = f"{name} does not start from what the server sent"
            raise InvalidArgument("model", f"{message}: keep every parameter in the state_dict, and load it as it is")


def _match_names(model: nn.Module, sent: Arrays) -> list[str]:
    """Return the model's own name of each array: the same name, or its place where the old API sends no names."""
    own = list(model.state_dict())
    if set(sent) == set(own):
        return list(sent)
    if list(sent) == [str(place) for place in range(len(own))]:
        return own
    message = "what the server sent are not the arrays of this model's state_dict"
    raise InvalidArgument("model", f"{message}: start the server from ArrayRecord(model.state_dict())")


def _list_tensors(model: nn.Module) -> dict[str, Tensor]:
    # Not its state_dict, which a model may make by code of its own.
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def _copy_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in _list_tensors(model).items()}


def _count_hooks(optimizer: Optimizer) -> int:
    return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def _list_memory(optimizer: Optimizer) -> dict[int, Any]:
    """Return what the optimizer keeps of its steps, by the place of each parameter."""
    parameters = (value for group in optimizer.param_groups for value in group["params"])
    return {place: optimizer.state[each] for place, each in enumerate(parameters) if each in optimizer.state}


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two values, or mappings of them, are the same."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_are_equal(one[name], other[name]) for name in one)
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _to_numpy(value: Tensor, like: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(value.cpu().numpy()).astype(like.dtype)
