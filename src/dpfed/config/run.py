"""The file that describes a run, as frozen values: everything in it is public, and nothing is guessed.

Sizes, rates, scales and classes are declared here by those who know the data; none is computed from the records. A key
that dpfed does not know is refused, with dpfed's name for it.

>>> config = RunConfig.parse('''
... name: wards
... data: {source: "sklearn:digits", partition: {kind: iid, clients: 10}, sizes: 140}
... model: {kind: logistic}
... rounds: 5
... local: {steps: 10, batch_size: 14, learning_rate: 0.5}
... privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
... ''')
>>> config.guarantees
(Guarantee(epsilon=4.0, delta=1e-05, unit='record', adjacency='add_remove'),)
>>> RunConfig.parse(config.to_yaml().replace("clip_norm", "max_grad_norm", 1), file="run.yaml")
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: run.yaml, line ...: privacy.record.max_grad_norm is not a key; dpfed's word is clip_norm
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError, field_validator, model_validator

from dpfed.aggregation.adversaries import parse_attacks
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.config.bounds import BoundsBlock
from dpfed.config.data import Data
from dpfed.config.fields import Block, Number, SettingError, Whole, quote, setting
from dpfed.config.metrics import Metrics, Stop
from dpfed.config.network import Network
from dpfed.config.privacy import PERSON, LedgerBlock, Privacy
from dpfed.config.reading import make_refusal, parse_block, read_content
from dpfed.config.robust import AggregationBlock, QuarantineBlock
from dpfed.config.strangers import decode_text
from dpfed.config.track import Track
from dpfed.config.training import Algorithm, AllClients, Cohort, FedAvgBlock, FixedClients, Local, Model
from dpfed.config.writing import Notes, write_commented
from dpfed.data.sources import is_own, is_table
from dpfed.errors import InvalidArgument
from dpfed.guarantee import LOCAL, Guarantee
from dpfed.plan.rules import CLIENT_TIMEOUT, SITES
from dpfed.references import is_reference


class RunConfig(Block):
    """A run, as its file describes it."""

    name: str = setting(effect="the name of the run, in its directory and in the ledger")
    data: Data = setting(effect="the records, who holds them, and what of them is public")
    model: Model = setting(effect="what is trained")
    rounds: Whole = setting(
        symbol="T", effect="how often clients train: more rounds learn more and need more noise", ge=1
    )
    cohort: Cohort = setting(AllClients(kind="all"), effect="who takes part in a round")
    local: Local = setting(effect="what a client does in a round")
    algorithm: Algorithm = setting(FedAvgBlock(kind="fedavg"), effect="how updates become the next model")
    weighting: Literal["equal", "declared"] = setting(
        "equal", effect="the clients' weights in the mean: equal, or by declared sizes"
    )
    privacy: Privacy = setting(effect="whom the run protects, and how well")
    aggregation: AggregationBlock | None = setting(
        None, effect="how the updates of a round become one; without it by their mean, which bears no faulty client"
    )
    quarantine: QuarantineBlock | None = setting(
        None, effect="put clients aside whose updates are unusual round after round (none, sample, local)"
    )
    bounds: BoundsBlock | None = setting(
        None, effect="ranges of columns that are released with noise before the first round, where nobody knows them"
    )
    metrics: Metrics | None = setting(
        None, effect="figures about the model that are released with noise; without it none is for others to see"
    )
    stop: Stop | None = setting(
        None,
        effect="end early by a released figure that gets no better; the promise stays that of all rounds",
    )
    max_participations: Whole | None = setting(
        None,
        symbol="m",
        effect=(
            "the most rounds that a client is asked for and charged for; without it, a number that a client exceeds in "
            "one of a thousand runs"
        ),
        ge=1,
    )
    spare_rounds: Whole = setting(0, effect="rounds reserved beyond the plan, to repeat those that a crash lost", ge=0)
    minimum_cohort: Whole = setting(
        1, effect="a round with fewer clients releases noise around zero, and is charged", ge=1
    )
    max_sites_per_person: Whole = setting(
        1, symbol="k", effect="at how many clients one person may have records: the promise adds up the k worst", ge=1
    )
    client_timeout: Number = setting(
        CLIENT_TIMEOUT,
        effect="seconds a client may take in a round; one that takes longer has failed, and contributes zero",
        gt=0,
    )
    max_update_norm: Number | None = setting(
        None,
        effect=(
            "updates with a larger norm are refused as faulty; without it, a million clip norms (where nothing is "
            "clipped, a root mean square of a thousand) times learning rate and steps"
        ),
        gt=0,
        le=1e30,
    )
    ledger: LedgerBlock | None = setting(
        None, effect="the ledger that is charged; without it the run opens a ledger of its own"
    )
    network: Network | None = setting(
        None, effect="the sites of the run, for `dpfed run --on`; without that option it is not read"
    )
    track: Track | None = setting(None, effect="a tracker to follow the run in: mlflow or tensorboard")
    runner: Literal["auto", "one_by_one", "together", "processes"] = setting(
        "auto",
        effect=(
            "how clients of this machine train: together in one pass where that is cheaper (auto), one after the "
            "other, always together, or several at a time in processes of their own, for large models"
        ),
    )
    attack_sim: str | None = setting(
        None,
        effect=(
            "for tests: makes clients attack, such as sign_flip:2,nan:1; such a run is marked SIMULATION everywhere"
        ),
    )
    seed: Whole | None = setting(
        None, effect="makes noise reproducible, for tests only: such a run is stamped NOT PRIVATE", ge=0
    )

    @classmethod
    def read(cls, path: str | Path) -> RunConfig:
        """Return the configuration in a file; refuse a file of another kind by naming its kind, without quoting it."""
        return ConfigFile.read(path).config

    @classmethod
    def parse(cls, text: str, file: str = "") -> RunConfig:
        """Return the configuration in a YAML text; refusals name the file, the line and the key."""
        return parse_block(cls, text, file)

    @classmethod
    def of(cls, values: Any) -> RunConfig:
        """Return the configuration that plain values describe; refusals name the key."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise make_refusal(error, cls, values) from None

    def to_yaml(self, notes: Notes | None = None) -> str:
        """Return the configuration as YAML with a comment for every setting, which `parse` reads as the same value."""
        return write_commented(self, notes)

    @property
    def has_ranges(self) -> bool:
        """Whether the ranges that the run is to release are known; true where it releases none."""
        return self.bounds is None or set(self.bounds.release) <= set(self.data.feature_bounds or {})

    def with_ranges(self, pairs: Mapping[str, tuple[float, float]]) -> RunConfig:
        """Return the configuration with ranges that were released, as if anybody had known them."""
        data = self.data.model_copy(update={"feature_bounds": {**(self.data.feature_bounds or {}), **pairs}})
        return self.model_copy(update={"data": data})

    @property
    def is_private(self) -> bool:
        """Whether nobody can predict the noise: false with a seed, and such a run is stamped NOT PRIVATE."""
        return self.seed is None

    @property
    def terms(self) -> str:
        """The settings that a resumed run must still have, as text: all but tracker, runner, network, ledger's url.

        Only what is in the file counts, so that a later version with more settings reads the same.
        """
        said = self.model_dump(mode="json", exclude_unset=True, exclude={"track", "runner", "network"})
        if said.get("ledger"):
            said["ledger"].pop("url", None)
        return json.dumps(said, sort_keys=True)

    @property
    def code(self) -> dict[str, str]:
        """The modules that the file names and a run imports, by key."""
        own = {"data.source": self.data.source} if is_own(self.data.source) else {}
        model = {f"model.{name}": getattr(self.model, name) for name in ("kind", "loss", "metric")}
        named = model | {"algorithm.kind": self.algorithm.kind}
        return own | {key: name for key, name in named.items() if is_reference(name)}

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """The promises that noise is calibrated to, one for each protected unit that has an epsilon."""
        return self._collect_guarantees("epsilon")

    @property
    def round_guarantees(self) -> tuple[Guarantee, ...]:
        """The promises for one round alone that noise is calibrated to."""
        return self._collect_guarantees("epsilon_per_round")

    @property
    def local_unit(self) -> str:
        """The unit that clients sample and clip: a record, or all rows of a person where a column names it."""
        return "record" if self.data.person_column is None else PERSON

    def adjacency(self, unit: str) -> str:
        """Return the adjacency of a promise for the unit: replace-one where their count is public, else add-remove."""
        # Sampling without replacement amplifies for whoever is replaced; it is not proved for whoever is added.
        is_drawn = isinstance(self.cohort, FixedClients) and self.cohort.secret
        is_client = unit == "client"
        # A client that sends its update itself is seen to be there: what is hidden is which records it has.
        is_counted = is_drawn or self.privacy.style == LOCAL if is_client else self.data.sizes_are_public
        return REPLACE_ONE if is_counted else ADD_REMOVE

    @field_validator("name")
    @classmethod
    def _require_name(cls, name: str) -> str:
        if not name.strip() or any(letter in name for letter in "/\\\n\t\0") or name.startswith("."):
            raise ValueError(
                f"names a directory, so it must not be empty, start with a dot or contain a slash; got {quote(name)}"
            )
        return name

    @field_validator("attack_sim")
    @classmethod
    def _require_attacks(cls, text: str | None) -> str | None:
        if text is not None:
            parse_attacks(text)
        return text

    @model_validator(mode="after")
    def _check_all(self) -> Self:
        self._check_persons()
        self._check_sizes()
        self._check_counts()
        self._check_schedule()
        self._check_metrics()
        self._check_bounds()
        self._check_ledger()
        self._check_network()
        return self

    def _collect_guarantees(self, key: str) -> tuple[Guarantee, ...]:
        blocks = {self.local_unit: self.privacy.local, "client": self.privacy.client}
        asked = {unit: block for unit, block in blocks.items() if block and getattr(block, key) is not None}
        return tuple(
            Guarantee(getattr(block, key), block.delta, unit, self.adjacency(unit)) for unit, block in asked.items()
        )

    def _check_persons(self) -> None:
        if self.privacy.person is not None and self.data.person_column is None:
            raise SettingError(
                "data.person_column", "is missing: privacy.person needs the column that names the person of each row"
            )
        if self.privacy.record is not None and self.data.person_column is not None:
            # A row more or less replaces a person's record by another: the promise for one person does not cover it.
            message = "must be person: rows are clipped together by data.person_column, which protects one person"
            raise SettingError("privacy.record", message)

    def _check_sizes(self) -> None:
        declared = self.data.declared_sizes
        if declared is None and self.weighting == "declared":
            raise SettingError(
                "weighting", "must be equal: declared weights need data.sizes, and true counts are private"
            )
        if self.data.sizes_are_public and self.privacy.client is not None:
            message = f"must be declared: true counts are part of what a client holds, which style {self.privacy.style}"
            raise SettingError("data.sizes", f"{message} protects")
        if self.privacy.style == "none":
            return
        if declared is None and not self.data.sizes_are_public:
            what = "what each client declares in public, or 'public' to publish the true counts"
            raise SettingError("data.sizes", f"is missing: {what}; sampling rates come from it and never from the data")
        smallest = min(declared.values()) if isinstance(declared, dict) else declared
        if smallest is not None and self.local.batch_size > smallest:
            message = f"must be at most the smallest declared size ({smallest}), got {self.local.batch_size}"
            raise SettingError("local.batch_size", message)

    def _check_schedule(self) -> None:
        schedule, privacy = self.privacy.noise_schedule, self.privacy
        if schedule is None:
            return
        if isinstance(schedule, tuple) and len(schedule) != self.rounds:
            message = f"must have a factor for each of the {self.rounds} rounds, got {len(schedule)}"
            raise SettingError("privacy.noise_schedule", f"{message}: give as many, or first and last")
        if privacy.style == "none":
            raise SettingError("privacy.noise_schedule", "must be left out: style none adds no noise")
        if any(block is not None and block.tree is not None for block in (privacy.local, privacy.client)):
            raise SettingError("privacy.noise_schedule", "goes without a tree only: that is proved for one noise")

    def _check_metrics(self) -> None:
        if self.stop is not None and (self.metrics is None or self.stop.metric not in self.metrics.release):
            message = f"must be a released figure, got {quote(self.stop.metric)}: exact scores are private"
            raise SettingError("stop.metric", f"{message}; add it to metrics.release, with metrics.rounds")
        if self.metrics is None:
            return
        if self.privacy.style == "none":
            raise SettingError("metrics", "must be left out: style none protects nobody, and exact figures are free")
        if self.data.test_is_public or self.data.test_fraction == 0:
            why = "records held out are public, and exact figures are free" if self.data.test_is_public else ""
            raise SettingError("metrics", f"must be left out: {why or 'data.test_fraction is 0, and none is held out'}")
        if max(self.metrics.find_rounds(self.rounds), default=0) > self.rounds or not self.metrics.find_rounds(1):
            raise SettingError("metrics.rounds", f"must be some of the {self.rounds} rounds, got others or none")
        if any(promise.epsilon <= self.metrics.epsilon for promise in self.guarantees):
            message = f"must be below the promised epsilon, of which it is a part, got {self.metrics.epsilon:g}"
            raise SettingError("metrics.epsilon", f"{message}: give a tenth of it")
        if self.model.loss == "mse":
            raise SettingError("metrics", "must be left out: figures are released for models of classes only")

    def _check_bounds(self) -> None:
        if self.bounds is None:
            return
        data, share = self.data, self.bounds.epsilon + (0.0 if self.metrics is None else self.metrics.epsilon)
        if self.privacy.style != "sample" or not is_table(data.source):
            message = "must be left out: ranges are released of a table's columns, in style sample alone"
            raise SettingError("bounds", f"{message}; declare data.feature_bounds")
        if len(data.clients or ()) != 1 and data.dealing != SITES:
            message = "must be left out: clients are made of one table, and none has an account before they are"
            raise SettingError("bounds", f"{message}; give the table one owner or a column of sites")
        if data.mean is not None or data.scale is not None or not isinstance(data.feature_bounds or {}, Mapping):
            raise SettingError("bounds", "goes with feature_bounds by column only: leave mean and scale out")
        if both := [name for name in self.bounds.release if name in (data.feature_bounds or {})]:
            raise SettingError("bounds.release", f"names {both[0]}, of which feature_bounds has a range: leave one out")
        if self.privacy.local is not None and not self.privacy.local.delta > 0:
            raise SettingError(
                "bounds", f"must be left out: noise on counts needs a δ above 0 for one {self.local_unit}"
            )
        if any(promise.epsilon <= share for promise in self.guarantees):
            message = "must be below the promised epsilon, of which it is a part, together with metrics.epsilon"
            raise SettingError("bounds.epsilon", f"{message}: give a tenth of it")

    def _check_counts(self) -> None:
        if self.max_participations is not None and self.max_participations > self.rounds:
            message = f"must be at most the number of rounds ({self.rounds}), got {self.max_participations}"
            raise SettingError("max_participations", message)
        clients = self.data.clients
        if clients is None:
            return
        if isinstance(self.cohort, FixedClients) and self.cohort.size > len(clients):
            raise SettingError(
                "cohort.size", f"must be at most the number of clients ({len(clients)}), got {self.cohort.size}"
            )
        if self.max_sites_per_person > len(clients):
            message = f"must be at most the number of clients ({len(clients)}), got {self.max_sites_per_person}"
            raise SettingError("max_sites_per_person", message)

    def _check_ledger(self) -> None:
        if self.ledger is None:
            return
        accounts = {
            "client": (self.privacy.client, "client_accounts" if self.privacy.style == LOCAL else "account"),
            self.local_unit: (self.privacy.local, "client_accounts"),
        }
        for unit, (block, key) in accounts.items():
            if block is not None and getattr(self.ledger, key) is None:
                raise SettingError(f"ledger.{key}", f"is missing: style {self.privacy.style} charges for each {unit}")

    def _check_network(self) -> None:
        clients = self.data.clients
        if self.network is not None and (clients is None or set(self.network.sites) != set(clients)):
            known = ", ".join(clients or ()) or "nobody: declare data.sizes by name"
            raise SettingError("network.sites", f"must have the keys of each client of data, which are {known}")


