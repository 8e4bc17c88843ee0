from __future__ import annotations

import json
from importlib import metadata

import pytest

from dpfed.ledger.ledger import Ledger


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFED_LEDGER", raising=False)


def test_a_healthy_machine_gets_one_good_line_for_each_check(dpfed):
    result = dpfed("doctor")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert [line.split(":")[0].split(" ", 2)[-1].strip() for line in lines] == [
        "versions",
        "torch",
        "randomness",
        "write access",
        "clock",
        "ledger",
        "flower",
    ]


def test_a_ledger_that_answers_is_named_with_its_head(dpfed, tmp_path):
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open("icu", epsilon=1.0, delta=1e-5)
        head = str(ledger.head())
    result = dpfed("doctor --ledger ledger.db --json")
    facts = json.loads(result.output)
    assert facts["is_well"]
    assert head in facts["checks"]["ledger"]["text"]


def test_what_is_wrong_is_said_and_counted(dpfed, tmp_path):
    result = dpfed("doctor --ledger sqlite:///nowhere.db")
    assert result.exit_code == 1
    assert "BAD ledger:" in result.output
    assert len(result.output.splitlines()) == 7
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("installed", "words"),
    [("1.41.0", "tested with"), ("1.42.0", "1.42.0 is untested"), (None, r"pip install 'dpfed[flower]'")],
)
def test_the_version_of_flower_is_named_and_an_untested_one_as_such(dpfed, monkeypatch, installed, words):
    def version(name: str) -> str:
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    true = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version(name) if name == "flwr" else true(name))
    result = dpfed("doctor")
    assert (result.exit_code, words in result.output) == (0, True), result.output
