from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from done_runs import RUN, confirm
from dpfed.config import RunConfig
from dpfed.federated.state.export import newest
from dpfed.runs.directory import RunDirectory

pytestmark = pytest.mark.usefixtures("flowers")


def test_an_exported_model_is_read_without_dpfed(dpfed):
    assert dpfed("export flowers-1 model.safetensors").exit_code == 0
    weights = load_file("model.safetensors")
    model = torch.nn.Linear(4, 3)
    model.load_state_dict({name.removeprefix("linear."): value for name, value in weights.items()})
    kept = newest(RunDirectory("runs/flowers-1")).weights
    np.testing.assert_array_equal(torch.cat([weights["linear.weight"].flatten(), weights["linear.bias"]]), kept)
    assert model(torch.zeros(1, 4)).shape == (1, 3)
    assert Path("model.safetensors").stat().st_mode & 0o044


def test_the_card_says_what_is_promised_and_how_to_feed_the_model(dpfed):
    facts = json.loads(dpfed("export flowers-1 model.safetensors --json").output)
    assert facts["files"] == ["model.safetensors", "model.md", "model.json"]
    card = json.loads(Path("model.json").read_text())
    assert card["sha256"] == hashlib.sha256(Path("model.safetensors").read_bytes()).hexdigest()
    plan = RunDirectory("runs/flowers-1").plan
    assert card["promises"][0]["epsilon"] == plan.record_epsilon(1e-5)
    assert card["classes"] == ["setosa", "versicolor", "virginica"]
    assert card["scaling"]["feature_bounds"] == {"a": [4, 8], "b": [2, 5], "c": [1, 7], "d": [0, 3]}
    assert card["scores"] == {}  # the held-out records were not declared public
    text = Path("model.md").read_text()
    assert "## What is promised" in text
    assert card["sha256"] in text


def test_the_card_tells_nothing_that_is_the_owners(dpfed):
    dpfed("export flowers-1")
    text = Path("model.md").read_text() + Path("model.json").read_text()
    for word in ("seconds", "contributed", "refused", "failed", "taken", str(Path.cwd())):
        assert f'"{word}"' not in text
        assert word == str(Path.cwd()) or f"- {word}" not in text
    assert str(Path.cwd()) not in text


def test_nothing_is_overwritten_without_force(dpfed):
    Path("model.md").write_text("mine")
    result = dpfed("export flowers-1")
    assert result.exit_code == 2
    assert "model.md exists" in result.stderr
    assert not Path("model.safetensors").exists()
    assert dpfed("export flowers-1 --force").exit_code == 0


def test_a_ledgers_password_stays_out_of_the_card(dpfed):
    kept = Path("runs/flowers-1/config.yaml")
    block = "ledger: {url: 'postgresql://me:secret@host/db', client_accounts: 'c-{id}'}\n"
    kept.write_text(RUN + block)
    assert RunConfig.read(kept).ledger is not None
    confirm(RunDirectory("runs/flowers-1"))
    assert dpfed("export flowers-1").exit_code == 0
    assert "secret" not in Path("model.md").read_text() + Path("model.json").read_text()
