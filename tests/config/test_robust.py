"""The keys of a robust run: a number alone chooses the rule by style, and what does not fit is refused by its key."""

from __future__ import annotations

import pytest

from dpfed.aggregation.quarantine import Quarantine
from dpfed.aggregation.robust_rules import Bucketing, FixedGroups, MultiKrum, NearestNeighbourMixing, TrimmedMean
from dpfed.aggregation.rules import RULES, Mean, choose_rule
from dpfed.config.robust import AggregationBlock, QuarantineBlock
from dpfed.config.run import ConfigFile, RunConfig
from dpfed.errors import InvalidArgument

BASE = """
name: wards
data: {source: "sklearn:digits", partition: {kind: iid, clients: 10}, sizes: 140}
model: {kind: logistic}
rounds: 5
local: {steps: 10, batch_size: 14, learning_rate: 0.5}
privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
"""


def parse(text):
    return RunConfig.parse(BASE + text)


@pytest.mark.parametrize("style", ["none", "sample", "user", "hybrid", "local"])
def test_a_number_alone_chooses_the_rule_of_the_style(style):
    assert parse("aggregation: {max_faulty: 2}").aggregation.make_rule(style) == choose_rule(style, 2)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            "{kind: trimmed_mean, max_faulty: 2, before: nnm}",
            TrimmedMean(max_faulty=2, before=NearestNeighbourMixing()),
        ),
        (
            "{kind: trimmed_mean, max_faulty: 2, before: groups, groups: 5}",
            TrimmedMean(max_faulty=2, before=FixedGroups(5)),
        ),
        ("{kind: trimmed_mean, max_faulty: 2, before: bucketing}", TrimmedMean(max_faulty=2, before=Bucketing())),
        (
            "{kind: multi_krum, max_faulty: 1, chosen: 3, before: bucketing, bucket_size: 3}",
            MultiKrum(max_faulty=1, chosen=3, before=Bucketing(3)),
        ),
        ("{kind: mean}", Mean()),
    ],
)
def test_a_rule_is_written_in_the_file(text, rule):
    assert parse(f"aggregation: {text}").aggregation.make_rule("none") == rule


@pytest.mark.parametrize("kind", RULES)
def test_every_rule_has_its_word(kind):
    clip = {"clip_norm": 1.0} if kind == "norm_bounded_mean" else {}
    faulty = {} if kind == "mean" else {"max_faulty": 1}
    assert AggregationBlock(kind=kind, **clip, **faulty).make_rule("none").kind == kind


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("aggregation: {kind: krum}", "aggregation.max_faulty is missing"),
        ("aggregation: {kind: mean, max_faulty: 1}", "aggregation.max_faulty must be left out"),
        ("aggregation: {max_faulty: 1, before: nnm}", "aggregation.before goes with a robust kind only"),
        ("aggregation: {kind: krum, max_faulty: 1, chosen: 2}", "aggregation.chosen goes with kind: multi_krum only"),
        ("aggregation: {kind: krum, max_faulty: 1, bucket_size: 2}", "aggregation.bucket_size goes with before"),
        ("aggregation: {kind: krum, max_faulty: 1, groups: 5}", "aggregation.groups goes with before"),
        ("aggregation: {kind: krum, max_faulty: 1, before: groups}", "aggregation.groups goes with before"),
        ("aggregation: {kind: norm_bounded_mean, max_faulty: 1}", "aggregation.clip_norm is missing"),
        ("aggregation: {kind: median, max_faulty: 1}", "aggregation.kind"),
        ("aggregation: {nb_byz: 1}", "dpfed's word is max_faulty"),
        ("quarantine: {low: 10}", "quarantine.low must be at most high"),
        ("attack_sim: krum:1", "attack_sim"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_key(text, why):
    with pytest.raises(InvalidArgument, match=why):
        parse(text)


def test_quarantine_has_its_defaults():
    assert QuarantineBlock().make() == Quarantine()
    assert parse("quarantine: {strikes: 4}").quarantine.make() == Quarantine(strikes=4)


def test_an_attack_of_the_command_line_is_written_into_the_file_of_the_run(tmp_path):
    (tmp_path / "run.yaml").write_text(BASE)
    file = ConfigFile.read(tmp_path / "run.yaml")
    assert file.with_attack(None) is file
    attacked = file.with_attack("sign_flip:2,nan:1")
    assert attacked.config.attack_sim == "sign_flip:2,nan:1"
    assert RunConfig.parse(attacked.content.decode()) == attacked.config
    with pytest.raises(InvalidArgument, match="already"):
        attacked.with_attack("nan:1")
    with pytest.raises(InvalidArgument, match="attacks must be names"):
        file.with_attack("nan")
