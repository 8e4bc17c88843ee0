from __future__ import annotations

import pytest

from dpfed.config import RunConfig
from dpfed.config.synonyms import _NEEDLESS, _OURS, explain_unknown_key, find_our_word
from dpfed.errors import InvalidArgument

UNKNOWN = {
    "num_rounds": "num_rounds is not a key; dpfed's word is rounds",
    "num-server-rounds": "num-server-rounds is not a key; dpfed's word is rounds",
    "fraction_fit": "fraction_fit is not a key; dpfed's word is cohort: {kind: poisson, rate: …}",
    "cohort_size": "cohort_size is not a key; dpfed's word is cohort: {kind: fixed, size: …}",
    "lr": "lr is not a key; dpfed's word is local.learning_rate",
    "local.lr": "local.lr is not a key; dpfed's word is learning_rate",
    "local.LR": "local.LR is not a key; dpfed's word is learning_rate",
    "local.local_epochs": "local.local_epochs is not a key; dpfed's word is epochs",
    "privacy.record.max_grad_norm": "privacy.record.max_grad_norm is not a key; dpfed's word is clip_norm",
    "privacy.record.noise_scale": "privacy.record.noise_scale is not a key; dpfed's word is noise_multiplier",
    "privacy.record.target_epsilon": "privacy.record.target_epsilon is not a key; dpfed's word is epsilon",
    "privacy.target_epsilon": "privacy.target_epsilon is not a key; dpfed's word is privacy.record.epsilon or "
    "privacy.person.epsilon or privacy.client.epsilon",
    "max_grad_norm": "max_grad_norm is not a key; dpfed's word is privacy.record.clip_norm or "
    "privacy.person.clip_norm or privacy.client.clip_norm",
    "privacy.noise_multiplier_user": "privacy.noise_multiplier_user is not a key; dpfed's word is "
    "privacy.client.noise_multiplier",
    "epsilon": "epsilon is not a key here; it belongs at privacy.record.epsilon or "
    "privacy.person.epsilon or privacy.client.epsilon",
    "batch_size": "batch_size is not a key here; it belongs at local.batch_size",
    "secure_mode": "secure_mode is not needed: noise always comes from a cryptographic source; leave it out",
    "data.dataset": "data.dataset is not a key; dpfed's word is source",
    "data.partition.num_clients": "data.partition.num_clients is not a key; dpfed's word is clients",
    "data.partiton": "data.partiton is not a key; did you mean partition?",
    "Rounds": "Rounds is not a key; write it rounds",
    "data.partition.alpha": "data.partition.alpha is not a key here; it belongs at data.partition.alpha "
    "(kind dirichlet)",
    "data.size": "data.size is not a key; did you mean sizes?",
    "rate": "rate is not a key here; it belongs at cohort.rate (kind poisson)",
    "secret": "secret is not a key here; it belongs at cohort.secret (kind poisson or fixed)",
    "zzz": "zzz is not a key; there are name, data, model",
}


@pytest.mark.parametrize("key", UNKNOWN)
def test_an_unknown_key_is_answered_with_our_word(plain, key):
    with pytest.raises(InvalidArgument) as refused:
        RunConfig.of(plain({key: 1}))
    assert str(refused.value).startswith(UNKNOWN[key])


def test_a_word_of_another_program_is_not_also_reported_as_missing(plain):
    with pytest.raises(InvalidArgument) as refused:
        RunConfig.of(plain({"rounds": None, "num_rounds": 5}))
    assert str(refused.value) == "num_rounds is not a key; dpfed's word is rounds"


def test_every_thing_that_is_wrong_has_its_own_sentence_with_its_line():
    text = "name: x\nrounds: 0\nlr: 1\nmodel: {kind: logistic,\n  loss: 3}\n"
    with pytest.raises(InvalidArgument) as refused:
        RunConfig.parse(text, file="run.yaml")
    assert str(refused.value).splitlines() == [
        "run.yaml, line 3: lr is not a key; dpfed's word is local.learning_rate",
        "run.yaml, line 1: data is missing: the records, who holds them, and what of them is public",
        "run.yaml, line 5: model.loss must be text, got 3: put it in quotes",
        "run.yaml, line 2: rounds must be at least 1, got 0",
        "run.yaml, line 1: local is missing: what a client does in a round",
        "run.yaml, line 1: privacy is missing: whom the run protects, and how well",
    ]


