"""A file for another command is answered with that command, in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfed.audit.settings import read_settings
from dpfed.config.kinds import KINDS, explain_other_kind
from dpfed.config.pate import PateConfig
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument

EXAMPLES = Path(__file__).parents[2] / "examples"
STUDY = """
name: wards
data: {source: wards.csv, label: ill, classes: [no, yes], feature_bounds: [0, 100]}
public: open.csv
privacy: {epsilon: 4, delta: 1e-5}
"""


@pytest.mark.parametrize(
    ("parse", "text", "command"),
    [
        (RunConfig.parse, STUDY, "pate run"),
        (PateConfig.parse, (EXAMPLES / "hospitals.yaml").read_text(encoding="utf-8"), "run"),
        (RunConfig.parse, (EXAMPLES / "defences.yaml").read_text(encoding="utf-8"), "sweep"),
        (PateConfig.parse, (EXAMPLES / "defences.yaml").read_text(encoding="utf-8"), "sweep"),
        (lambda text, file: read_settings(text, file=file), STUDY, "pate run"),
    ],
)
def test_a_file_of_another_kind_is_one_sentence_with_the_command_to_type(parse, text, command):
    with pytest.raises(InvalidArgument) as refusal:
        parse(text, file="some.yaml")
    assert str(refusal.value).endswith(f"type `dpfed {command} some.yaml`")
    assert "\n" not in str(refusal.value)


def test_a_file_with_keys_of_both_kinds_is_refused_key_by_key():
    assert explain_other_kind("RunConfig", {"rounds": 3, "teachers": {}}) is None
    assert explain_other_kind("RunConfig", {"name": "wards"}) is None
    assert explain_other_kind("RunConfig", ["rounds"]) is None


def test_the_keys_of_a_kind_are_keys_of_its_configuration():
    assert set(KINDS["RunConfig"].keys) <= set(RunConfig.model_fields) - set(PateConfig.model_fields)
    assert set(KINDS["PateConfig"].keys) <= set(PateConfig.model_fields) - set(RunConfig.model_fields)
