"""A run whose clients are sites behind a network: the same file, the same federation, the same files of the run.

The server reads no record. Plan and model follow from what the file declares (names, sizes, shape, classes), and each
site checks them against its own file. Whatever carries the messages is given as a `Transport`.

>>> from dpfed.federated.launch import Outline
>>> outline_declared.__annotations__["return"]
'Outline'
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dpfed.config.kept import read_kept
from dpfed.config.run import ConfigFile, RunConfig
from dpfed.errors import InvalidArgument
from dpfed.federated import metrics
from dpfed.federated.algorithms import registry
from dpfed.federated.asks import AskBook
from dpfed.federated.data import load_records, scale_records
from dpfed.federated.engine import Federation
from dpfed.federated.keys import SigningKey
from dpfed.federated.launch import STUDY, Outline, outline_run
from dpfed.federated.metrics import Score
from dpfed.federated.planning import read_declared
from dpfed.federated.recipe import Recipe
from dpfed.federated.results import RoundResult
from dpfed.federated.runners.network import NetworkRunner, Peer
from dpfed.federated.state.layout import Vector
from dpfed.federated.transport import Transport
from dpfed.ledger.ledger import Ledger
from dpfed.randomness import SeededSource
from dpfed.runs.directory import ASKS, CONFIG, OWN_LEDGER, OWNER_ONLY, RunDirectory, write_durably

SERVER_SIDE = ("data.source", "model.metric")  # code of a file that no site sees; the first is not even read


@dataclass(frozen=True)
class Clock:
    """What the time is, and how to wait: a test has one of its own."""

    now: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep


@dataclass(frozen=True, eq=False)
class NetworkLaunch:
    """Everything that a run over a network needs at the server; nothing is sent and nothing is charged yet."""

    outline: Outline
    directory: Path
    recipe: Recipe = field(repr=False)

    @property
    def config(self) -> RunConfig:
        """The run file."""
        return self.outline.config

    @contextmanager
    def federation(self, transport: Transport, clock: Clock | None = None) -> Iterator[Federation]:
        """Enroll the sites, and give the iterator over the rounds that are still to be done."""
        plan, model = self.outline.plan, self.outline.model
        source = None if self.config.seed is None else SeededSource(self.config.seed)
        with self._open_ledger() as ledger:
            yield Federation(
                plan,
                self.outline.weights,
                self._make_runner(transport, ledger, clock or Clock()),
                self.directory,
                layout=model.layout,
                algorithm=registry.build_named(plan),
                evaluate=self._make_evaluation(),
                source=source,
                terms=self.config.terms,
            )

    def _make_runner(self, transport: Transport, ledger: Ledger | None, clock: Clock) -> NetworkRunner:
        network = _require_network(self.config)
        key = SigningKey.read(self.outline.directory / network.key)
        book = AskBook(self.directory / ASKS, key.derive("book of asks"))
        if RunDirectory(self.directory).has_begun and not book.run:
            message = f"{self.directory / ASKS} is missing, which says what sites were asked"
            raise InvalidArgument("directory", f"{message}: put back a copy of it")
        peers = {name: Peer.of(keys) for name, keys in network.sites.items()}
        options = {"ledger": ledger, "study": self._study, "deadline": network.deadline}
        parts = transport, peers, key, book, self.outline.plan, self.recipe
        return NetworkRunner(*parts, now=clock.now, pause=clock.pause, **options)

    @property
    def _study(self) -> str | None:
        if not self.outline.plan.server_noises:
            return None
        return STUDY if self.config.ledger is None else self.config.ledger.account

    def _open_ledger(self) -> Any:
        """Open the server's ledger, which pays for its own noise; none where it adds none."""
        plan, block = self.outline.plan, self.config.ledger
        if not plan.server_noises or plan.client_guarantee is None:
            return nullcontext()
        if block is not None:
            return Ledger(block.url if "://" in block.url else self.outline.directory / block.url, create=False)
        ledger = Ledger(self.directory / OWN_LEDGER, create=not RunDirectory(self.directory).has_begun)
        if STUDY not in ledger:
            ledger.open_all({STUDY: plan.client_guarantee}, purpose=plan.name)
        return ledger

    def _make_evaluation(self) -> Callable[[Vector], tuple[Score, ...]] | None:
        """Return what measures the model on public records; None where there are none."""
        test = _require_network(self.config).test
        if test is None:
            return None
        block = self.config.data.model_copy(update={"source": test})
        records = scale_records(load_records(block, self.outline.directory), block)
        _, metric = metrics.find_metric(self.config.model.metric, self.outline.directory)
        rows = records.features, records.labels
        return partial(_evaluate, self.outline, rows, metric)


