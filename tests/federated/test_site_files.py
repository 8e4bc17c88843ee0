"""The files a site begins with, and a trial on one machine."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.config.data import Data
from dpfed.config.site import SiteConfig, SiteData, SiteFile
from dpfed.data.tables import read_table
from dpfed.errors import InvalidArgument
from dpfed.federated.data import prepare, scale_records
from dpfed.federated.site_data import hold_out, load_site_records
from dpfed.federated.site_files import SITE_FILE, deal_trial, describe_hold_outs, write_site
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger

CONFIG = SiteConfig(
    site="north",
    superlink="127.0.0.1:9092",
    server_key="ssh-ed25519 AAAA",
    data={"source": "records.csv", "label": "ill", "size": 2},
    ledger={"url": "sqlite:///ledger.db", "account": "north"},
    policy={"styles": ["sample"], "epsilon_per_run": 4, "least_noise": 0.8, "most_clip": 1},
)


def test_the_file_reads_as_it_was_made_and_the_account_is_open(tmp_path):
    write_site(tmp_path / "north", CONFIG, Guarantee(8.0, 1e-5))
    read = SiteFile.read(tmp_path / "north" / SITE_FILE)
    assert read.config == CONFIG
    with Ledger(read.ledger_url, create=False) as ledger:
        assert ledger.balance("north").cap.epsilon == 8.0


def test_nothing_is_written_over(tmp_path):
    write_site(tmp_path, CONFIG, Guarantee(8.0, 1e-5))
    with pytest.raises(InvalidArgument, match="is there already, and is not written over"):
        write_site(tmp_path, CONFIG, Guarantee(8.0, 1e-5))


def test_a_ledger_that_is_there_is_used(tmp_path):
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open("north", epsilon=2.0, delta=1e-6)
    write_site(tmp_path, CONFIG, Guarantee(8.0, 1e-5))
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.balance("north").cap.epsilon == 2.0


def test_a_trial_deals_each_site_its_records_bit_for_bit_and_unscaled(tmp_path):
    sizes = {"kind": "quantity", "sizes": [70, 50]}
    data = Data(source="sklearn:iris", partition=sizes, names=("a", "b"), feature_bounds=(0.0, 8.0))
    tables = deal_trial(data, tmp_path, tmp_path)
    scaled = prepare(data).clients  # which are dealt and held out as they are scaled
    for name, path in tables.items():
        found = read_table(path).records("label", classes=scaled[name].classes)
        assert found.features.max() > 1
        assert np.array_equal(scale_records(found, data).features, scaled[name].features)
        assert np.array_equal(found.labels, scaled[name].labels)


def test_a_site_of_a_trial_holds_out_what_the_run_file_does(tmp_path):
    data = Data(
        source="sklearn:breast_cancer",
        partition={"kind": "iid", "clients": 2},
        names=("a", "b"),
        feature_bounds=(0.0, 8.0),
    )
    deal_trial(data, tmp_path, tmp_path, holds_out=True)
    prepared = prepare(data)
    for name in "ab":
        options = {"source": "records.csv", "label": "label", "classes": prepared.classes, "size": 2}
        block = SiteData(**options, **describe_hold_outs(data))
        trained, held_out = hold_out(load_site_records(block, tmp_path / name), block)
        assert np.array_equal(scale_records(trained, data).features, prepared.clients[name].features)
        assert np.array_equal(scale_records(held_out, data).features, prepared.held_out[name].features)
