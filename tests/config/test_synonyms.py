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
