"""One task under many settings: what ε costs in accuracy, and what it saves in leakage.

A sweep runs the file of a run for each ε (and clip norm, batch size and δ), several times, and attacks every model.
That is a study of its own: its figures follow from exact records. So it trains on public or generated records, unless
the owner has every run reserved in a ledger beforehand; then ε = ∞ is refused, and the table stays with the owner.

A file may also have `variants:`, each of which changes blocks of the run under `base:`.

>>> base = '''
... base:
...   name: flowers
...   data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: quantity, sizes: [80, 40]}}
...   model: {kind: logistic}
...   rounds: 2
...   local: {steps: 5, batch_size: 20, learning_rate: 0.5}
...   privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
... variants: {none: {privacy: {style: none}}, DP-SGD: {}}
... '''
>>> [(setting.label, setting.epsilon) for setting in read_settings(base)]
[('none', inf), ('DP-SGD', 4.0)]
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from dpfed.audit.membership import attack_run
from dpfed.audit.roc import AttackResult
from dpfed.audit.stand_in import make_stand_in, read_records
from dpfed.config.reading import read_values
from dpfed.config.run import RunConfig
from dpfed.data.sources import SKLEARN
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.federated.launch import Launch, prepare
from dpfed.federated.state.layout import Vector
from dpfed.ledger.ledger import Ledger
from dpfed.randomness import SystemSource

GENERATED, PUBLIC, PRIVATE = "generated", "public", "private"
MOST = 2000  # records that are made up for a client


@dataclass(frozen=True, eq=False)
class Setting:
    """One row of a sweep: its label, the configuration, and the ε that it promises; ∞ where nobody is protected."""

    label: str
    config: RunConfig
    seed: int = 0

    @property
    def epsilon(self) -> float:
        """The largest ε among the promises."""
        blocks = [self.config.privacy.local, self.config.privacy.client]
        asked = [block.epsilon for block in blocks if block is not None]
        return max((math.nan if each is None else each for each in asked), default=math.inf)


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


def read_settings(
    text: str,
    *,
    epsilons: Sequence[float] = (),
    clip_norms: Sequence[float] = (),
    batch_sizes: Sequence[int] = (),
    deltas: Sequence[float] = (),
    seeds: int = 1,
    file: str = "",
) -> tuple[Setting, ...]:
    """Return all settings of a sweep: of each variant, each combination of what varies, each seed."""
    base, variants = _read_variants(text, file)
    found = []
    for name, change in variants.items():
        lists: list[Sequence[Any]] = [epsilons, clip_norms, batch_sizes, deltas]
        for varied in product(*(each or [None] for each in lists)):
            label, changed = _vary(_merge(base, change or {}), str(name), varied)
            config = RunConfig.parse(yaml.safe_dump(changed, sort_keys=False), file)
            found += [Setting(label, config, seed) for seed in range(seeds)]
    return tuple(found)


def _read_variants(text: str, file: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the values of a run's file, and blocks to replace in it by the name of each variant."""
    values, _ = read_values(text, file)
    if isinstance(values, Mapping) and not {"base", "variants"} & set(values):
        return values, {"": {}}
    base, variants = (values.get(name) if isinstance(values, Mapping) else None for name in ("base", "variants"))
    if not isinstance(base, Mapping) or not isinstance(variants, Mapping):
        message = "a sweep is the file of a run, or has base: (such a file) and variants: (blocks to replace, by name)"
        raise InvalidArgument("config", f"{file or 'the file'} is neither: {message}")
    return base, variants


def find_kind(settings: Iterable[Setting], *, is_public: bool, is_private: bool) -> str:
    """Return on what a sweep trains: private records only if asked, public ones if they are, else generated ones."""
    if is_private:
        if any(setting.epsilon == math.inf for setting in settings):
            message = "ε = ∞ on private records releases them as they are, and no ledger admits it"
            raise InvalidArgument("epsilon", f"{message}: leave inf out, or sweep on public or generated records")
        if any(setting.config.ledger is None for setting in settings):
            message = "every run on private records must be reserved beforehand, and the file names no ledger"
            raise InvalidArgument("config", f"{message}: give it a ledger: block")
        return PRIVATE
    is_bundled = all(setting.config.data.source.startswith(SKLEARN) for setting in settings)
    return PUBLIC if is_public or is_bundled else GENERATED


def run_sweep(
    settings: Sequence[Setting], kind: str, directory: str | Path = ".", *, shadows: int = 16
) -> Iterator[Outcome]:
    """Yield the outcome of each setting; on private records all are reserved before the first one trains.

    Privacy: on private records each run is charged as any run is; the attacks' figures are of the records as they are.
    """
    launches = [_prepare(setting, number, kind, directory) for number, setting in enumerate(settings)]
    if kind == PRIVATE:
        _reserve_all(launches)
    for setting, launch in zip(settings, launches, strict=True):
        yield _try(setting, lambda launch=launch, setting=setting: _run(setting, launch, shadows))  # type: ignore[misc]


def _merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with those of a variant in their place: `privacy` as a whole, other blocks key by key."""
    merged = deepcopy(dict(base))
    for name, value in change.items():
        is_block = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping) and name != "privacy"
        merged[name] = {**merged[name], **value} if is_block else value
    return merged


def _vary(values: dict[str, Any], name: str, varied: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    """Return a label and the values of a file with another ε, clip norm, batch size and δ."""
    epsilon, clip_norm, batch_size, delta = varied
    labels = [name] if name else []
    privacy = dict(values.get("privacy") or {})
    if epsilon == math.inf:
        privacy = {"style": "none"}
    for key, value, symbol in (("epsilon", epsilon, "ε"), ("clip_norm", clip_norm, "C"), ("delta", delta, "δ")):
        if value is not None:
            labels.append(f"{symbol} = {'∞' if value == math.inf else format(value, 'g')}")
            privacy = {unit: _replace(block, key, value) for unit, block in privacy.items()}
    values["privacy"] = privacy
    if batch_size is not None:
        labels.append(f"batch {batch_size}")
        values["local"] = {**values["local"], "batch_size": batch_size}
    return ", ".join(labels) or str(values.get("name", "")), values


def _replace(block: Any, key: str, value: float) -> Any:
    if not isinstance(block, Mapping) or (key != "epsilon" and key not in block):
        return block
    kept = {name: each for name, each in block.items() if key != "epsilon" or name != "noise_multiplier"}
    return {**kept, key: value}


def _prepare(setting: Setting, number: int, kind: str, directory: str | Path) -> Launch:
    config = setting.config
    renamed = {"name": f"{config.name}-sweep-{number}"}
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


def _reserve_all(launches: Iterable[Launch]) -> None:
    for launch in launches:
        with launch.ledger(".") as ledger:
            if isinstance(ledger, Ledger) and not ledger.has_run(launch.plan.name):
                ledger.reserve(launch.plan.charges(launch.clients, launch.study), run=launch.plan.name)


def _run(setting: Setting, launch: Launch, shadows: int) -> Outcome:
    started = time.monotonic()
    weights = _train(launch)
    seconds = time.monotonic() - started
    scores = launch.evaluate(weights)
    results = attack_run(launch, weights, shadows=shadows) if launch.test is not None else ()
    epsilon = max((each.epsilon for each in launch.plan.statements()), default=math.inf)
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
