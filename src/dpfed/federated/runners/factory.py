"""Clients of a population, each made by your code when it is drawn, and dropped when it has trained.

>>> import numpy as np
>>> from dpfed.federated.runners.in_process import LocalRunner
>>> from dpfed.federated.messages import Task
>>> from dpfed.plan.plan import FixedCohort, LocalPlan, Plan, Population
>>> class Phone:
...     account = ""
...     def __init__(self, number, name): self.number, self.name = number, name
...     def rehearse(self, local, weights): ...
...     def train(self, local, objective, source):
...         return self.number - objective.start
>>> phones = Population(1_000_000, LocalPlan(size=8, batch_size=4, steps=3), prefix="phone-")
>>> runner = LocalRunner(ClientFactory(Phone))
>>> _ = runner.enroll(Plan("study", 1, phones, style="none", cohort=FixedCohort(2)), np.zeros(1))
>>> [update.value.tolist() for update in runner.train(Task(1, {"weights": np.zeros(1)}), ["phone-7", "phone-99"])]
[[7.0], [99.0]]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpfed.errors import InvalidArgument
from dpfed.federated.messages import Client
from dpfed.federated.state.layout import Vector
from dpfed.plan.plan import Plan, Population


@dataclass(frozen=True, eq=False)
class ClientFactory:
    """The maker of a population's clients, each from its number and its name: ``make(number, name)``.

    `example` is a client of made-up records, under any name. It is rehearsed before anything is charged, so that a
    model that does not fit is refused then; it never trains. Without it a mistake in `make` shows in the owner's files
    alone, since a client that cannot be made contributes zero as one that fails does.

    Privacy: a number must be the same client in every round, and no two numbers the same client: the clip bounds what
    each number contributes. What `make` does at one client must not depend on the data of another.
    """

    make: Callable[[int, str], Client]
    example: Client | None = None

    def __post_init__(self) -> None:
        make: object = self.make
        if not callable(make):
            message = f"make must be a function of a client's number and name, got {make!r:.60}"
            raise InvalidArgument("make", f"{message}: clients are made when drawn; give lambda number, name: ...")

    @property
    def examples(self) -> tuple[Client, ...]:
        """The example, if there is one."""
        return () if self.example is None else (self.example,)

    def rehearse(self, plan: Plan, weights: Vector) -> None:
        """Refuse a plan without a population, and a model that does not fit the example."""
        if not isinstance(plan.local, Population):
            message = "clients are made when drawn only for a plan over a Population, and this one names its clients"
            raise InvalidArgument("clients", f"{message}: give the runner a list of them, or the plan a Population")
        for example in self.examples:
            example.rehearse(plan.one_local, weights)

    def client(self, name: str, plan: Plan, weights: Vector) -> Client:
        """Return the client of that name, newly made; whatever is wrong with it is raised."""
        if not isinstance(plan.local, Population):
            raise TypeError(type(plan.local).__name__)
        made = self.make(plan.local.number(name), name)
        if made.name != name:
            message = f"make gave a client of the name {made.name!r:.60} for {name!r}: give it the name it was made for"
            raise InvalidArgument("make", message)
        made.rehearse(plan.local[name], weights)
        return made
