from __future__ import annotations

import sys

import pytest

from dpfed.errors import InvalidArgument
from dpfed.references import explain_torch_error, is_reference, resolve


def test_a_module_beside_the_configuration_is_found(tmp_path):
    (tmp_path / "own_thing_a.py").write_text("class Net:\n    depth = 3\n")
    assert resolve("own_thing_a:Net.depth", tmp_path) == 3
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize("text", ["model", "a.b", ":x", "a:", "a b:c", "a/b:c", "../a:b", "1a:b", "sklearn:digits", ""])
def test_what_is_no_reference_is_told_apart(text):
    assert not is_reference(text)
    with pytest.raises(InvalidArgument, match=r"package\.module:name"):
        resolve(text)


@pytest.mark.parametrize(("text", "what"), [("no_such_module_x:f", "cannot be imported"), ("math:nothing", "has no")])
def test_a_name_that_leads_nowhere_is_refused(text, what):
    with pytest.raises(InvalidArgument, match=what):
        resolve(text)


def test_what_torch_says_of_made_up_records_is_shown_and_what_other_code_says_is_not():
    import torch

    def of_torch():
        return torch.zeros(2, 3) @ torch.zeros(2, 3)

    def of_its_layers():
        return torch.nn.Linear(3, 2)(torch.zeros(2, 4))

    def own():
        raise RuntimeError("Smith, 47")

    def converted():
        return float("Smith, 47")

    def named():
        return {}["Smith, 47"]

    for fails, is_shown in ((of_torch, True), (of_its_layers, True), (own, False), (converted, False), (named, False)):
        with pytest.raises(Exception, match=r".") as caught:
            fails()
        said = explain_torch_error(caught.value)
        assert "Smith" not in said
        assert ("shapes" in said) == is_shown, said
