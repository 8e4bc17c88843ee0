"""The ``network:`` block of a run file."""

from __future__ import annotations

import pytest

from dpfed.config.network import Network, SiteKeys
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument

RUN = """
name: wards
data: {source: "sklearn:digits", partition: {kind: iid, clients: 2}, sizes: 140, names: [a, b]}
model: {kind: logistic}
rounds: 5
local: {steps: 10, batch_size: 14, learning_rate: 0.5}
privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
"""
BLOCK = "network: {key: study.key, sites: {a: {key: ssh-ed25519 AA}, b: {key: ssh-ed25519 BB, node: ecdsa-x CC}}}"


def test_the_block_is_read_and_changes_no_term_of_the_run():
    plain, networked = RunConfig.parse(RUN), RunConfig.parse(RUN + BLOCK)
    assert plain.terms == networked.terms
    assert networked.network is not None
    assert networked.network.sites["a"].address == "ssh-ed25519 AA"
    assert networked.network.sites["b"].address == "ecdsa-x CC"
    assert RunConfig.parse(networked.to_yaml()) == networked


@pytest.mark.parametrize(
    ("block", "what"),
    [
        ("network: {key: study.key, sites: {a: {key: ssh-ed25519 AA}}}", "network.sites must have the keys of each"),
        (BLOCK.replace("ssh-ed25519 AA", "a password"), "line 8: network.sites.a.key must be the one line"),
        (BLOCK.replace("key: study.key, ", ""), "network.key is missing"),
        (BLOCK.replace("key: study.key", "key: study.key, deadline: 0"), "network.deadline must be at least 1"),
        (BLOCK.replace("sites:", "clients:"), "network.clients is not a key"),
    ],
)
def test_a_refusal_names_line_and_key(block, what):
    with pytest.raises(InvalidArgument, match=what):
        RunConfig.parse(RUN + block, file="run.yaml")


def test_sites_that_only_the_records_know_cannot_have_keys():
    text = RUN.replace("{kind: iid, clients: 2}, sizes: 140, names: [a, b]", "{kind: column, column: x}, sizes: public")
    with pytest.raises(InvalidArgument, match=r"nobody: declare data\.sizes by name"):
        RunConfig.parse(text + BLOCK)


def test_a_deadline_is_long_enough_for_a_site_that_was_killed():
    assert Network(key="k", sites={"a": SiteKeys(key="ssh-ed25519 AA")}).deadline >= 120
