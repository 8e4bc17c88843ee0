from __future__ import annotations

import pytest

from dpfed.config import RunConfig
from dpfed.errors import InvalidArgument


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
