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

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.aggregation.adversaries import POISONS, describe_attack, parse_attacks
from dpfed.config.kept import add_ranges, read_kept
from dpfed.config.run import ConfigFile, RunConfig
from dpfed.data.partition import number_clients
from dpfed.data.persons import Persons
from dpfed.data.poison import poison
from dpfed.data.records import Records
from dpfed.data.scaling import map_back
from dpfed.errors import InvalidArgument
from dpfed.federated import metrics
from dpfed.federated.algorithms import registry
from dpfed.federated.assessment import ClassAssessment, QuantityAssessment, assess_classes, assess_quantity
from dpfed.federated.bounds import refuse_unbounded_label, require_bounds
from dpfed.federated.data import DataFacts, FederatedData, load_records, scale_records
from dpfed.federated.data import prepare as prepare_data
from dpfed.federated.engine import Federation
from dpfed.federated.messages import Runner
from dpfed.federated.metrics import Score
from dpfed.federated.planning import make_plan
from dpfed.federated.probabilities import to_probabilities
from dpfed.federated.ranges import assume_ranges, release_ranges, require_useful
from dpfed.federated.runners import together
from dpfed.federated.runners.attacked import AttackedRunner, choose_faulty
from dpfed.federated.runners.charging import SharedLedger
from dpfed.federated.state.layout import Vector
from dpfed.federated.torch import factory
from dpfed.federated.torch.client import TorchClient
from dpfed.federated.torch.model import TorchModel
from dpfed.ledger import inputs
from dpfed.ledger.ledger import Ledger
from dpfed.plan.measure import Measurement
from dpfed.plan.plan import Plan
from dpfed.randomness import RandomSource, SeededSource
from dpfed.runs.directory import CONFIG, FEATURES, LEFT_OUT, OWN_LEDGER, OWNER_ONLY, RANGES, RunDirectory, write_durably

STUDY = "study"


@dataclass(frozen=True, eq=False)
class Outline:
    """The part of a run that is known from declared names, sizes, shapes and classes: a server needs no more."""

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
    features: tuple[str, ...] = field(default=(), repr=False)

    @property
    def simulation(self) -> str:
        """The mark of a run in which clients attack; an empty text for others."""
        return describe_attack(self.config.attack_sim)

    @property
    def study(self) -> str | None:
        """The account that pays for what the server releases; None in styles that have no noise there."""
        if not self.plan.server_noises:
            return None
        return STUDY if self.config.ledger is None else self.config.ledger.account

    def ledger(self, run_directory: str | Path) -> AbstractContextManager[Ledger | None]:
        """Open the ledger that the configuration names, or the run's own with all accounts; None if nobody pays."""
        if not self.plan.units:
            return nullcontext()
        if self.config.ledger is not None:
            return Ledger(_resolve_url(self.config.ledger.url, self.directory), create=False)
        run = RunDirectory(run_directory)
        ledger = Ledger(run.path / OWN_LEDGER, create=not run.has_begun)
        self._open_accounts(ledger)
        return ledger

    def with_ranges(self, run_directory: str | Path, ledger: Ledger | None) -> Launch:
        """Release the ranges that the run is to begin with, and return the launch on features scaled by them.

        A launch that needs none, or whose ranges are stored, is returned as it is, and nothing is charged again.
        """
        if self.config.has_ranges:
            return self
        run = RunDirectory(run_directory)
        config = add_ranges(self.config, run)  # which may have been stored since this launch was made
        if not (run.path / RANGES).exists():
            charging = SharedLedger(ledger, {client.name: client.account for client in self.clients})
            config = release_ranges(config, self.plan, self.directory, run, charging, self._make_source())
        require_useful(config, self.plan, run, ledger)
        return replace(prepare(config, self.directory), is_moved=self.is_moved)

    def federation(self, run_directory: str | Path, ledger: Ledger | None) -> Federation:
        """Return the iterator over the rounds that are still to be done in that directory."""
        if not self.config.has_ranges:
            message = "the run releases ranges before its first round, and trains on features that are scaled by them"
            raise InvalidArgument("bounds", f"{message}: take launch.with_ranges(directory, ledger) first")
        source = self._make_source()
        federation = Federation(
            self.plan,
            self.weights,
            self._make_runner(ledger, source),
            run_directory,
            layout=self.model.layout,
            algorithm=registry.build_named(self.plan, self.directory),
            evaluate=self.evaluate,
            source=source,
            terms=self.config.terms,
        )
        if self.is_moved:
            federation.move_to(self.directory)
        return federation

    def evaluate(self, weights: Vector) -> tuple[Score, ...]:
        """Return loss and metric on the held-out records, marked unless these are public; () if there are none."""
        if self.test is None:
            return ()
        return self.scores(weights, self.test, is_public=self.config.data.test_is_public)

    def scores(self, weights: Vector, records: Records, *, is_public: bool) -> tuple[Score, ...]:
        """Return loss and metric on these records."""
        _, metric = metrics.find_metric(self.config.model.metric, self.directory)
        data = (records.features, records.labels)
        scores = self.model.evaluate(weights, data, [metric], is_public=is_public)
        scores = metrics.in_unit(scores, self.config.data.label_bounds)
        if self.plan.measurement is None:
            return scores
        outputs, _ = self.model.predict(weights, data)
        exact = metrics.exact_figures(self.plan.measurement, outputs, records.labels, is_public=is_public)
        known = {score.name for score in scores}
        return (*scores, *(each for each in exact if each.name not in known))

    def assess(self, weights: Vector, records: Records) -> ClassAssessment | QuantityAssessment | None:
        """Return the usual figures on these records, exact and for their owner; None for images to be segmented."""
        classes = self.config.data.classes or records.classes
        if records.labels.ndim > 1 or (not classes and self.config.model.loss != "mse"):
            return None
        outputs, _ = self.model.predict(weights, (records.features, records.labels))
        if not classes:
            bounds = self.config.data.label_bounds
            return assess_quantity(map_back(outputs, bounds), map_back(records.labels, bounds))
        return assess_classes(to_probabilities(outputs, len(classes)), records.labels, tuple(classes))

    def records(self, source: str, directory: str | Path) -> Records:
        """Load other records in the form of the run's own: the same columns, the same public scale."""
        block = self.config.data.model_copy(update={"source": source})
        return scale_records(load_records(block, directory), block)

    def _make_source(self) -> RandomSource | None:
        return None if self.config.seed is None else SeededSource(self.config.seed)

    def _make_runner(self, ledger: Ledger | None, source: RandomSource | None) -> Runner:
        """Return the runner that the configuration names: what `build` makes in the module of that name."""
        kind = self.config.runner
        module = import_module(f"dpfed.federated.runners.{'together' if kind in together.WORDS else kind}")
        runner: Runner = module.build(kind, self.clients, ledger, study=self.study, source=source)
        if self.config.attack_sim is None:
            return runner
        return AttackedRunner(runner, _find_faulty(self.config, self.plan), self.simulation, source)

    def _open_accounts(self, ledger: Ledger) -> None:
        plan, accounts = self.plan, [client.account for client in self.clients]
        promise = plan.client_guarantee if plan.noises_updates else plan.guarantee
        promises = {} if promise is None else dict.fromkeys(accounts, promise)
        if plan.client_guarantee is not None and plan.server_noises:
            promises[STUDY] = plan.client_guarantee
        if next(iter(promises)) not in ledger:  # all of them are, or none
            ledger.open_all(promises, purpose=plan.name)


