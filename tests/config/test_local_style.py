"""The file of a run in style local, or with ε by round: what it means, and what is refused."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from dpfed import accounting
from dpfed import events as ev
from dpfed.cli.plan import plan as plan_command
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.federated.data import DataFacts
from dpfed.federated.planning import make_plan
from dpfed.guarantee import Guarantee

RUN = """
name: wards
data: {{source: "sklearn:digits", partition: {{kind: iid, clients: 10}}, sizes: 140}}
model: {{kind: logistic}}
rounds: 5
spare_rounds: 1
local: {{steps: 10, batch_size: 14, learning_rate: 0.5}}
privacy: {}
{}
"""
FACTS = DataFacts({"a": 140, "b": 140})


def parse(privacy, more=""):
    return RunConfig.parse(RUN.format(privacy, more))


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_client_block_of_style_local_is_a_promise_under_replacement(norm):
    config = parse(f"{{style: local, client: {{epsilon: 8, delta: 1e-5, clip_norm: 0.5, norm: {norm}}}}}")
    assert config.guarantees == (Guarantee(8.0, 1e-5, "client", "replace_one"),)
    plan = make_plan(config, FACTS)
    assert (plan.style, plan.client.norm, plan.client.clip_norm) == ("local", norm, 0.5)
    assert plan.client_guarantee == config.guarantees[0]
    assert 7.99 < plan.client_epsilon(1e-5) <= 8.0
    assert RunConfig.parse(config.to_yaml()) == config


def test_epsilon_of_a_round_is_pure_with_laplace_noise_and_the_total_is_composed():
    config = parse("{style: local, client: {epsilon_per_round: 0.5, delta: 1e-5, clip_norm: 1, norm: l1}}")
    plan = make_plan(config, FACTS)
    assert plan.client.noise == pytest.approx(4.0, rel=2e-5)
    whole = ev.Repeated(ev.Laplace(plan.client.noise), 6)
    total = accounting.epsilon(whole, 1e-5, adjacency="replace_one")
    assert plan.client_guarantee == Guarantee(total, 1e-5, "client", "replace_one")
    assert (
        "One round costs one client ε ≤ 0.499998 at δ = 0, all 6 that are charged together ε ≤ 2.99" in plan.explain()
    )


def test_a_plan_as_json_has_epsilon_of_one_round_beside_that_of_all(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        RUN.format("{style: local, client: {epsilon_per_round: 1, delta: 1e-5, clip_norm: 1, norm: l1}}", "")
    )
    shown = CliRunner().invoke(plan_command, [str(file), "--json", "--budget", "3"])
    (alone,), (whole,) = (json.loads(shown.output)[key] for key in ("per_round", "statements"))
    assert alone["delta"] == 0.0
    assert 0.9999 < alone["epsilon"] <= 1.0
    assert 5.9 < whole["epsilon"] < 6 * alone["epsilon"]


def test_epsilon_of_a_round_may_be_given_for_records_too():
    config = parse("{style: sample, record: {epsilon_per_round: 0.5, delta: 1e-5, clip_norm: 1}}")
    plan = make_plan(config, FACTS)
    assert config.guarantees == ()
    alone = plan.local["a"].epsilon(1e-5, rounds=1)
    assert 0.499 < alone <= 0.5
    assert plan.guarantee == Guarantee(plan.local["a"].epsilon(1e-5, rounds=6), 1e-5)
    assert alone < plan.guarantee.epsilon < 6 * alone
    assert re.search(r"One round costs one record ε ≤ 0\.(49999\d|5) at δ = 1e-05, all 6", plan.explain())


def test_epsilon_of_a_round_may_be_given_for_one_unit_and_of_all_rounds_for_the_other():
    record = "record: {epsilon: 4, delta: 1e-5, clip_norm: 1}"
    config = parse(f"{{style: hybrid, {record}, client: {{epsilon_per_round: 1, delta: 1e-5, clip_norm: 1}}}}")
    plan = make_plan(config, FACTS)
    assert plan.guarantee.epsilon == 4.0
    assert 0.999 < plan.round_cost(plan.client_guarantee)[0] <= 1.0
    assert plan.client_guarantee.epsilon == plan.client_epsilon(1e-5)


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ("{style: local}", "client is missing"),
        (
            "{style: local, record: {epsilon: 1, delta: 1e-5, clip_norm: 1}}",
            "record must be left out|client is missing",
        ),
        ("{style: user, client: {epsilon: 1, delta: 1e-5, clip_norm: 1, norm: l1}}", "privacy.client.norm must be l2"),
        ("{style: local, client: {epsilon: 1, delta: 1e-5, clip_norm: 1, tree: {}}}", "client.tree must be left out"),
        (
            "{style: local, client: {epsilon: 1, delta: 1e-5, clip_norm: 1, adaptive: {count_noise: 5}}}",
            "client.adaptive must be left out",
        ),
        ("{style: local, client: {epsilon: 1, epsilon_per_round: 1, delta: 1e-5, clip_norm: 1}}", "give one of them"),
        ("{style: local, client: {delta: 1e-5, clip_norm: 1}}", "give one of them"),
        (
            "{style: user, client: {epsilon_per_round: 1, delta: 1e-5, clip_norm: 1, tree: {}}}",
            "epsilon_per_round goes without tree only",
        ),
    ],
)
def test_what_does_not_go_with_the_style_is_refused(privacy, message):
    with pytest.raises(InvalidArgument, match=message):
        parse(privacy)


def test_style_local_charges_each_clients_account_and_needs_no_study():
    block = "{style: local, client: {epsilon: 8, delta: 1e-5, clip_norm: 1}}"
    assert parse(block, 'ledger: {url: "sqlite:///l.db", client_accounts: "ward-{id}"}').ledger.account is None
    with pytest.raises(InvalidArgument, match=r"ledger.client_accounts is missing"):
        parse(block, 'ledger: {url: "sqlite:///l.db", account: study}')


SHUFFLED = "{{style: local, client: {{epsilon: 8, delta: 1e-5, clip_norm: 1, norm: {}, shuffle: {{users: {}}}}}}}"


def test_a_shuffler_of_the_file_is_in_the_plan_and_both_statements_are_said():
    config = parse(SHUFFLED.format("l1", 2), "weighting: equal")
    plan = make_plan(config, FACTS)
    assert plan.client.shuffle_users == 2
    assert "Shuffled: " in plan.explain()
    assert RunConfig.parse(config.to_yaml()) == config


@pytest.mark.parametrize(
    "privacy",
    [
        SHUFFLED.format("l2", 2),
        SHUFFLED.format("l1", 0),
        "{style: user, client: {epsilon: 8, delta: 1e-5, clip_norm: 1, shuffle: {users: 2}}}",
    ],
    ids=["gaussian", "nobody", "user"],
)
def test_a_shuffler_without_laplace_reports_is_refused_by_its_key(privacy):
    with pytest.raises(InvalidArgument, match="shuffle"):
        parse(privacy)
