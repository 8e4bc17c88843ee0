"""Directories of small runs that train nothing, with a ledger of their own, as a report finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from dpfed.federated.engine import Federation
from dpfed.federated.metrics import Score
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.randomness import RandomSource
from dpfed.runs.directory import OWN_LEDGER

RECORD = Guarantee(epsilon=4.0, delta=1e-5)
CLIENT = Guarantee(epsilon=8.0, delta=1e-5, unit="client")
SIZES = {"north": 182, "south": 114, "harbour": 36}
ACCURACY, LOSS = 0.875, 0.4711


class Crash(KeyboardInterrupt):
    """Stands for the end of the process: nothing in dpfed catches it."""


@dataclass
class Ward:
    """A client that may be ill, and that ends the process in the calls listed."""

    name: str
    account: str
    is_ill: bool = False
    crashes: tuple[int, ...] = ()
    calls: list[int] = field(default_factory=list)

    def rehearse(self, local, weights) -> None: ...

    def train(self, local, objective, source):
        self.calls.append(1)
        if len(self.calls) in self.crashes:
            raise Crash
        return np.full(2, np.nan) if self.is_ill else 0.1 * source.normal(2)


def plan_of(style: str, sizes: dict[str, int] | None = None, rounds: int = 3, **options) -> Plan:
    """A plan calibrated for every unit that its style protects; all records in every step, which is soon counted."""
    sizes = sizes or SIZES
    local = {name: LocalPlan(size=size, batch_size=size, steps=4, clip_norm=1.0) for name, size in sizes.items()}
    if style in ("user", "hybrid"):
        options = {"weighting": "equal", "client": ClientPlan(clip_norm=1.0)} | options
    plan = Plan("wards", rounds, local, style=style, **options)
    asked = {"none": (), "sample": (RECORD,), "user": (CLIENT,), "hybrid": (RECORD, CLIENT)}[style]
    return plan.calibrated(*asked) if asked else plan


def made(
    folder: Path,
    plan: Plan,
    *,
    source: RandomSource | None = None,
    is_public: bool = False,
    ill: str = "",
    crashes: tuple[int, ...] = (),
    most: int | None = None,
) -> Path:
    """The folder, after the plan was run there; with `crashes` as often as it takes, with `most` for so many rounds."""
    folder.mkdir()
    accounts = {name: f"account-{number}" for number, name in enumerate(plan.local)}
    clients = [Ward(name, account, name == ill) for name, account in accounts.items()]
    clients[0].crashes = crashes
    with Ledger(folder / OWN_LEDGER) as ledger:
        for account in accounts.values() if plan.guarantee else ():
            ledger.open(account, **asdict(plan.guarantee))
        if plan.client_guarantee:
            ledger.open("study", **asdict(plan.client_guarantee))
        for _ in range(len(crashes) + 1):
            study = "study" if plan.client_guarantee else None
            runner = LocalRunner(clients, ledger if plan.units else None, study=study, source=source)
            rounds = Federation(plan, np.zeros(2), runner, folder, evaluate=_scores(is_public), source=source)
            with suppress(Crash):
                any(result.number == most for result in rounds)
    return folder


def _scores(is_public: bool) -> Callable[..., Iterable[Score]]:
    return lambda weights: (Score("accuracy", ACCURACY, is_public), Score("loss", LOSS, is_public))
