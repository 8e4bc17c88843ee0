"""One task under many settings: what ε costs in accuracy, and what it saves in leakage.

A sweep runs each setting (`audit.settings`) several times, and attacks every model. That is a study of its own: its
figures follow from exact records. So it trains on public or generated records, unless the owner has every run reserved
in a ledger beforehand; then ε = ∞ is refused, and the table stays with the owner.

>>> from dpfed.audit.settings import read_settings
>>> settings = read_settings('''
... name: flowers
... data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: quantity, sizes: [80, 40]}}
... model: {kind: logistic}
... rounds: 2
... local: {steps: 5, batch_size: 20, learning_rate: 0.5}
... privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
... ''', epsilons=[1.0, 8.0])
>>> [outcome.label for outcome in run_sweep(settings, PUBLIC, shadows=0)]
['ε = 1', 'ε = 8']
"""

from __future__ import annotations

import math
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpfed.audit.membership import attack_run
from dpfed.audit.roc import AttackResult
from dpfed.audit.settings import Setting
from dpfed.audit.stand_in import make_stand_in, read_records
from dpfed.audit.students import train_student
from dpfed.data.sources import SKLEARN
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.federated.launch import Launch, prepare
from dpfed.federated.runners.charging import SharedLedger
from dpfed.federated.state.layout import Vector
from dpfed.ledger.ledger import Ledger
from dpfed.randomness import SystemSource

GENERATED, PUBLIC, PRIVATE = "generated", "public", "private"
MOST = 2000  # records that are made up for a client


@dataclass(frozen=True)
class Outcome:
    """What one run came to: its ε, the metric on records held out, the strongest attack, and its time.

    Of several attacks on the same records the strongest is shown, which leans to the attackers' side. `failure` says
    why there is no figure.
    """

    label: str
    seed: int
    epsilon: float
    metric: str = ""
    score: float | None = None
    attack: str = ""
    auc: float | None = None
    found: float | None = None
    seconds: float = 0.0
    failure: str = ""


def find_kind(settings: Iterable[Setting], *, is_public: bool, is_private: bool) -> str:
    """Return on what a sweep trains: private records only if asked, public ones if they are, else generated ones."""
    if is_private and is_public:
        message = "records cannot be public and private at once, and only private ones are charged for"
        raise InvalidArgument("public", f"{message}: give --public or --on-private-data")
    if is_private:
        for setting in settings:
            _require_payable(setting)
        return PRIVATE
    is_bundled = all(setting.config.data.source.startswith(SKLEARN) for setting in settings)
    return PUBLIC if is_public or is_bundled else GENERATED


def run_sweep(
    settings: Sequence[Setting], kind: str, directory: str | Path = ".", *, shadows: int = 16
) -> Iterator[Outcome]:
    """Yield the outcome of each setting; on private records all are reserved before the first one trains.

    Each sweep is charged as runs of its own. What was reserved and not committed returns to the accounts at the end,
    also where the sweep is interrupted.

    Privacy: on private records each run is charged as any run is; the attacks' figures are of the records as they are.
    """
    study = f"sweep-{secrets.token_hex(4)}"  # of one that was stopped the ledger knows the names already
    launches = [_prepare(setting, f"{study}-{number}", kind, directory) for number, setting in enumerate(settings)]
    if kind != PRIVATE:
        yield from _run_all(settings, launches, shadows)
        return
    for setting in settings:
        _require_payable(setting)
    try:
        for launch in launches:
            _reserve(launch)
        yield from _run_all(settings, launches, shadows)
    finally:
        for launch in launches:
            _release(launch)


def _require_payable(setting: Setting) -> None:
    """Refuse a setting on private records that protects nobody, whose noise can be predicted, or that nobody pays."""
    config = setting.config
    if setting.pate is not None:
        message = "teachers of a sweep learn from the records of all clients, for which there is no account"
        raise InvalidArgument("pate", f"{message}: sweep on public or generated records, or use `dpfed pate run`")
    if not setting.is_protected or setting.epsilon == math.inf:
        message = "ε = ∞ on private records releases them as they are, and no ledger admits it"
        raise InvalidArgument("epsilon", f"{message}: leave inf out, or sweep on public or generated records")
    if config.seed is not None:
        message = "noise from a seed protects nobody who knows the seed, and would be charged as if it did"
        raise InvalidArgument("seed", f"{message}: leave seed out of the file")
    if config.ledger is None:
        message = "every run on private records must be reserved beforehand, and the file names no ledger"
        raise InvalidArgument("config", f"{message}: give it a ledger: block")


