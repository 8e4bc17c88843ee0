"""The file of `dpfed pate run`: known keys only, refusals by line, and a promise for records or persons."""

from __future__ import annotations

import pytest

from dpfed.config.pate import FEDERATED, PateConfig
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee

TEXT = """
name: wards
data: {source: wards.csv, label: ill, classes: [no, yes], feature_bounds: [0, 100]}
public: open.csv
privacy: {epsilon: 2, delta: 1e-5}
"""


def test_a_short_file_has_defaults_for_the_rest():
    config = PateConfig.parse(TEXT)
    assert config.guarantee == Guarantee(2.0, 1e-5)
    assert (config.vote.kind, config.teachers.count, config.test, config.seed) == ("gnmax", 100, None, None)


def test_a_column_of_persons_makes_the_promise_one_for_persons():
    config = PateConfig.parse(TEXT.replace("label: ill", "label: ill, person_column: patient"))
    assert config.guarantee.unit == "person"


def test_replace_one_is_a_word_of_the_file():
    config = PateConfig.parse(TEXT.replace("delta: 1e-5", "delta: 1e-5, adjacency: replace_one"))
    assert config.guarantee.adjacency == "replace_one"


@pytest.mark.parametrize("key", FEDERATED)
def test_keys_of_federations_are_refused(key):
    values = {"partition": "{kind: iid, clients: 3}", "names": "[a]", "shape": "[1]", "test_is_public": "true"}
    text = TEXT.replace("label: ill", f"label: ill, {key}: {values.get(key, '0')}")
    with pytest.raises(InvalidArgument, match=rf"study\.yaml, line 3: data\.{key} "):
        PateConfig.parse(text, file="study.yaml")


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("epsilon: 2", "epsilon: 0", "privacy.epsilon must be above 0"),
        ("public: open.csv", "teachers: {number: 3}", "teachers.number"),
        ("public: open.csv", "", "public is missing"),
        ("label: ill", "label: ill, person_column: ill", "person_column must be another column"),
        ("name: wards", "name: wards\nvote: {kind: majority}", "vote.kind"),
    ],
)
def test_wrong_settings_are_refused_by_their_keys(old, new, match):
    with pytest.raises(InvalidArgument, match=match):
        PateConfig.parse(TEXT.replace(old, new))


def test_a_file_is_read_and_a_missing_one_refused(tmp_path):
    (tmp_path / "study.yaml").write_text(TEXT)
    assert PateConfig.read(tmp_path / "study.yaml") == PateConfig.parse(TEXT)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        PateConfig.read(tmp_path / "none.yaml")


def test_a_table_is_no_configuration(tmp_path):
    (tmp_path / "wards.csv").write_text("age,ill\n61,yes\n47,no\n")
    with pytest.raises(InvalidArgument, match="table"):
        PateConfig.read(tmp_path / "wards.csv")


@pytest.mark.parametrize("line", ["public: wards.csv", "public: ./wards.csv", "public: open.csv\ntest: wards.csv"])
def test_private_records_are_refused_as_public_examples(line):
    with pytest.raises(InvalidArgument, match=r"(public|test) is data\.source, whose records are private"):
        PateConfig.parse(TEXT.replace("public: open.csv", line))
