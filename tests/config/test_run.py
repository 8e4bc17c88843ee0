from __future__ import annotations

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dpfed.config import RunConfig
from dpfed.config.fields import blocks_in
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee

CLIENT = {"epsilon": 8, "delta": 1e-5, "clip_norm": 0.5}

DESIGN = """
name: hospitals
data: {source: "sklearn:breast_cancer", partition: {kind: quantity, sizes: [182, 114, 68, 55, 36]}, test_fraction: 0.2}
model: {kind: logistic}                       # or package.module:name; init: weights.safetensors
rounds: 10
cohort: {kind: all}                           # {kind: poisson, rate: 0.1} | {kind: fixed, size: 10}
local: {steps: 10, batch_size: 16, optimizer: sgd, learning_rate: 0.5}
algorithm: {kind: fedavg, server_learning_rate: 1.0}
privacy:
  style: sample                               # none | sample | user | hybrid | local
  record: {epsilon: 4, delta: 1e-5, clip_norm: 1.0}    # or noise_multiplier
  # client: {epsilon: 8, delta: 1e-5, clip_norm: 1.0}  # user and hybrid
ledger: {url: "sqlite:///ledger.db", account: study, client_accounts: "hospital-{id}"}
"""


def test_the_file_of_the_design_is_read():
    config = RunConfig.parse(DESIGN)
    assert config.guarantees == (Guarantee(4.0, 1e-5, "record", "add_remove"),)
    assert config.data.declared_sizes == {"1": 182, "2": 114, "3": 68, "4": 55, "5": 36}
    assert config.ledger.client_accounts == "hospital-{id}"


def test_what_pyyaml_reads_as_text_is_read_as_a_number_too():
    config = RunConfig.of(yaml.safe_load(DESIGN))
    assert isinstance(yaml.safe_load(DESIGN)["privacy"]["record"]["delta"], str)
    assert config == RunConfig.parse(DESIGN)


def test_a_configuration_is_frozen(plain):
    config = RunConfig.of(plain({}))
    with pytest.raises(ValidationError, match="frozen"):
        config.rounds = 6


STYLES = {
    "none": {},
    "sample": {"record": {"epsilon": 4, "delta": 1e-5, "clip_norm": 1}},
    "user": {"client": CLIENT},
    "hybrid": {"record": {"epsilon": 4, "delta": 1e-5, "clip_norm": 1}, "client": CLIENT},
}


@pytest.mark.parametrize("style", STYLES)
def test_each_style_promises_for_its_own_units(plain, style):
    config = RunConfig.of(plain({"privacy": {"style": style, **STYLES[style]}}))
    assert [promise.unit for promise in config.guarantees] == list(STYLES[style])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("other", STYLES)
def test_blocks_that_are_not_of_the_style_are_refused(plain, style, other):
    if style != other:
        with pytest.raises(InvalidArgument, match=r"privacy\.(record|client) (is missing|must be left out)"):
            RunConfig.of(plain({"privacy": {"style": style, **STYLES[other]}}))


def test_true_counts_are_promised_for_replacing_a_record_only(plain):
    config = RunConfig.of(plain({"data.sizes": "public", "local.batch_size": 500}))
    assert [promise.adjacency for promise in config.guarantees] == ["replace_one"]
    assert config.data.declared_sizes is None


@pytest.mark.parametrize(
    ("cohort", "adjacency"),
    [
        ({"kind": "all"}, "add_remove"),
        ({"kind": "poisson", "rate": 0.5, "secret": True}, "add_remove"),
        ({"kind": "fixed", "size": 3}, "add_remove"),
        ({"kind": "fixed", "size": 3, "secret": True}, "replace_one"),
    ],
)
def test_a_secret_cohort_of_fixed_size_is_promised_for_replacing_a_client_only(plain, cohort, adjacency):
    config = RunConfig.of(plain({"privacy": {"style": "user", "client": CLIENT}, "cohort": cohort}))
    assert [promise.adjacency for promise in config.guarantees] == [adjacency]


def test_a_seed_makes_a_run_that_is_not_private(plain):
    assert RunConfig.of(plain({})).is_private
    assert not RunConfig.of(plain({"seed": 0})).is_private


def test_only_a_run_that_protects_nobody_needs_no_sizes(plain):
    RunConfig.of(plain({"data.sizes": None, "privacy": {"style": "none"}}))
    for style in ("sample", "user", "hybrid"):
        with pytest.raises(InvalidArgument, match=r"data\.sizes is missing"):
            RunConfig.of(plain({"data.sizes": None, "privacy": {"style": style, **STYLES[style]}}))


