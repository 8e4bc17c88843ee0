"""A cohort trained at once where that is cheaper: clients in this process that share one torch model.

Charges, screening and results are those of `LocalRunner`; only the arithmetic is shared. A model that cannot be trained
so, a client whose plan or data do not fit, or a model too large for it to pay, is trained one after the other. So are
clients that together take longer than each may take alone, added up: whoever is late then is late alone.

>>> import numpy as np
>>> from dpfed.federated.torch_client import TorchClient, TorchModel
>>> from dpfed.models.logistic import Logistic
>>> from dpfed.plan import LocalPlan, Plan
>>> model = TorchModel(Logistic, "cross_entropy")
>>> data = np.zeros((20, 30)), np.zeros(20, dtype=int)
>>> clients = [TorchClient(f"ward {n}", data, "", model) for n in range(3)]
>>> local = LocalPlan(size=20, batch_size=10, steps=2)
>>> runner = EnsembleRunner(clients)
>>> _ = runner.enroll(Plan("study", 1, {client.name: local for client in clients}, style="none"), model.first_weights)
>>> task = Task(1, {"weights": model.first_weights})
>>> [update.value.shape for update in runner.train(task, [client.name for client in clients])]
[(62,), (62,), (62,)]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeGuard

import torch
from torch import Tensor

from dpfed.errors import InvalidArgument
from dpfed.federated.deadline import Late, within
from dpfed.federated.examples import Form, Tensors, made_up
from dpfed.federated.runners.local import LocalRunner
from dpfed.federated.torch_client import TorchClient
from dpfed.federated.torch_model import TorchModel
from dpfed.federated.update import Client, Failure, Task, Update
from dpfed.ledger.ledger import Ledger
from dpfed.randomness import RandomSource
from dpfed.training.ensemble import Ensemble
from dpfed.training.many import Member, can_serve, together
from dpfed.training.pace import Pace

FEWEST = 2  # clients for which stacking is worth its set-up


class EnsembleRunner(LocalRunner):
    """Trains the clients of a cohort together; `chunk` pins how many at once, 1 means one after the other.

    `one_pass` pins whether first steps, where all clients hold the same weights, are one pass through one model.
    """

    def __init__(
        self,
        clients: Iterable[Client],
        ledger: Ledger | None = None,
        *,
        study: str | None = None,
        source: RandomSource | None = None,
        chunk: int | None = None,
        one_pass: bool | None = None,
    ) -> None:
        super().__init__(clients, ledger, study=study, source=source)
        self._chunk = chunk
        self._one_pass = one_pass
        self._paces: dict[tuple[TorchModel, Form], Pace | None] = {}

    def _trained(self, clients: Sequence[Client], task: Task, head: str) -> Iterator[Update | Failure]:
        groups: dict[tuple[TorchModel, Form], list[TorchClient]] = defaultdict(list)
        waiting = {client.name: client for client in clients}
        for client in clients:
            if self._can_serve(client, task) and client.examples.form is not None:
                groups[client.model, client.examples.form].append(client)
        for (model, form), members in groups.items():
            pace = self._pace(model, form) if len(members) >= FEWEST else None
            if pace is None or self._chunk == 1:
                continue
            # One client's data may raise it: whoever is left then trains alone.
            with suppress(Exception, SystemExit, Late):
                for update in self._at_once(pace, model, members, task, head):
                    del waiting[update.client]
                    yield update
        yield from super()._trained(list(waiting.values()), task, head)

    def _can_serve(self, client: Client, task: Task) -> TypeGuard[TorchClient]:
        is_plain = isinstance(client, TorchClient) and isinstance(client.examples, Tensors)
        return is_plain and can_serve(self._plan.local[client.name]) and self._starts_with_all(client, task)

    def _starts_with_all(self, client: Client, task: Task) -> bool:
        """Return whether the client starts from the model that was sent, and not from one of its own."""
        with suppress(Exception, SystemExit):  # it fails when it trains, alone
            return self._objective(client, task).start is task.weights
        return False

    def _pace(self, model: TorchModel, form: Form) -> Pace | None:
        if (model, form) not in self._paces:
            try:
                with model.lent(model.first_weights):
                    self._paces[model, form] = Pace(Ensemble(model.module, model.loss, made_up(form, 4)))
            except InvalidArgument:
                self._paces[model, form] = None
        return self._paces[model, form]

    def _at_once(
        self, pace: Pace, model: TorchModel, clients: Sequence[TorchClient], task: Task, head: str
    ) -> Iterator[Update]:
        members = [self._member(client, task) for client in clients]
        with model.lent(task.weights) as row:
            start = row.clone()
        first = dict(zip(model.layout.names, _parts(start, model), strict=True))
        groups = together(pace, members, first, model.recipe, chunk=self._chunk, one_pass=self._one_pass)
        while True:
            with model.lent(task.weights):  # nobody else runs the model meanwhile; others may between two groups
                group = within(len(clients) * self._plan.client_timeout, lambda: next(groups, None))
            if group is None:
                return
            places, parameters = group
            rows = torch.cat([value.flatten(1) for value in parameters.values()], dim=1)
            changes = (rows.double() - start.double()).numpy()
            yield from (
                Update(clients[place].name, task.round, change, head)
                for place, change in zip(places, changes, strict=True)
            )

    def _member(self, client: TorchClient, task: Task) -> Member:
        examples = client.examples
        if not isinstance(examples, Tensors):
            raise TypeError(type(examples).__name__)
        local, source = self._plan.local[client.name], self._source_of(client, task)
        return Member(examples.inputs, examples.targets, local, source, self._objective(client, task))


def _parts(row: Tensor, model: TorchModel) -> list[Tensor]:
    sizes = [parameter.numel() for parameter in model.parameters]
    return [part.view(own.shape) for part, own in zip(torch.split(row, sizes), model.parameters, strict=True)]