def create_run(file: str | Path | ConfigFile, run_directory: str | Path) -> NetworkLaunch:
    """Create a run in an empty directory from a file with a ``network:`` block."""
    read = file if isinstance(file, ConfigFile) else ConfigFile.read(file)
    launch = _prepare(read.config, read.folder, Path(run_directory))
    run = RunDirectory(run_directory)
    if (run.path / CONFIG).exists() or (run.path / "plan.json").exists():
        message = f"{run.path} holds a run already: go on with it by `dpfed resume {run.path}`, or choose another"
        raise InvalidArgument("directory", message)
    run.write_origin(read.folder)
    write_durably(run.path / CONFIG, read.content, mode=OWNER_ONLY)
    return launch


def resume_run(run_directory: str | Path) -> NetworkLaunch:
    """Return the launch of the run in that directory."""
    path = Path(run_directory)
    config = read_kept(RunDirectory(path)) if path.is_dir() else None
    if config is None:
        message = f"{path} holds no run that was begun by `dpfed run --on`: `dpfed run FILE --on ADDRESS` begins one"
        raise InvalidArgument("directory", message)
    return _prepare(config, RunDirectory(path).origin, path)


def open_run(file: str | Path | ConfigFile | None, run_directory: str | Path) -> NetworkLaunch:
    """Return the launch of a run that is in the directory already, or create it there from the file."""
    if file is None or (Path(run_directory) / CONFIG).exists():
        return resume_run(run_directory)
    return create_run(file, run_directory)


def run(
    file: str | Path | ConfigFile | None,
    run_directory: str | Path,
    transport: Transport,
    *,
    on_round: Callable[[RoundResult], None] | None = None,
    clock: Clock | None = None,
) -> str:
    """Do the rounds that are still to be done, and return how the run ended; a directory that has a run goes on."""
    with open_run(file, run_directory).federation(transport, clock) as federation:
        for result in federation:
            if on_round is not None:
                on_round(result)
        return federation.status


def outline_declared(config: RunConfig, directory: Path) -> Outline:
    """Return plan, model and first weights from what the file declares: no record is read, no code is run."""
    for key, name in config.code.items():
        if key not in SERVER_SIDE:
            message = f"{key} is {name}, and sites import no code: name a model, loss and algorithm of dpfed's own"
            raise InvalidArgument(key, message)
    return outline_run(config, read_declared(config), directory)


def _prepare(config: RunConfig, folder: Path, directory: Path) -> NetworkLaunch:
    _require_network(config)
    if config.attack_sim is not None:
        raise InvalidArgument("attack_sim", "attack_sim makes clients of one machine attack: leave it out on a network")
    if config.bounds is not None:
        message = "bounds releases ranges in a run on one machine alone: over a network no site does"
        raise InvalidArgument("bounds", f"{message}; declare data.feature_bounds, or let sites run `dpfed bounds`")
    outline = outline_declared(config, folder)
    return NetworkLaunch(outline, directory, Recipe.of(config, read_declared(config)))


def _require_network(config: RunConfig) -> Any:
    if config.network is None:
        message = "network is missing: a run over a network needs the study's key and those of its sites"
        raise InvalidArgument("network", f"{message}; `dpfed deploy init` writes the block")
    return config.network


def _evaluate(outline: Outline, rows: Any, metric: Any, weights: Vector) -> tuple[Score, ...]:
    return outline.model.evaluate(weights, rows, [metric], is_public=True)
