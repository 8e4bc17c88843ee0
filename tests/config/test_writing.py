from __future__ import annotations

import re

import pytest

from dpfed.config import RunConfig
from dpfed.config.fields import blocks_in, describe
from dpfed.config.templates import hospitals

CLIENT = {"epsilon": 8, "delta": 1e-5, "clip_norm": 0.5, "adaptive": {"count_noise": 5}}
CHANGES = [
    {},
    {"cohort": {"kind": "poisson", "rate": 0.25, "secret": True}, "spare_rounds": 2, "seed": 3},
    {"cohort": {"kind": "fixed", "size": 3}, "algorithm": {"kind": "fedopt", "optimizer": "yogi"}},
    {"algorithm": {"kind": "my.own:Algorithm", "options": {"a": [1, {"b": "no"}]}}},
    {"privacy": {"style": "user", "client": CLIENT}, "local.schedule": {"kind": "step", "every": 3}},
    {"data.categories": {"smokes": ["yes", "no"], "1e5": ["010", "# x", "a: b"]}, "data.mean": [0.1] * 64},
    {"data.names": [f"ward {n}: 'x'" for n in range(10)], "data.feature_bounds": {"a: b": [0, 1e-7]}},
    {"data.partition": {"kind": "column", "column": "y"}, "data.sizes": {"010": 14, "no": 20}},
    {"ledger": {"url": "sqlite:///x", "client_accounts": "{id}"}, "model.options": {"hidden": [64, 32]}},
    {"privacy.record.tree": {}},
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_written_is_read_back_as_the_same_configuration(plain, change):
    config = RunConfig.of(plain(change))
    assert RunConfig.parse(config.to_yaml()) == config
    assert max(map(len, config.to_yaml().splitlines())) <= 160


BLOCKS = (
    *("cohort", "client", "ledger", "track", "adaptive", "tree", "schedule", "algorithm"),
    *("aggregation", "quarantine", "network", "metrics", "stop", "bounds"),
)


def written_keys(block):
    for name, field in block.model_fields.items():
        yield block, name
        for inner in blocks_in(field)[:1]:
            yield from written_keys(inner)


def test_every_setting_is_there_with_its_meaning(plain):
    text = RunConfig.of(plain({})).to_yaml()
    prose = " ".join(re.sub(r"^\s*#", "", line).strip() for line in text.splitlines())
    for block, name in written_keys(RunConfig):
        assert re.search(rf"^#? *{name}:", text, re.MULTILINE), name
        if name != "kind" and block.__name__ != "Adaptive":
            assert describe(block, name) in " ".join(prose.split()), name


def test_a_setting_at_its_default_changes_nothing_when_its_mark_is_removed(plain):
    config = RunConfig.of(plain({}))
    lines = config.to_yaml().splitlines()
    off = [number for number, line in enumerate(lines) if re.match(r"#(  +)?\w+: \S", line)]
    tried = 0
    for number in off:
        is_in_a_block_that_is_off = any(re.match(rf"# *({'|'.join(BLOCKS)}):$", line) for line in lines[:number][-4:])
        if not is_in_a_block_that_is_off and not re.search(
            r"quantile|learning_rate|clean_rounds|high|low:|deadline|patience", lines[number]
        ):
            changed = [*lines[:number], lines[number][1:], *lines[number + 1 :]]
            assert RunConfig.parse("\n".join(changed)) == config, lines[number]
            tried += 1
    assert tried >= 15


def test_notes_stand_above_their_setting():
    text = hospitals().to_yaml()
    assert re.search(r"# Round numbers of the size.*\n  feature_bounds: \[\n", text)
