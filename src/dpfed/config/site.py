"""The file of ``dpfed site``: where a site connects, whose requests it answers, its records, its ledger and its policy.

The site's owner writes it, and nothing that a server sends can change it. Every value that depends on the records, or
that an error about them could tell, is declared here and not by the server.

>>> site = SiteConfig.parse('''
... site: north
... superlink: hub.example:9092
... server_key: ssh-ed25519 AAAA study
... data: {source: records.csv, label: outcome, classes: [ill, well], size: 182}
... ledger: {url: "sqlite:///ledger.db", account: north-records}
... policy: {styles: [sample, hybrid], epsilon_per_run: 4, least_noise: 0.8, most_clip: 1}
... ''')
>>> site.policy.models, site.policy.most_rounds
(('logistic', 'mlp'), 100)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError, field_validator, model_validator

from dpfed.config.data import Data, Iid, Partition
from dpfed.config.fields import Block, Number, SettingError, Whole, setting
from dpfed.config.network import require_public_key
from dpfed.config.reading import make_refusal, parse_block, read_content
from dpfed.config.strangers import decode_text
from dpfed.config.writing import Notes, write_commented
from dpfed.ledger import inputs

Style = Literal["none", "sample", "user", "hybrid", "local"]
# Keys of a federation's data that say nothing about one site.
FEDERATED = ("partition", "names", "sizes", "test_is_public")


class SiteData(Data):
    """The site's own records, as in the file of a run, and the size that it declares."""

    size: Whole = setting(
        symbol="n",
        effect="records, or persons, to train on that the site declares in public; a plan for another size is refused",
        ge=1,
    )
    partition: Partition = setting(Iid(kind="iid", clients=1), effect="")
    names: tuple[str, ...] = setting((), effect="")
    sizes: Any = setting(None, effect="")
    test_fraction: Number = setting(
        0.0,
        effect="the share of records that is never trained on, and counted where a study releases figures",
        ge=0,
        lt=1,
    )
    test_is_public: bool = setting(False, effect="")
    seed: Whole = setting(0, effect="decides which records are held out; it has nothing to do with noise", ge=0)

    @model_validator(mode="after")
    def _refuse_federated(self) -> Self:
        for key in FEDERATED:
            if key in self.model_fields_set:
                raise SettingError(key, "is for federations: a site has all records of its file; leave it out")
        return self


class SiteLedger(Block):
    """The site's own ledger."""

    url: str = setting(effect="the ledger's database, such as sqlite:///ledger.db")
    account: str = setting(effect="the account of the site's records")

    @field_validator("account")
    @classmethod
    def _require_name(cls, account: str) -> str:
        if not inputs.is_name(account):
            raise ValueError("must be letters, digits or any of ._:/@- and begin with a letter or digit")
        return account


class Policy(Block):
    """What a study may ask of the site, whatever its server says: all else is refused with a fixed word."""

    styles: tuple[Style, ...] = setting(
        effect=(
            "the styles that are allowed: sample, hybrid, local; user and none send raw updates, and trust the server "
            "with them"
        )
    )
    epsilon_per_run: Number = setting(
        symbol="ε", effect="the most that one run may cost at the account's δ; the account's cap holds besides", gt=0
    )
    least_noise: Number = setting(symbol="σ", effect="the least noise_multiplier of any round", ge=0)
    most_clip: Number = setting(symbol="C", effect="the largest clip_norm", gt=0)
    most_rounds: Whole = setting(100, symbol="T", effect="the most rounds of a run", ge=1)
    most_spare_rounds: Whole = setting(2, effect="the most rounds that a run reserves for crashes", ge=0)
    most_raw_updates: Whole = setting(
        1000, effect="in styles user and none: the most updates and counts without noise, in all runs together", ge=0
    )
    most_steps: Whole = setting(10_000, symbol="τ", effect="the most steps in a round", ge=1)
    most_seconds: Number = setting(3600.0, effect="the longest client_timeout: how long training may take", gt=0)
    models: tuple[str, ...] = setting(
        ("logistic", "mlp"),
        effect="the models that may be trained: names of dpfed's own, since nothing that is sent is executed",
    )
    most_numbers: Whole = setting(10_000_000, symbol="d", effect="the most parameters of a model", ge=1)
    most_bytes: Whole = setting(1_000_000_000, effect="the largest message that is read", ge=100_000)


class SiteConfig(Block):
    """A site, as its file describes it."""

    site: str = setting(effect="the name of the site in the studies that it takes part in")
    superlink: str = setting(effect="the address of the hub, such as hub.example:9092")
    root_certificates: str = setting("ca.crt", effect="the file of the hub's certificate authority")
    node_key: str = setting("node.key", effect="the private key by which the hub knows this node")
    key: str = setting("site.key", effect="the private key that signs the site's answers")
    server_key: str = setting(effect="the public key of the study: requests of anybody else are refused")
    data: SiteData = setting(effect="the site's records")
    ledger: SiteLedger = setting(effect="the site's own ledger, which is charged before anything leaves")
    policy: Policy = setting(effect="what a study may ask")
    sent: str = setting("sent", effect="the folder in which what left is kept, encrypted, to be sent again for free")
    sent_key: str = setting("sent.key", effect="the file of the key that it is encrypted with")
    seed: Whole | None = setting(
        None, effect="makes noise reproducible, for tests only: such a site says of itself NOT PRIVATE", ge=0
    )

    @field_validator("server_key")
    @classmethod
    def _require_line(cls, text: str) -> str:
        return require_public_key(text)

    @classmethod
    def parse(cls, text: str, file: str = "") -> SiteConfig:
        """Return the configuration in a YAML text; refusals name the file, the line and the key."""
        return parse_block(cls, text, file)

    @classmethod
    def of(cls, values: Any) -> SiteConfig:
        """Return the configuration that plain values describe; refusals name the key."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise make_refusal(error, cls, values) from None

    def to_yaml(self, notes: Notes | None = None) -> str:
        """Return the configuration as YAML with a comment for every setting, which `parse` reads as the same value."""
        return write_commented(self, notes)


@dataclass(frozen=True)
class SiteFile:
    """A site's file, read and parsed once, and the folder in which files that it names are."""

    config: SiteConfig
    folder: Path

    @classmethod
    def read(cls, path: str | Path) -> SiteFile:
        """Read and parse a file; refuse a file of another kind by naming its kind, without quoting it."""
        config = SiteConfig.parse(decode_text(read_content(path), str(path)), file=str(path))
        return cls(config, Path(path).resolve().parent)

    def find(self, name: str) -> Path:
        """Return the path of a file that the configuration names."""
        return self.folder / name

    @property
    def ledger_url(self) -> str | Path:
        """The address of the site's ledger; a path, also that in a URL of SQLite, is in the file's folder."""
        url = self.config.ledger.url
        path = url.removeprefix("sqlite:///")
        return url if "://" in path else self.folder / path
