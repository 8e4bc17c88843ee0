"""From a configuration to rounds: data, model, clients, plan and accounts, all refused now or not at all.

Without a ``ledger:`` block a run keeps a ledger of its own in its directory, with an account for each client (and one
for the study where the server adds noise), so that it can be tried any number of times. What such runs spend together
nobody counts: a study on real data names the ledger in which its accounts are.

>>> from dpfed.config.run import RunConfig
>>> launch = prepare(RunConfig.parse('''
... name: flowers
... data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: quantity, sizes: [80, 40]}}
... model: {kind: logistic}
... rounds: 2
... local: {steps: 5, batch_size: 20, learning_rate: 0.5}
... privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
... '''))
>>> launch.model
TorchModel(Logistic, 15 numbers of float32)
>>> with launch.ledger("run") as ledger:
...     [result.number for result in launch.federation("run", ledger)]
[1, 2]
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpfed.config.kept import kept
from dpfed.config.run import RunConfig
from dpfed.data.clients import DataFacts, FederatedData, loaded, scaled
from dpfed.data.clients import prepare as prepare_data
from dpfed.data.partition import numbered
from dpfed.data.persons import Persons
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument
from dpfed.federated import metrics, torch_factory
from dpfed.federated.algorithms import registry
from dpfed.federated.engine import Federation
from dpfed.federated.metrics import Score
from dpfed.federated.planning import planned
from dpfed.federated.runners.ensemble import EnsembleRunner
from dpfed.federated.runners.pool import PoolRunner
from dpfed.federated.torch_client import TorchClient
from dpfed.federated.torch_model import TorchModel
from dpfed.federated.update import Runner
from dpfed.federated.weights import Vector
from dpfed.ledger import words
from dpfed.ledger.ledger import Ledger
from dpfed.plan import Plan
from dpfed.randomness import RandomSource, SeededSource
from dpfed.runs import CONFIG, LEFT_OUT, OWN_LEDGER, OWNER_ONLY, RunDirectory, write_durably

STUDY = "study"
TOGETHER = 32  # clients in one pass where that is asked for: the same number each time, so that a seed decides all


@dataclass(frozen=True, eq=False)
class Outline:
    """What can be known of a run from declared names, sizes, shapes and classes: a server needs no more."""

    config: RunConfig
    plan: Plan
    model: TorchModel
    weights: Vector = field(repr=False)
    directory: Path


@dataclass(frozen=True, eq=False)
class Launch:
    """Everything a run needs; nothing is charged and nothing is written yet."""

    config: RunConfig
    plan: Plan
    model: TorchModel
    weights: Vector = field(repr=False)
    clients: tuple[TorchClient, ...] = field(repr=False)
    test: Records | None = field(repr=False)
    directory: Path
    left_out: int = field(default=0, repr=False)
    is_moved: bool = False

    @property
    def study(self) -> str | None:
        """The account that pays for what the server releases; None in styles that have no noise there."""
        if "client" not in self.plan.units:
            return None
        return STUDY if self.config.ledger is None else self.config.ledger.account

    def ledger(self, run_directory: str | Path) -> AbstractContextManager[Ledger | None]:
        """The ledger that the configuration names, or the run's own with every account open; None if nobody pays."""
        if not self.plan.units:
            return nullcontext()
        if self.config.ledger is not None:
            return Ledger(self._url(self.config.ledger.url), create=False)
        run = RunDirectory(run_directory)
        ledger = Ledger(run.path / OWN_LEDGER, create=not run.has_begun)
        self._open_accounts(ledger)
        return ledger

    def federation(self, run_directory: str | Path, ledger: Ledger | None) -> Federation:
        """The rounds that are still to be done in that directory."""
        source = self._source()
        federation = Federation(
            self.plan,
            self.weights,
            self._runner(ledger, source),
            run_directory,
            layout=self.model.layout,
            algorithm=registry.build(
                self.plan.algorithm.name, directory=self.directory, **self.plan.algorithm.parameters
            ),
            evaluate=self.evaluate,
            source=source,
            terms=self.config.terms,
        )
        if self.is_moved:
            federation.move_to(self.directory)
        return federation

    def evaluate(self, weights: Vector) -> tuple[Score, ...]:
        """Loss and metric on what is held out, marked unless it was declared public; nothing if nothing is."""
        if self.test is None:
            return ()
        return self.scores(weights, self.test, is_public=self.config.data.test_is_public)

    def scores(self, weights: Vector, records: Records, *, is_public: bool) -> tuple[Score, ...]:
        """Loss and metric on these records."""
        _, metric = metrics.named(self.config.model.metric, self.directory)
        return self.model.evaluate(weights, (records.features, records.labels), [metric], is_public=is_public)

    def records(self, source: str, directory: str | Path) -> Records:
        """Other records in the form of the run's own: the same columns, the same public scale."""
        block = self.config.data.model_copy(update={"source": source})
        return scaled(loaded(block, directory), block)

    def _source(self) -> RandomSource | None:
        return None if self.config.seed is None else SeededSource(self.config.seed)

    def _runner(self, ledger: Ledger | None, source: RandomSource | None) -> Runner:
        kind, study = self.config.runner, self.study
        if kind == "processes":
            return PoolRunner(self.clients, ledger, study=study, source=source)
        # How many clients are trained at once is measured, so it differs between runs; with a seed nothing may.
        chunk = 1 if kind == "one_by_one" or (kind == "auto" and source is not None) else None
        chunk = TOGETHER if kind == "together" else chunk
        return EnsembleRunner(self.clients, ledger, study=study, source=source, chunk=chunk)

    def _url(self, url: str) -> str | Path:
        return url if "://" in url else self.directory / url

    def _open_accounts(self, ledger: Ledger) -> None:
        plan, accounts = self.plan, [client.account for client in self.clients]
        promises = {} if plan.guarantee is None else dict.fromkeys(accounts, plan.guarantee)
        if plan.client_guarantee is not None:
            promises[STUDY] = plan.client_guarantee
        if next(iter(promises)) not in ledger:  # all of them are, or none
            ledger.open_all(promises, purpose=plan.name)


