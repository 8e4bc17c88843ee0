"""A cohort trained at once where that is cheaper: clients in this process that share one torch model.

Charges, screening and results are those of `LocalRunner`; only the arithmetic is shared. A model that cannot be trained
so, a client whose plan or data do not fit, or a model too large for it to pay, is trained one after the other. Clients
that together take longer than each may take alone, added up, are trained again, each beside a made-up twin: whoever is
late then is late alone. So are those of a pass that fails.

Privacy: one model alone rounds otherwise than two or more at once do, and training may make anything of that. So the
plan, the model and a client's own records decide how that client is trained, and never who else is there, nor what
becomes of them.

>>> import numpy as np
>>> from dpfed.federated.torch.client import TorchClient, TorchModel
>>> from dpfed.models.logistic import Logistic
>>> from dpfed.plan.plan import LocalPlan, Plan
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
from typing import Any, TypeGuard

import torch
from torch import Tensor

from dpfed.federated.deadline import INTERRUPTS, Late, within
from dpfed.federated.messages import FAILED, Client, Failure, Task, Update
from dpfed.federated.runners.factory import ClientFactory
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.torch.client import TorchClient
from dpfed.federated.torch.examples import Form, Tensors, make_records
from dpfed.federated.torch.model import TorchModel
from dpfed.ledger.ledger import Ledger
from dpfed.plan.local import LocalPlan
from dpfed.randomness import RandomSource
from dpfed.training.many import draws
from dpfed.training.many.batch_tuner import BatchTuner
from dpfed.training.many.ensemble import Ensemble
from dpfed.training.many.train import Member, can_serve, train_together

FEWEST = 2  # clients for which stacking is worth its set-up
WORDS = ("auto", "together", "one_by_one")  # of a configuration that name this runner
PINNED = 32  # clients in one pass where that is asked for: the same number each time, so that a seed decides all


def build(kind: str, clients: Iterable[Client], ledger: Ledger | None, **options: Any) -> EnsembleRunner:
    """Return the runner for a word of the configuration.

    How many clients are trained at once is measured, so it differs between runs; with a seed nothing may.
    """
    is_alone = kind == "one_by_one" or (kind == "auto" and options.get("source") is not None)
    chunk = PINNED if kind == "together" else 1 if is_alone else None
    return EnsembleRunner(clients, ledger, chunk=chunk, **options)


class EnsembleRunner(LocalRunner):
    """A runner that trains the clients of a cohort together; `chunk` pins how many at once, 1 one after the other.

    `one_pass` pins whether first steps, where all clients hold the same weights, are one pass through one model.
    """

    def __init__(
        self,
        clients: Iterable[Client] | ClientFactory,
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
        self._paces: dict[tuple[TorchModel, Form], BatchTuner | None] = {}
        self._widths: dict[tuple[int, float], int] = {}

    def _train_all(self, names: Sequence[str], task: Task, head: str) -> Iterator[Update | Failure]:
        groups: dict[tuple[TorchModel, Form], list[TorchClient]] = defaultdict(list)
        waiting: dict[str, Client] = {}
        self._widths = self._find_widths()
        for name in names:
            client = self._try_make_client(name, task)
            if isinstance(client, Failure):
                yield client
                continue
            waiting[name] = client
            if self._can_serve(client, task) and client.examples.form is not None:
                groups[client.model, client.examples.form].append(client)
        for (model, form), members in groups.items():
            pace = self._find_pace(model, form) if self._trains_together else None
            if pace is not None:
                for outcome in self._train_group(pace, model, members, task, head):
                    del waiting[outcome.client]
                    yield outcome
        for name, client in waiting.items():
            yield self._train_one(name, task, head, client)

    @property
    def _trains_together(self) -> bool:
        """Whether clients that can be are trained together, however many of them are here."""
        return self._chunk != 1 and len(self._plan.local) >= FEWEST

    def _train_group(
        self, pace: BatchTuner, model: TorchModel, clients: Sequence[TorchClient], task: Task, head: str
    ) -> Iterator[Update | Failure]:
        """Yield what becomes of the clients; if all together fail, try half of those left at a time, or each if late.

        One client's data may be the cause, and whose is not known. The others go on as they would have without it.
        """
        left = {client.name: client for client in clients}
        size = len(clients) // 2
        try:
            for update in self._train_together(pace, model, clients, task, head):
                del left[update.client]
                yield update
        except (*INTERRUPTS, GeneratorExit):  # or nobody asks for more
            raise
        except Late:
            if not size:
                yield self._report_late(clients[0].name)
                return
            size = 1
        except BaseException:
            if not size:  # by its own doing: with others it would have come to this as well
                yield self._train_one(clients[0].name, task, head, clients[0])
                return
        rest = list(left.values())
        for start in range(0, len(rest), size or 1):
            yield from self._train_group(pace, model, rest[start : start + size], task, head)

    def _try_make_client(self, name: str, task: Task) -> Client | Failure:
        if self._factory is None:  # nothing is made
            return self.clients[name]
        try:
            return within(self._plan.client_timeout, lambda: self._make_client(name, task))
        except Late:
            return self._report_late(name)
        except INTERRUPTS:
            raise
        except BaseException as error:  # it contributes zero, and the others go on
            return Failure(name, FAILED, error)

    def _can_serve(self, client: Client, task: Task) -> TypeGuard[TorchClient]:
        is_plain = isinstance(client, TorchClient) and isinstance(client.examples, Tensors) and client.canaries is None
        return is_plain and can_serve(self._plan.local[client.name]) and self._starts_with_all(client, task)

    def _starts_with_all(self, client: Client, task: Task) -> bool:
        """Return whether the client starts from the model that was sent, and not from one of its own."""
        try:
            return self._make_objective(client.name, task).start is task.weights
        except INTERRUPTS:
            raise
        except BaseException:  # it fails when it trains, alone
            return False

    def _find_pace(self, model: TorchModel, form: Form) -> BatchTuner | None:
        if (model, form) not in self._paces:
            try:
                with model.borrow(model.first_weights):
                    self._paces[model, form] = BatchTuner(Ensemble(model.module, model.loss, make_records(form, 4)))
            except INTERRUPTS:
                raise
            except BaseException:  # a form may be one client's own: whoever has it trains alone
                self._paces[model, form] = None
        return self._paces[model, form]

    def _train_together(
        self, pace: BatchTuner, model: TorchModel, clients: Sequence[TorchClient], task: Task, head: str
    ) -> Iterator[Update]:
        seconds = len(clients) * self._plan.client_timeout
        members = within(seconds, lambda: [self._make_member(client, task) for client in clients])
        with model.borrow(task.weights) as row:
            start = row.clone()
        first = dict(zip(model.layout.names, _split_row(start, model), strict=True))
        groups = train_together(
            pace, members, first, model.recipe, chunk=self._chunk, one_pass=self._one_pass, models=len(self._plan.local)
        )
        while True:
            with model.borrow(task.weights):  # nobody else runs the model meanwhile; others may between two groups
                group = within(seconds, lambda: next(groups, None))
            if group is None:
                return
            places, parameters = group
            rows = torch.cat([value.flatten(1) for value in parameters.values()], dim=1)
            changes = (rows.double() - start.double()).numpy()
            yield from (
                Update(clients[place].name, task.round, change, head)
                for place, change in zip(places, changes, strict=True)
            )

    def _make_member(self, client: TorchClient, task: Task) -> Member:
        examples = client.examples
        if not isinstance(examples, Tensors):
            raise TypeError(type(examples).__name__)
        local = self._plan.in_round(task.round).local[client.name]
        source = self._source_of(client.name, task)
        objective = self._make_objective(client.name, task)
        width = self._widths[local.steps, local.learning_rate]
        return Member(examples.inputs, examples.targets, local, source, objective, width)

    def _find_widths(self) -> dict[tuple[int, float], int]:
        """Return the width of batches for those of all the plan's clients, here or not, that may train together."""
        kinds: dict[tuple[int, float], list[LocalPlan]] = defaultdict(list)
        for local in self._plan.kinds:
            kinds[local.steps, local.learning_rate].append(local)
        return {kind: draws.find_width(plans, len(self._plan.local)) for kind, plans in kinds.items()}


def _split_row(row: Tensor, model: TorchModel) -> list[Tensor]:
    sizes = [parameter.numel() for parameter in model.parameters]
    return [part.view(own.shape) for part, own in zip(torch.split(row, sizes), model.parameters, strict=True)]