def create_run(file: str | Path | ConfigFile, run_directory: str | Path) -> Launch:
    """Create a run in an empty directory from a configuration file, and return its launch."""
    read = find_free_name(file if isinstance(file, ConfigFile) else ConfigFile.read(file))
    launch = prepare(read.config, read.folder, is_new=True)
    run = RunDirectory(run_directory)
    if (run.path / CONFIG).exists() or (run.path / "plan.json").exists():
        message = f"{run.path} holds a run already: go on with it by `dpfed resume {run.path}`, or choose another"
        raise InvalidArgument("directory", message)
    # The file may hold the ledger's password, and where it lies is nobody's business either.
    if launch.config.data.person_column is not None:
        write_durably(run.folder("owner") / LEFT_OUT, str(launch.left_out).encode(), mode=OWNER_ONLY)
    run.write_origin(read.folder)
    if launch.features:
        write_durably(run.path / FEATURES, json.dumps(launch.features, ensure_ascii=False).encode())
    write_durably(run.path / CONFIG, read.content, mode=OWNER_ONLY)
    return launch


def find_free_name(file: ConfigFile) -> ConfigFile:
    """Return the file with a name that its ledger does not know yet: its own, or that with the first free number."""
    config = file.config
    if config.ledger is None or config.privacy.style == "none":
        return file
    with Ledger(_resolve_url(config.ledger.url, file.folder), create=False) as ledger:
        names = chain([config.name], (f"{config.name}-{number}" for number in count(2)))
        name = next(name for name in names if not ledger.has_run(name))
    return file if name == config.name else file.with_name(name)