def _run_all(settings: Iterable[Setting], launches: Iterable[Launch], shadows: int) -> Iterator[Outcome]:
    for setting, launch in zip(settings, launches, strict=True):
        yield _try(setting, lambda launch=launch, setting=setting: _run(setting, launch, shadows))  # type: ignore[misc]


def _prepare(setting: Setting, name: str, kind: str, directory: str | Path) -> Launch:
    config = setting.config
    if config.bounds is not None:
        message = "a sweep releases no ranges, which would be charged for every setting"
        raise InvalidArgument("bounds", f"{message}: write those that a run has released into data.feature_bounds")
    renamed = {"name": f"{config.name}-{name}"}
    if kind == PRIVATE:
        return prepare(config.model_copy(update=renamed), directory)
    data = config.data.model_copy(update={"seed": config.data.seed + setting.seed})
    launch = prepare(config.model_copy(update={**renamed, "data": data, "ledger": None}), directory)
    return launch if kind == PUBLIC else _generate(launch)


def _generate(launch: Launch) -> Launch:
    """Return the launch with generated records at every client, and others held out."""
    source = SystemSource()
    clients = tuple(
        make_stand_in(client, min(MOST, launch.plan.local[client.name].size), source) for client in launch.clients
    )
    held_out = make_stand_in(launch.clients[0], MOST, source)
    return replace(launch, clients=clients, test=read_records(held_out))


def _reserve(launch: Launch) -> None:
    """Reserve a run as its own runner will: in all accounts that pay, if they are for what the plan protects."""
    with launch.ledger(".") as ledger:
        _make_charging(launch, ledger).reserve(launch.plan)


def _release(launch: Launch) -> None:
    with launch.ledger(".") as ledger:
        _make_charging(launch, ledger).release(launch.plan.name)


def _make_charging(launch: Launch, ledger: Ledger | None) -> SharedLedger:
    return SharedLedger(ledger, {client.name: client.account for client in launch.clients}, launch.study)


def _run(setting: Setting, launch: Launch, shadows: int) -> Outcome:
    started = time.monotonic()
    if setting.pate is not None:
        student = train_student(launch, setting.pate, setting.seed)
        launch, weights, epsilon = student.launch, student.weights, student.guarantee.epsilon
    else:
        weights = _train(launch)
        epsilon = max((each.epsilon for each in launch.plan.statements()), default=math.inf)
    seconds = time.monotonic() - started
    scores = launch.evaluate(weights)
    results = attack_run(launch, weights, shadows=shadows) if launch.test is not None else ()
    best = _find_strongest(results)
    return Outcome(
        setting.label,
        setting.seed,
        epsilon,
        scores[-1].name if scores else "",
        scores[-1].value if scores else None,
        best.name if best else "",
        best.auc if best else None,
        best.rates[-1].found if best else None,
        seconds,
        "" if best else "; ".join(dict.fromkeys(each.failure for each in results)) or "no records are held out",
    )


def _train(launch: Launch) -> Vector:
    with tempfile.TemporaryDirectory() as folder, launch.ledger(folder) as ledger:
        federation = launch.federation(folder, ledger)
        for _ in federation:
            pass
        return federation.weights


def _find_strongest(results: Iterable[AttackResult]) -> AttackResult | None:
    made = [each for each in results if not each.failure]
    return max(made, key=lambda each: each.auc or 0.0, default=None)


def _try(setting: Setting, run: Callable[[], Outcome]) -> Outcome:
    """Return the outcome of a run, or that it failed: the others go on."""
    try:
        return run()
    except PrivacyError as error:
        return Outcome(setting.label, setting.seed, setting.epsilon, failure=str(error))
