from __future__ import annotations

import pytest

from dpfed.errors import InvalidArgument
from dpfed.manager.block import read_privacy_block
from dpfed.manager.manager import PrivacyManager
from dpfed.randomness import SeededSource

SEED_003 = """
privacy:
  use_differential_privacy: true
  epsilon: 1.0
  delta: 1e-5
  clip_norm: 1.0
  composition: "advanced"  # or "basic"
"""


def test_the_block_of_seed_003_makes_a_manager(tmp_path):
    path = tmp_path / "fl_config.yaml"
    path.write_text(SEED_003)
    for config in (path, str(path)):
        manager = PrivacyManager.from_config(config)
        assert (manager.params.epsilon, manager.params.delta, manager.params.clip_norm) == (1.0, 1e-5, 1.0)
        assert manager.privacy_budget.num_rounds == 10


def test_numbers_that_yaml_reads_as_text_are_numbers():
    block = read_privacy_block({"epsilon": "2", "delta": "1e-6", "clip_norm": "5e-1"})
    assert block == {"epsilon": 2.0, "delta": 1e-6, "clip_norm": 0.5}


def test_a_mapping_may_be_the_block_or_hold_it_among_other_sections():
    assert read_privacy_block({"epsilon": 2.0}) == {"epsilon": 2.0}
    assert read_privacy_block({"server": {"rounds": 5}, "privacy": {"epsilon": 2.0}}) == {"epsilon": 2.0}


def test_every_key_of_a_manager_may_stand_in_the_block():
    block = {"epsilon": 3, "num_rounds": 20, "per_example": True, "unit": "person", "expected_batch_size": 8}
    manager = PrivacyManager.from_config({"privacy": block})
    assert (manager.privacy_budget.num_rounds, manager.unit, manager.sensitivity) == (20, "person", 1.0)
    assert manager.get_noise_scale() == pytest.approx(manager.event.noise_multiplier / 8)


@pytest.mark.parametrize("composition", ["exact", "advanced", "basic"])
def test_any_composition_gets_the_exact_noise(composition):
    manager = PrivacyManager.from_config({"epsilon": 1.0, "composition": composition})
    assert manager.event == PrivacyManager(epsilon=1.0).event


def test_what_the_block_leaves_open_may_be_an_argument():
    source = SeededSource(1)
    manager = PrivacyManager.from_config({"epsilon": 1.0}, num_rounds=3, source=source)
    assert manager.privacy_budget.num_rounds == 3
    assert manager.get_privacy_status()["is_private"] is False


def test_a_value_given_twice_is_refused():
    with pytest.raises(InvalidArgument, match="epsilon is given twice"):
        PrivacyManager.from_config({"epsilon": 1.0}, epsilon=8.0)


@pytest.mark.parametrize(
    ("block", "name", "message"),
    [
        ({"epsilonn": 1.0}, "epsilonn", "use epsilon"),
        ({"max_grad_norm": 1.0}, "max_grad_norm", "use clip_norm"),
        ({"epsilon": 1.0, "rounds": 5}, "rounds", "use num_rounds"),
        ({"epsilon": 1.0, "q": 0.1}, "q", "known are"),
        ({}, "privacy", "empty"),
        ({"epsilon": 1.0, "use_differential_privacy": False}, "use_differential_privacy", "must be true"),
        ({"epsilon": 1.0, "use_differential_privacy": "yes"}, "use_differential_privacy", "must be true"),
        ({"epsilon": 1.0, "composition": "magic"}, "composition", "exact, advanced, basic"),
        ({"epsilon": "much"}, "epsilon", "must be a number"),
        ({"epsilon": "nan"}, "epsilon", "positive finite"),
        ({"epsilon": "inf"}, "epsilon", "positive finite"),
        ({"epsilon": True}, "epsilon", "positive finite"),
        ({"delta": "1.5"}, "delta", "below 1"),
        ({"epsilon": None}, "epsilon", "positive finite"),
        ({"epsilon": 1.0, "num_rounds": "20"}, "num_rounds", "whole number"),
    ],
)
def test_a_wrong_block_is_refused_by_name(block, name, message):
    with pytest.raises(InvalidArgument, match=message) as refused:
        PrivacyManager.from_config({"privacy": block})
    assert refused.value.argument == name


def test_a_key_beside_the_block_is_refused():
    with pytest.raises(InvalidArgument, match="epsilon must be inside the privacy block"):
        read_privacy_block({"privacy": {"delta": 1e-5}, "epsilon": 0.1})


@pytest.mark.parametrize("text", ["", "- a list", "privacy: 3", "privacy: [1", "privacy:\n"])
def test_a_file_without_a_block_is_refused(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument):
        read_privacy_block(path)


@pytest.mark.parametrize("text", ["7,secret\n8,secret", "name: [secret", "secret"])
def test_a_file_that_is_no_configuration_is_refused_without_its_content(tmp_path, text):
    path = tmp_path / "patients.csv"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"config must be a mapping (or the path of|with)") as refusal:
        read_privacy_block(path)
    assert "secret" not in str(refusal.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="path of a YAML file: No such file"):
        read_privacy_block(tmp_path / "missing.yaml")
