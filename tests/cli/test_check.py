from __future__ import annotations

import json

import pytest
import torch

from dpfed.training.engine import sums

MLP = "check model mlp --shape 4 --classes 3 -o hidden=[5] --searches 1"


def test_a_sound_model_passes_with_one_screen_of_answers(dpfed):
    result = dpfed(MLP)
    assert result.exit_code == 0, result.output
    for words in ("MLP, 43 numbers", "moved the sum by at most 0.9999", "not a proof", "on the grid", "layers.1"):
        assert words in result.stdout
    assert "times the CPU time of plain SGD" in result.stdout


def test_json_has_all_that_was_found(dpfed):
    shown = json.loads(dpfed(f"{MLP} --json --seed 3").stdout)
    assert shown["is_sound"] is True
    assert 0.5 < shown["moved"] <= 1.001
    assert [layer["way"] for layer in shown["layers"]] == ["linear", "linear"]
    assert shown["slow"] is None
    assert len(shown["modes"]) == 11


def test_an_unsound_engine_ends_with_1(dpfed, monkeypatch):
    monkeypatch.setattr(sums, "compute_coefficients", lambda lengths, limit, mask: torch.ones_like(lengths))
    result = dpfed(MLP)
    assert result.exit_code == 1
    assert "FAILED" in result.stdout
    assert "please report it" in result.stdout


def test_a_model_and_a_loss_of_the_present_directory_are_found(dpfed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here_checked.py").write_text(
        "from torch import nn\n"
        "def make(width): return nn.Linear(4, width)\n"
        "def loss(outputs, targets): return nn.functional.cross_entropy(outputs, targets, reduction='none')\n"
    )
    result = dpfed(
        "check model here_checked:make --shape 4 --classes 2 --loss here_checked:loss -o width=2 --searches 1"
    )
    assert result.exit_code == 0, result.output
    assert "Linear, 10 numbers" in result.stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("check model", "NAME"),
        ("check model mlp", "--shape"),
        ("check model mlp --shape 4x4", "such as 1,28,28"),
        ("check model mlp --shape 0", "such as 1,28,28"),
        ("check model mlp --shape 4 -o hidden", "write name=value"),
        ("check model mlp --shape 4 -o hidden=[", "a [list]"),
        ("check model mlp --shape 4 -o depth=3", "no option 'depth'"),
        ("check model mlp --shape 4 --searches 0", "--searches must be"),
        ("check model mlp --shape 4 --clip 0", "--clip must be"),
        ("check model mlp --shape 4 --seed -1", "--seed must be"),
        ("check model mlp --shape 4 --loss nonsense", "--loss must be one of"),
        ("check model nonsense --shape 4", "must be one of logistic"),
        ("check algorithm", "NAME"),
        ("check algorithm nonsense", "one of fedavg"),
        ("check algorithm fedavg --trials 0", "--trials must be"),
        ("check algorithm fedavg --seed -1", "--seed must be"),
        ("check algorithm fedavg -o steps", "write name=value"),
        ("check algorithm fedavg -o depth=3", "depth"),
        ("check algorithm fedavg -o steps=2 -o adjacency=add_remove", "no add/remove bound"),
        ("check model torch.nn:BatchNorm1d --shape 4 -o num_features=4 --classes 4", "mixes the examples"),
    ],
)
def test_a_refusal_is_one_line_and_a_2(dpfed, line, words):
    result = dpfed(line)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_sensitivity_that_holds_passes_in_one_sentence(dpfed):
    result = dpfed("check algorithm fedavg -o steps=2 --trials 60")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(
        "60 pairs of neighbouring data sets moved the release by at most 1.0000 of the claimed"
    )
    assert result.stdout.endswith("not a proof.\n")


@pytest.mark.parametrize("name", ["fedprox", "scaffold", "feddyn", "iadmm", "iceadmm", "iiadmm", "update"])
def test_every_algorithm_of_dpfed_can_be_checked_by_its_name(dpfed, name):
    shown = json.loads(dpfed(f"check algorithm {name} --trials 20 -o adjacency=add_remove --json").stdout)
    assert shown["is_refuted"] is False
    assert shown["ratio"] == pytest.approx(1)
    assert (shown["norm"], shown["adjacency"], shown["trials"], shown["seed"]) == ("l1", "add_remove", 20, 0)


OWN = """
from dpfed.mechanisms.claims import Box, SensitivityClaim
from dpfed.mechanisms.sensitivity import Sensitivity

def claim(value=0.25):
    return SensitivityClaim(lambda r, p: r.sum(0) / 4, Sensitivity(value, "l1", "replace_one"), Box((1,), 7e3, 7.5e3))

def broken(records, public):
    raise ValueError(f"MARKER {records}")

stops = SensitivityClaim(broken, Sensitivity(1.0, "l1", "replace_one"), Box((1,)))
"""


def test_a_wrong_sensitivity_of_ones_own_ends_with_1_the_ratio_and_a_seed_that_finds_it_again(
    dpfed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_claim.py").write_text(OWN)
    line = "check algorithm own_claim:claim -o value=62.5 --trials 40 --seed 5"
    result = dpfed(line)
    assert result.exit_code == 1
    assert "REFUTED" in result.stdout
    assert "2.0000 times the claimed 62.5" in result.stdout
    assert "trials=40 and seed=5" in result.stdout
    assert not any(str(record) in result.output for record in (7000, 7500))
    assert dpfed(line).output == result.output
    facts = dpfed(f"{line} --json")
    assert facts.exit_code == 1
    assert json.loads(facts.stdout)["is_refuted"] is True
    assert dpfed("check algorithm own_claim:claim -o value=125.0 --trials 40").exit_code == 0


def test_a_release_that_fails_is_refused_in_one_line_without_its_text(dpfed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_claim.py").write_text(OWN)
    result = dpfed("check algorithm own_claim:stops")
    assert result.exit_code == 2
    assert "a ValueError in own_claim.py" in result.stderr
    assert "MARKER" not in result.output
    assert len(result.stderr.splitlines()) == 1
