from __future__ import annotations

import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.torch.named_check import check_named

OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, features, width=2):
        super().__init__()
        self.layer = nn.Linear(features, width)
    def forward(self, x):
        return self.layer(x)

net = Net(4)

def nothing():
    return 3

def needs(depth):
    return Net(4)
"""


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("mlp", {"shape": (4,), "options": {"hidden": [3]}}),  # a quantity
        ("logistic", {"shape": (4,), "classes": 1, "loss": "binary_cross_entropy"}),
        (
            "transformer",
            {"shape": (3,), "tokens": 5, "classes": 2, "options": {"width": 4, "heads": 2, "layers": 1, "length": 3}},
        ),
        (
            "unet",
            {
                "shape": (1, 4, 4),
                "target_shape": (4, 4),
                "classes": 2,
                "options": {"widths": [2, 4], "groups": 1},
            },
        ),
    ],
)
def test_our_kinds_are_sound(kind, settings):
    found = check_named(kind, searches=1, **settings)
    assert found.is_sound
    assert found.moved > 0.5


def test_what_a_model_takes_of_the_records_is_filled_in(tmp_path):
    (tmp_path / "own_checked.py").write_text(OWN)
    found = check_named("own_checked:Net", shape=(4,), classes=2, directory=tmp_path, searches=1)
    assert found.model == "Net, 10 numbers"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("nonsense", "must be one of logistic"),
        ("own_refused:net", "no class or function that makes a model"),
        ("own_refused:nothing", "makes no torch model, but int"),
        ("own_refused:needs", "depth"),
        ("own_refused:missing", "has no missing"),
    ],
)
def test_what_makes_no_model_is_refused(tmp_path, kind, why):
    (tmp_path / "own_refused.py").write_text(OWN)
    with pytest.raises(InvalidArgument) as refused:
        check_named(kind, shape=(4,), classes=2, directory=tmp_path)
    assert why in str(refused.value)
