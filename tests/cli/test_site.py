"""``dpfed site``: what a data owner types."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from dpfed.cli import site as site_command
from dpfed.cli.main import main
from dpfed.events import Gaussian
from dpfed.federated.keys import SigningKey
from dpfed.federated.sent import SentStore, read_key
from dpfed.federated.wire import Message
from dpfed.ledger.ledger import Ledger


@pytest.fixture
def dpfed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def types(*words: str, fails: bool = False) -> str:
        found = CliRunner().invoke(main, words)
        if fails:
            assert found.exit_code != 0
            return f"{found.output}{found.exception}"
        assert found.exit_code == 0, (found.output, found.exception)
        return found.output

    return types


@pytest.fixture
def north(dpfed, tmp_path):
    SigningKey.make().write(tmp_path / "study.key")
    words = "site init north --name north --superlink hub:9092 --server-key study.key.pub --source records.csv"
    words += " --label ill --classes no,yes --size 3 --epsilon 8 --delta 1e-5"
    said = dpfed(*words.split())
    (tmp_path / "north" / "records.csv").write_text("age,ill\n61,yes\n47,no\n")
    return said


def test_init_writes_a_site_and_says_what_the_study_needs(north, tmp_path):
    key = (tmp_path / "north" / "site.key.pub").read_text().strip()
    assert f"north: {{key: {key}}}" in north
    assert "epsilon_per_run: 4.0" in (tmp_path / "north" / "site.yaml").read_text()


def test_check_reads_all_that_serving_would(north, dpfed, tmp_path):
    assert "are in order" in dpfed("site", "check", "north/site.yaml")
    assert json.loads(dpfed("site", "check", "north/site.yaml", "--json"))["policy"]["least_noise"] == 0.5
    (tmp_path / "north" / "records.csv").write_text("age,ill\n61,maybe\n")
    assert "column ill: the cell is none of the declared" in dpfed("site", "check", "north/site.yaml", fails=True)


def test_status_freeze_and_release_speak_of_the_account(north, dpfed, tmp_path):
    with Ledger(tmp_path / "north" / "ledger.db") as ledger:
        ledger.reserve({"north-records": {Gaussian(9.0): 3}}, run="study-1").commit({"north-records": Gaussian(9.0)})
    SentStore(tmp_path / "north" / "sent", read_key(tmp_path / "north" / "sent.key")).keep_plan("study-2", Message({}))
    assert "study-1: 1 charged, 2 reserved" in dpfed("site", "status", "north/site.yaml")
    facts = json.loads(dpfed("site", "status", "north/site.yaml", "--json"))
    assert facts["runs"] == [{"run": "study-1", "committed": 1, "left": 2}]
    assert facts["kept"] == ["study-2"]
    dpfed("site", "release", "study-1", "north/site.yaml", "--reason", "it was stopped")
    dpfed("site", "release", "study-2", "north/site.yaml", "--reason", "it was stopped")
    facts = json.loads(dpfed("site", "status", "north/site.yaml", "--json"))
    assert (facts["runs"], facts["kept"]) == ([], [])
    assert "froze north-records" in dpfed("site", "freeze", "north/site.yaml", "--reason", "an audit")
    assert json.loads(dpfed("site", "status", "north/site.yaml", "--json"))["status"] == "frozen"


HOLD = """
import sys, time
from dpfed.config.site import SiteFile
from dpfed.events import Gaussian
from dpfed.federated.site import Site
site = Site(SiteFile.read("north/site.yaml"))
held = site._ledger.reserve({"north-records": {Gaussian(9.0): 3}}, run="study-1")
print("ready", flush=True)
while True:
    time.sleep(0.05)
    if sys.argv[1] == "serves":
        site.release_asked()
"""


@pytest.fixture
def hold(north, tmp_path):
    """Start another process that holds a run, and may release what it is asked to, as `dpfed site serve` does."""
    started = []

    def holds(how: str) -> None:
        command = [sys.executable, "-c", HOLD, how]
        started.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE))
        assert started[-1].stdout.readline() == b"ready\n"

    yield holds
    for process in started:
        process.kill()
        process.communicate()


def test_release_asks_the_process_that_serves_and_waits_for_it(hold, dpfed):
    hold("serves")
    said = dpfed("site", "release", "study-1", "north/site.yaml", "--reason", "it was stopped")
    assert "released study-1 on north-records" in said
    assert json.loads(dpfed("site", "status", "north/site.yaml", "--json"))["runs"] == []


def test_release_says_what_to_type_if_the_process_does_not_do_it(hold, dpfed, monkeypatch):
    monkeypatch.setattr(site_command, "PATIENCE", 0.3)
    hold("is busy")
    said = dpfed("site", "release", "study-1", "north/site.yaml", "--reason", "it was stopped", fails=True)
    assert "was asked to release study-1" in said
    assert "stop serve" in said
    assert json.loads(dpfed("site", "status", "north/site.yaml", "--json"))["runs"][0]["left"] == 3


def test_a_run_that_the_site_does_not_know_is_not_released(north, dpfed):
    assert "study-9" in dpfed("site", "release", "study-9", "north/site.yaml", "--reason", "x", fails=True)


def test_a_wrong_setting_of_init_is_refused_by_its_key(dpfed):
    words = "site init north --name north --superlink hub:9092 --server-key secret --source r.csv --label ill"
    said = dpfed(*words.split(), "--size", "3", "--epsilon", "8", "--delta", "1e-5", fails=True)
    assert "--server-key must be the one line of a .pub file" in said