REFUSED = {
    "data.sizes is missing": {"data.sizes": None},
    "data.sizes must be declared: true counts are part of what a client holds": {
        "data.sizes": "public",
        "privacy": {"style": "user", "client": CLIENT},
    },
    "weighting must be equal": {"data.sizes": "public", "weighting": "declared"},
    "local.batch_size must be at most the smallest declared size (140), got 141": {"local.batch_size": 141},
    "cohort.size must be at most the number of clients (10), got 11": {"cohort": {"kind": "fixed", "size": 11}},
    "max_sites_per_person must be at most the number of clients (10), got 11": {"max_sites_per_person": 11},
    "max_participations must be at most the number of rounds (5), got 6": {"max_participations": 6},
    "local.steps and epochs are two ways": {"local.epochs": 2},
    "local.momentum goes with optimizer: sgd only": {"local.momentum": 0.9, "local.optimizer": "adam"},
    "privacy.record.epsilon and noise_multiplier are two ways": {"privacy.record.noise_multiplier": 1},
    "privacy.record.adaptive goes with norm: l2 only": {
        "privacy.record.norm": "l1",
        "privacy.record.adaptive": {"count_noise": 5},
    },
    "privacy.record.tree goes with norm: l2 and without adaptive only": {
        "privacy.record.norm": "l1",
        "privacy.record.tree": {"restarts": 1},
    },
    "privacy.client.tree goes without adaptive only": {
        "privacy": {"style": "user", "client": {**CLIENT, "adaptive": {"count_noise": 5}, "tree": {"restarts": 1}}},
    },
    "privacy.record.epsilon must be a finite number, got inf": {"privacy.record.epsilon": "inf"},
    "privacy.record.clip_norm must be a finite number": {"privacy.record.clip_norm": float("inf")},
    "privacy.record.clip_norm must be above 0, got 0": {"privacy.record.clip_norm": 0},
    "privacy.record.delta must be below 1, got 1": {"privacy.record.delta": 1},
    "privacy.record.delta is missing": {"privacy.record.delta": None},
    "privacy.record.clip_norm is missing": {"privacy.record.clip_norm": None},
    "privacy.style must be 'none', 'sample', 'user', 'hybrid' or 'local', got 'global'": {"privacy.style": "global"},
    "privacy.noise_schedule must be a list with a factor for each round, or first": {"privacy.noise_schedule": 0.5},
    "privacy.noise_schedule.last is missing: the factor of the last round": {"privacy.noise_schedule": {"first": 2}},
    "privacy.noise_schedule.1 must be above 0, got -1": {"privacy.noise_schedule": [2, -1]},
    "rounds must be a number, got True": {"rounds": True},
    "rounds must be a number, got 'ten'": {"rounds": "ten"},
    "rounds must be at least 1, got 0": {"rounds": 0},
    "rounds must be a whole number, got 2.5": {"rounds": 2.5},
    "rounds must be a finite number": {"rounds": float("nan")},
    "name names a directory, so it must not be empty": {"name": "../up"},
    "name must be text, got 7": {"name": 7},
    "cohort must be of kind all, poisson or fixed, got 'half'": {"cohort": {"kind": "half"}},
    "cohort needs a kind: all, poisson or fixed": {"cohort": {"rate": 0.5}},
    "cohort.rate must be at most 1, got 2": {"cohort": {"kind": "poisson", "rate": 2}},
    "cohort.rate is missing": {"cohort": {"kind": "poisson"}},
    "algorithm must be of kind fedavg, fedprox, fedopt, scaffold, feddyn, admm, iadmm, iceadmm, iiadmm or package.": {
        "algorithm": {"kind": "sgd"}
    },
    "algorithm.rho is missing": {"algorithm": {"kind": "iadmm"}},
    "algorithm.rho must be a number, got 'auto'": {"algorithm": {"kind": "iadmm", "rho": "auto"}},
    "algorithm.rho must be a number, got True": {"algorithm": {"kind": "iadmm", "rho": [1, True]}},
    "algorithm.rho_factor must be above 0, got 0": {"algorithm": {"kind": "iadmm", "rho": 1, "rho_factor": 0}},
    "data.names must be one for each of the 10 clients, got 1": {"data.names": ["a"]},
    "data.names must all be different": {"data.names": ["a"] * 10},
    "data.sizes must name the clients 01, 02": {"data.sizes": {"a": 5}},
    "data.sizes must be 'public' or whole numbers": {"data.sizes": 2.5},
    "data.feature_bounds must be [low, high] with low below high": {"data.feature_bounds": [3, 1]},
    "data.feature_bounds must be [low, high], a list": {"data.feature_bounds": [1, 2, 3]},
    "data.feature_bounds and mean or scale": {"data.feature_bounds": [0, 1], "data.mean": 1},
    "data.scale must be above 0": {"data.scale": [1, 0]},
    "data.label is missing: name the column of a.csv": {"data.source": "a.csv"},
    "data.partition.sizes must be whole numbers": {"data.partition": {"kind": "quantity", "sizes": [0]}},
    "data.categories must be a mapping": {"data.categories": [1]},
    "data.categories must be text, got True: put it in quotes": {"data.categories": {"smokes": [True]}},
    "data.test_fraction must be below 1": {"data.test_fraction": 1},
    "model must be a block of keys, got 'logistic'": {"model": "logistic"},
    "ledger.client_accounts must contain {id}": {"ledger": {"url": "sqlite:///x", "client_accounts": "all"}},
    "ledger.client_accounts is missing: style sample": {"ledger": {"url": "sqlite:///x"}},
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_a_wrong_setting_is_refused_in_one_sentence_that_names_it(plain, message):
    with pytest.raises(InvalidArgument) as refused:
        RunConfig.of(plain(REFUSED[message]))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        RunConfig.read(tmp_path / "nothing.yaml")
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgument, match="is text in UTF-16: save it as UTF-8"):
        RunConfig.read(tmp_path / "run.yaml")


def test_a_refusal_names_file_and_line(tmp_path):
    (tmp_path / "run.yaml").write_text(DESIGN.replace("rounds: 10", "rounds: 0"))
    with pytest.raises(InvalidArgument, match=r"run\.yaml, line 5: rounds must be at least 1, got 0$") as refused:
        RunConfig.read(tmp_path / "run.yaml")
    assert refused.value.argument == "rounds"


def paths(block, above=""):
    for name, field in block.model_fields.items():
        yield above + name
        for inner in blocks_in(field):
            yield from paths(inner, f"{above}{name}.")


STRANGE = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(sorted(set(paths(RunConfig)))), value=STRANGE)
def test_whatever_stands_in_the_file_is_read_or_refused_in_words(plain, path, value):
    if value is None:
        return
    try:
        config = RunConfig.of(plain({path: value}))
    except InvalidArgument:
        return
    assert RunConfig.parse(config.to_yaml()) == config
