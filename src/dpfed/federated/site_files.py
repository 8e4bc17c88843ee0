"""The files with which a site begins: its keys, its ledger with an account, and its commented site file.

For a trial on one machine the records of a run file are dealt to as many sites, each in a table of its own.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> _ = (folder / "records.csv").write_text("age,ill\\n61,yes\\n47,no\\n")
>>> data = {"source": "records.csv", "label": "ill", "classes": ["no", "yes"], "size": 2}
>>> policy = {"styles": ["sample"], "epsilon_per_run": 4, "least_noise": 0.8, "most_clip": 1}
>>> config = SiteConfig(site="north", superlink="127.0.0.1:9092", server_key="ssh-ed25519 AAAA", data=data,
...     ledger={"url": "sqlite:///ledger.db", "account": "north"}, policy=policy)
>>> write_site(folder, config, Guarantee(8.0, 1e-5)).split()[0], sorted(path.name for path in folder.iterdir())
('ssh-ed25519', ['ledger.db', 'records.csv', 'sent.key', 'site.key', 'site.key.pub', 'site.yaml'])
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.config.data import Data
from dpfed.config.site import SiteConfig, SiteFile
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument
from dpfed.federated.data import divide, load_records, scale_records
from dpfed.federated.keys import SigningKey
from dpfed.federated.sent import make_key
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.runs.directory import OWNER_ONLY, write_durably

SITE_FILE = "site.yaml"
LABEL = "label"
NUMBER = "number of the row"


def write_site(folder: Path, config: SiteConfig, cap: Guarantee) -> str:
    """Write keys and site file into the folder, open the site's account, and return the site's public key.

    A file that is there is never written over; a ledger that is there is used, and so is an account in it.
    """
    made = [folder / name for name in (SITE_FILE, config.key, config.sent_key)]
    for path in made:
        if path.exists():
            raise InvalidArgument("folder", f"{path} is there already, and is not written over: choose another folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_durably(folder / SITE_FILE, config.to_yaml().encode(), mode=OWNER_ONLY)
    make_key(folder / config.sent_key)
    key = SigningKey.make()
    key.write(folder / config.key)
    with Ledger(SiteFile(config, folder).ledger_url) as ledger:
        if config.ledger.account not in ledger:
            ledger.open_all({config.ledger.account: cap}, purpose=f"records of site {config.site}")
    return key.public.text


def deal_trial(data: Data, directory: Path, folder: Path, *, holds_out: bool = False) -> dict[str, Path]:
    """Deal the records of a run file to its clients as tables, unscaled, and return the table of each.

    What is held out is dealt only if the sites hold it out again themselves (`describe_hold_outs`). The column that is
    predicted is called "label".
    """
    raw = load_records(data, directory)
    scaled = scale_records(raw, data)
    dealt = divide(replace(scaled, groups={**scaled.groups, NUMBER: np.arange(len(raw))}), data)
    found = {name: folder / name / "records.csv" for name in dealt.clients}
    for name, records in dealt.clients.items():
        parts = [records, *([dealt.held_out[name]] if holds_out and name in dealt.held_out else [])]
        found[name].parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_table(found[name], raw.take(np.concatenate([part.rows.groups[NUMBER] for part in parts])))
    return found


def describe_hold_outs(data: Data) -> dict[str, Any]:
    """Return what a site's file says of its data so that it holds out as the run file does, by the same hashes."""
    scales = data.model_dump(mode="json", exclude_none=True, include={"feature_bounds", "mean", "scale"})
    return {"test_fraction": data.test_fraction, "seed": data.seed, **scales}


def _write_table(path: Path, records: Records) -> None:
    features = records.features.reshape(len(records), -1)
    columns = records.columns or [f"feature {number}" for number in range(1, features.shape[1] + 1)]
    labels = [records.classes[int(label)] for label in records.labels] if records.classes else records.labels
    path.touch(mode=OWNER_ONLY)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow([*columns, LABEL])
        writer.writerows([*map(repr, row), label] for row, label in zip(features.tolist(), labels, strict=True))