def resume_run(run_directory: str | Path, moved_to: str | Path | None = None) -> Launch:
    """Return the launch of the run in that directory; its data may have been `moved_to` another folder."""
    path = Path(run_directory)
    config = read_kept(RunDirectory(path)) if path.is_dir() else None
    if config is None:
        raise InvalidArgument(
            "directory", f"{path} holds no run that was begun by `dpfed run`: `dpfed run FILE` begins one"
        )
    run = RunDirectory(path)
    if run.is_networked:
        message = f"{path} is a run over a network, whose records are at its sites and not here"
        ways = f"`dpfed export {path}` writes its model, metrics: in the run file releases figures"
        raise InvalidArgument("directory", f"{message}: {ways}, and `dpfed resume {path}` goes on with it")
    folder = run.origin if moved_to is None else Path(moved_to).resolve()
    launch = prepare(config, folder, is_older=run.is_older, is_shuffled=run.is_shuffled)
    return launch if moved_to is None else replace(launch, is_moved=True)


def prepare(
    config: RunConfig,
    directory: str | Path = ".",
    *,
    is_older: bool = False,
    is_shuffled: bool = False,
    is_new: bool = False,
) -> Launch:
    """Return the launch of a configuration; names of files and modules are looked up in `directory` first.

    One that `is_older` than digests was dealt in another way, and goes on so; so does one whose hold-outs were chosen
    by a shuffle. One that `is_new` needs public bounds for every column of numbers.
    """
    inputs.name(name=config.name)  # the ledger's rule, before anything is made
    block = assume_ranges(config, Path(directory)).data
    data = prepare_data(block, directory, is_older=is_older, is_shuffled=is_shuffled)
    if is_new:
        require_bounds(config, data)
        refuse_unbounded_label(config)
    return add_data(outline_run(config, data.facts, directory), data)


def outline_run(config: RunConfig, facts: DataFacts, directory: str | Path = ".") -> Outline:
    """Return the first half of a launch, which reads no record: plan, model and first weights."""
    inputs.name(name=config.name)
    plan = make_plan(config, facts)
    model = factory.build_model(config, facts, Path(directory))
    weights = factory.first_weights(model, config.model.init, Path(directory))
    return Outline(config, plan, model, weights, Path(directory))


def add_data(outline: Outline, data: FederatedData) -> Launch:
    """Return the whole launch: the clients with their records, all of which fit the plan, the model and the metric."""
    config, plan, model, weights, directory = vars(outline).values()
    clients = _make_clients(config, data, model, _find_faulty(config, plan))
    for client in clients:
        client.rehearse(plan.local[client.name], weights)
    metric = metrics.find_metric(config.model.metric, directory)
    if data.test is not None:
        model.rehearse_metric(weights, metric, data.test.features, data.test.labels)
        if plan.measurement is not None:
            counted = ("metrics.release", _make_trial(plan.measurement))
            model.rehearse_metric(weights, counted, data.test.features, data.test.labels)
    features = next(iter(data.clients.values())).rows.columns
    return Launch(config, plan, model, weights, clients, data.test, directory, data.left_out, features=tuple(features))


def _resolve_url(url: str, directory: Path) -> str | Path:
    return url if "://" in url else directory / url


def _make_trial(measurement: Measurement) -> metrics.Metric:
    """Return a metric that refuses outputs which the measurement cannot count."""

    def try_out(outputs: Any, targets: Any) -> Any:
        measurement.require_outputs(outputs, targets)
        return measurement.find_cells(outputs, targets)

    return try_out


def _find_faulty(config: RunConfig, plan: Plan) -> dict[str, str]:
    """Return which client attacks how, in a simulation."""
    return {} if config.attack_sim is None else choose_faulty(tuple(plan.local), parse_attacks(config.attack_sim))


def _make_clients(
    config: RunConfig, data: FederatedData, model: TorchModel, faulty: Mapping[str, str]
) -> tuple[TorchClient, ...]:
    accounts = _name_accounts(config, tuple(data.clients))
    poisoned = {name: attack for name, attack in faulty.items() if attack in POISONS}
    parts = {
        name: poison(poisoned[name], records, _count_classes(data)) if name in poisoned else records
        for name, records in data.clients.items()
    }
    return tuple(
        TorchClient(name, _read_arrays(records), accounts[name], model, held_out=data.held_out.get(name))
        for name, records in parts.items()
    )


def _count_classes(data: FederatedData) -> int:
    """Return how many classes there are, for a simulation: it protects nobody from knowing."""
    return 1 + max(int(np.max(records.rows.labels)) for records in data.clients.values())


def _read_arrays(records: Records | Persons) -> Any:
    return records if isinstance(records, Persons) else (records.features, records.labels)


def _name_accounts(config: RunConfig, names: tuple[str, ...]) -> dict[str, str]:
    if config.ledger is not None:
        pattern = config.ledger.client_accounts or ""
        return {name: pattern.replace("{id}", name) for name in names}
    # In a ledger of its own the run chooses the names: numbers, if one of the clients' cannot stand in a ledger.
    shown = names if all(map(inputs.is_name, names)) else number_clients(len(names))
    return {name: f"client-{account}" for name, account in zip(names, shown, strict=True)}