@dataclass(frozen=True)
class ConfigFile:
    """A configuration file, read and parsed once: its values, its bytes, and the folder of the files that it names."""

    config: RunConfig
    content: bytes
    folder: Path

    @classmethod
    def read(cls, path: str | Path) -> ConfigFile:
        """Read and parse a file; refuse a file of another kind by naming its kind, without quoting it."""
        content = read_content(path)
        config = RunConfig.parse(decode_text(content, str(path)), file=str(path))
        return cls(config, content, Path(path).resolve().parent)

    def with_name(self, name: str) -> ConfigFile:
        """Return the file with another name of the run, written into it so that a resumed run has it too."""
        line = re.compile(rb"^name:[^\n]*", re.MULTILINE)
        content, count = line.subn(lambda _: f"name: {json.dumps(name)}".encode(), self.content, count=1)
        config = RunConfig.parse(decode_text(content, "the file with another name")) if count else self.config
        if config != self.config.model_copy(update={"name": name}):
            message = (
                f"the run's name {self.config.name!r} is in the ledger already: write `name: {name}` into the file"
            )
            raise InvalidArgument("name", message)
        return ConfigFile(config, content, self.folder)

    def with_attack(self, attack_sim: str | None) -> ConfigFile:
        """Return the file with a simulated attack, written into it so that a resumed run has it too."""
        if attack_sim is None:
            return self
        parse_attacks(attack_sim)
        if self.config.attack_sim is not None:
            message = "the file has attack_sim already: give attacks there or on the command line"
            raise InvalidArgument("attack_sim", message)
        content = self.content.rstrip() + f"\nattack_sim: {json.dumps(attack_sim)}\n".encode()
        return ConfigFile(RunConfig.parse(decode_text(content, "the file with attack_sim")), content, self.folder)