def begun(file: str | Path, run_directory: str | Path, config: RunConfig | None = None) -> Launch:
    """The launch of a configuration file, whose `config` may be read already; a new directory keeps what is needed."""
    path = Path(file).resolve()
    launch = prepare(config or RunConfig.read(path), path.parent)
    run = RunDirectory(run_directory)
    if (run.path / CONFIG).exists() or (run.path / "plan.json").exists():
        message = f"{run.path} holds a run already: go on with it by `dpfed resume {run.path}`, or choose another"
        raise InvalidArgument("directory", message)
    # The file may hold the ledger's password, and where it lies is nobody's business either.
    if launch.config.data.person_column is not None:
        write_durably(run.folder("owner") / LEFT_OUT, str(launch.left_out).encode(), mode=OWNER_ONLY)
    run.write_origin(path.parent)
    write_durably(run.path / CONFIG, path.read_bytes(), mode=OWNER_ONLY)
    return launch


def resumed(run_directory: str | Path, moved_to: str | Path | None = None) -> Launch:
    """The launch of a run that was begun in that directory; its data may have been `moved_to` another folder."""
    path = Path(run_directory)
    config = kept(RunDirectory(path)) if path.is_dir() else None
    if config is None:
        raise InvalidArgument("directory", f"{path} holds no run that was begun by `dpfed run`")
    run = RunDirectory(path)
    folder = run.origin if moved_to is None else Path(moved_to).resolve()
    launch = prepare(config, folder, is_older=run.is_older)
    return launch if moved_to is None else replace(launch, is_moved=True)


def prepare(config: RunConfig, directory: str | Path = ".", *, is_older: bool = False) -> Launch:
    """Return the launch of a configuration; names of files and modules are looked up in `directory` first.

    One that `is_older` than digests was dealt in another way, and goes on so.
    """
    words.name(name=config.name)  # the ledger's rule, before anything is made
    data = prepare_data(config.data, directory, is_older=is_older)
    return with_data(outlined(config, data.facts, directory), data)


def outlined(config: RunConfig, facts: DataFacts, directory: str | Path = ".") -> Outline:
    """Return the first half of a launch, for which no record is looked at: plan, model and first weights."""
    words.name(name=config.name)
    plan = planned(config, facts)
    model = torch_factory.model(config, facts, Path(directory))
    weights = torch_factory.first_weights(model, config.model.init, Path(directory))
    return Outline(config, plan, model, weights, Path(directory))


def with_data(outline: Outline, data: FederatedData) -> Launch:
    """Return the whole launch: the clients with their records, all of which fit the plan, the model and the metric."""
    config, plan, model, weights, directory = vars(outline).values()
    clients = _clients(config, data, model)
    for client in clients:
        client.rehearse(plan.local[client.name], weights)
    metric = metrics.named(config.model.metric, directory)
    if data.test is not None:
        model.rehearse_metric(weights, metric, data.test.features, data.test.labels)
    return Launch(config, plan, model, weights, clients, data.test, directory, data.left_out)


def _clients(config: RunConfig, data: FederatedData, model: TorchModel) -> tuple[TorchClient, ...]:
    accounts = _accounts(config, tuple(data.clients))
    return tuple(TorchClient(name, _arrays(records), accounts[name], model) for name, records in data.clients.items())


def _arrays(records: Records | Persons) -> Any:
    return records if isinstance(records, Persons) else (records.features, records.labels)


def _accounts(config: RunConfig, names: tuple[str, ...]) -> dict[str, str]:
    if config.ledger is not None:
        pattern = config.ledger.client_accounts or ""
        return {name: pattern.replace("{id}", name) for name in names}
    # In a ledger of its own the run chooses the names: numbers, if one of the clients' cannot stand in a ledger.
    shown = names if all(map(words.is_name, names)) else numbered(len(names))
    return {name: f"client-{account}" for name, account in zip(names, shown, strict=True)}
