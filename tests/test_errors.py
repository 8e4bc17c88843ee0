from __future__ import annotations

import inspect
import re

import pytest

from dpfed import errors
from dpfed.errors import AdjacencyMismatch, InfeasibleTarget, InvalidArgument, LedgerCorrupted, PrivacyError

ALL = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, PrivacyError)}


def test_the_tree_in_the_docstring_is_the_tree():
    lines = [re.search(r"(?P<indent>[ │├└─]*)(?P<name>[A-Z]\w+)", line) for line in errors.__doc__.splitlines()]
    above, found = [], {}
    for line in lines[lines.index(next(each for each in lines if each and each["name"] == "PrivacyError")) :]:
        if line is None or line["name"] not in ALL:
            break
        depth = len(line["indent"]) // 4 - 1
        above[depth:] = [line["name"]]
        found[line["name"]] = above[depth - 1] if depth else None
    assert found == {
        name: None if kind is PrivacyError else next(base.__name__ for base in kind.__bases__ if base.__name__ in ALL)
        for name, kind in ALL.items()
    }


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"PrivacyError"}))
def test_every_error_is_also_of_a_builtin_kind(name):
    builtins = (ValueError, TypeError, NotImplementedError, RuntimeError, LookupError)
    assert issubclass(ALL[name], PrivacyError)
    assert issubclass(ALL[name], builtins)


def test_an_error_carries_what_a_program_asks_it_for():
    assert InvalidArgument("delta", "too large").argument == "delta"
    assert AdjacencyMismatch("the other relation").argument == "adjacency"
    infeasible = InfeasibleTarget("epsilon", "no noise is enough", ["raise δ", "train less"])
    assert infeasible.remedies == ("raise δ", "train less")
    assert str(infeasible) == "no noise is enough; raise δ; train less"
    assert (LedgerCorrupted("rows do not add up", 7).row, LedgerCorrupted("no idea").row) == (7, None)
