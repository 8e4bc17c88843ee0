"""``dpfed personalise``: a model for one site, which stays there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpfed.federated.state.export import newest
from dpfed.runs.directory import RunDirectory

pytestmark = pytest.mark.usefixtures("flowers")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_site_gets_a_model_of_its_own_that_only_its_owner_reads_and_the_run_stays_as_it_is(dpfed):
    before = contents(Path("runs"))
    result = dpfed("personalise flowers-1 north north.safetensors --steps 50")
    assert result.exit_code == 0, result.output
    assert "linear trained for north" in result.output
    assert "publish nothing that it predicts" in " ".join(result.output.split())
    assert contents(Path("runs")) == before
    assert Path("north.safetensors").stat().st_mode & 0o077 == 0
    own, released = load_file("north.safetensors"), newest(RunDirectory("runs/flowers-1")).arrays()
    assert set(own) == set(released)
    assert all(np.abs(own[name] - released[name]).max() > 1e-3 for name in own)


def test_it_is_told_as_json(dpfed):
    facts = json.loads(
        dpfed("personalise flowers-1 south own.safetensors --layers linear.bias --steps 3 --json").output
    )
    assert (facts["file"], facts["layers"], facts["steps"]) == ("own.safetensors", ["linear.bias"], 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("east own.safetensors", "choose among north, south"),
        ("north own.safetensors --layers head", "--layers: the model has no layer 'head': choose among linear"),
        ("north own.safetensors --steps 0", "--steps"),
        ("north own.bin", "must end in .safetensors"),
    ],
)
def test_what_cannot_be_made_is_refused_and_nothing_is_written(dpfed, words, said):
    result = dpfed(f"personalise flowers-1 {words}")
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not list(Path().glob("own.*"))