def keys(block, above=""):
    from dpfed.config.fields import blocks_in

    for name, field in block.model_fields.items():
        yield above + name
        for inner in blocks_in(field):
            yield from keys(inner, f"{above}{name}.")


def test_every_word_we_answer_with_is_a_key():
    paths = set(keys(RunConfig))
    names = {path.rpartition(".")[2] for path in paths}
    for ours in set(_OURS.values()):
        path = ours.split(":")[0]
        assert path in paths or path in names, ours


def test_no_word_of_others_is_one_of_ours():
    names = {path.rpartition(".")[2] for path in keys(RunConfig)}
    assert not {word for word in [*_OURS, *_NEEDLESS] if word in names}
    assert len(_OURS) > 150


def test_our_word_is_the_last_of_its_path():
    assert find_our_word("num-rounds") == "rounds"
    assert find_our_word("lr") == "learning_rate"
    assert find_our_word("whatever") is None
    assert explain_unknown_key("whatever", ["a"]) == "is not a key; there are a"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("rounds: [1", "line 1: this is not YAML"),
        ("rounds: 1\nlocal: {c: 1, c: 2}", "line 2: this is not YAML: c is there twice"),
        ("rounds: !!python/object:os.system {}", "line 1: this is not YAML: tags"),
        ("rounds: !!timestamp soon", "line 1: this is not YAML: tags"),
        ("rounds: !!float soon", "line 1: this is not YAML: tags"),
        ("rounds: !!binary soon", "line 1: this is not YAML: tags"),
        ("rounds: ! 5", "line 1: this is not YAML: tags"),
        ("rounds: &x [1]\nlocal: *x", "line 2: this is not YAML: aliases are not read"),
        ("rounds: &x [*x]", "aliases are not read"),
        ("rounds: 1\n--- \nlocal: 1", "this is not YAML"),
        ("rounds: \0", "this is not YAML"),
        (f"rounds: {'9' * 5000}", "this is not YAML: a number in it is too long"),
        (f"rounds: {'[' * 2000}", "this is not YAML: it is nested too deeply"),
        ('rounds: 1\nname: "a\\0b"', "line 2: name has a NUL character in it"),
        ('rounds: 1\nmodel: {options: ["a\\0b"]}', "line 2: model.options.0 has a NUL character in it"),
        ("", "the file must be a block of keys"),
        ("{rounds, local}, rounds: 1", "this is not YAML"),
        ("- 1\n#\nrounds: 1", "this is not YAML"),
        ('"rounds: 1"', "the file must be a block of keys"),
    ],
)
def test_what_is_no_configuration_is_refused(text, what):
    with pytest.raises(InvalidArgument) as refused:
        RunConfig.parse(text)
    assert what in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "rounds: @MARKER",
        "rounds: !MARKER 1",
        "rounds: &MARKER 1\nlocal: &MARKER 2",
        "%MARKER\nrounds: 1",
        "rounds: *MARKER",
        "rounds: [MARKER MARKER\nlocal: 1",
        "rounds: MARKER MARKER MARKER MARKER MARKER MARKER MARKER",
        "rounds: [MARKER]",
        "rounds: {MARKER: 1}",
        "rounds: 1\ndata: [[MARKER, 1], [MARKER, 2]]",
        "rounds: 1\ndata: {classes: [[MARKER]], sizes: {ward: MARKER MARKER MARKER MARKER MARKER MARKER MARKER}}",
        "rounds: 1\ndata: {feature_bounds: [[MARKER, MARKER, MARKER]]}",
        "rounds: 1\nledger: MARKER",
        "rounds: 1\nledger: postgresql://ann:MARKER@db/ledger",
        "rounds: 1\nledger: {url: [MARKER], account: {MARKER: 1}}",
        "rounds: 1\ntrack: {kind: mlflow, tracking_uri: [MARKER]}",
        "rounds: 1\nmodel: postgresql://ann:MARKER@db/ledger",
        "rounds: 1\nledger: {'postgresql://ann:MARKER@db/ledger': 1}",
    ],
)
def test_a_refusal_shows_no_list_no_long_text_and_no_address(text):
    with pytest.raises(InvalidArgument) as refused:
        RunConfig.parse(text)
    assert "MARKER" not in str(refused.value)
