"""Settings of a sweep: what varies, and refusals that name the line of the file."""

from __future__ import annotations

import math

import pytest
from tests.support import done_runs

from dpfed.audit.settings import read_settings
from dpfed.errors import InvalidArgument

RUN = done_runs.RUN.replace("noise_multiplier: 1.0", "epsilon: 3")
FILE = """base:
  name: flowers
  data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: quantity, sizes: [80, 40]}}
  model: {kind: logistic}
  rounds: 2
  local: {steps: 5, batch_size: 20, learning_rate: 0.5}
  privacy: {style: none}
variants:
  PATE:
    pate:
      teachers: {count: 20}
      privacy: {epsilon: 4, delta: 1e-5}
"""


def test_everything_that_varies_is_combined():
    settings = read_settings(RUN, epsilons=[math.inf, 2.0], clip_norms=[0.5, 1.0], batch_sizes=[10], deltas=[1e-6])
    assert [setting.label for setting in settings[1:]] == [
        "ε = 2, C = 0.5, δ = 1e-06, batch 10",
        "ε = 2, C = 1, δ = 1e-06, batch 10",
    ]
    assert settings[0].config.privacy.style == "none"
    assert settings[0].label == "ε = ∞, batch 10"  # once: without privacy nothing is clipped, and there is no δ
    block = settings[2].config.privacy.record
    assert (block.epsilon, block.clip_norm, block.delta, settings[2].config.local.batch_size) == (2.0, 1.0, 1e-6, 10)


def test_a_variant_without_privacy_has_no_epsilon_that_could_vary():
    settings = read_settings(FILE + "  none: {}\n", epsilons=[2.0, 4.0], deltas=[1e-6], seeds=2)
    labels = ["PATE, ε = 2, δ = 1e-06", "PATE, ε = 4, δ = 1e-06", "none"]
    assert [(setting.label, setting.seed) for setting in settings] == [
        (each, seed) for each in labels for seed in (0, 1)
    ]


def test_a_given_noise_makes_way_for_an_epsilon():
    (setting,) = read_settings(done_runs.RUN, epsilons=[2.0])
    assert (setting.epsilon, setting.config.privacy.record.noise_multiplier) == (2.0, None)


@pytest.mark.parametrize("text", ["base: {}", "variants: {}", "base: 3\nvariants: {a: {}}"])
def test_a_file_that_is_neither_a_run_nor_variants_of_one_is_refused(text):
    with pytest.raises(InvalidArgument, match="a sweep is the file of a run, or has base"):
        read_settings(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rounds: 2", "rounds: 0", r"^sweep.yaml, line 5: rounds must be at least 1, got 0 \(in the setting PATE\)$"),
        ("count: 20", "count: none", r"^sweep.yaml, line 11: teachers.count must be a number"),
        ("    pate:", "    local: {steps: 0}\n    pate:", r"^sweep.yaml, line 10: local.steps must be at least 1"),
        ("epsilon: 4, ", "", r"^sweep.yaml, line 12: privacy.epsilon is missing"),
    ],
)
def test_a_refusal_names_the_line_of_the_file_and_the_setting(old, new, message):
    with pytest.raises(InvalidArgument, match=message):
        read_settings(FILE.replace(old, new), file="sweep.yaml")


def test_in_a_plain_file_the_line_is_that_of_the_key():
    with pytest.raises(InvalidArgument, match=r"^run.yaml, line 13: local.steps must be at least 1, got 0"):
        read_settings(RUN.replace("steps: 5", "steps: 0"), epsilons=[1.0], file="run.yaml")


def test_a_table_in_place_of_a_file_is_named_and_not_quoted():
    with pytest.raises(InvalidArgument, match=r"ward.csv is a table \(CSV\)") as refusal:
        read_settings("age,ill\n61,yes\n47,no\n", file="ward.csv")
    assert "61" not in str(refusal.value)


def test_an_epsilon_is_that_of_teachers_too_and_infinity_leaves_them_out():
    three, none = read_settings(FILE, epsilons=[3.0, math.inf])
    assert (three.epsilon, three.pate.privacy.epsilon, three.is_protected) == (3.0, 3.0, True)
    assert (none.epsilon, none.pate, none.is_protected) == (math.inf, None, False)
    assert three.config.privacy.style == "none"


def test_what_cannot_vary_is_refused_in_words():
    with pytest.raises(InvalidArgument, match="local must be a block of keys"):
        read_settings(RUN.replace("local: {steps: 5, batch_size: 25, learning_rate: 1.0}", "local: 3"), batch_sizes=[1])
