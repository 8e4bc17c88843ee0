"""A first configuration to change: the five hospitals of the demo; `dpfed.config.drafts` writes one for a table.

>>> hospitals().config.data.names
('north', 'south', 'east', 'west', 'harbour')
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dpfed.config.defaults import Defaults
from dpfed.config.run import RunConfig
from dpfed.config.writing import Notes

HEADER = """\
# A run of dpfed. Everything in this file is public.
# What is at its default is commented out: remove the # in the first column to change it.

"""
TEST_FRACTION = 0.2

# The range in which each of the thirty measurements is expected, as constants that anybody may know: round numbers of
# the size of a cell nucleus. A real study takes the ranges of its device.
_RANGES = """8 22, 10 30, 50 150, 150 1300, .07 .13, 0 .25, 0 .3, 0 .15, .12 .25, .05 .08,
    0 1, 0 3, 0 8, 0 120, 0 .015, 0 .08, 0 .1, 0 .03, 0 .04, 0 .01,
    8 28, 12 42, 50 190, 200 2000, .08 .19, 0 .7, 0 .8, 0 .25, .15 .45, .05 .13"""


@dataclass(frozen=True)
class Template:
    """A configuration to begin with, and notes on some of its settings."""

    config: RunConfig
    notes: Notes = field(default_factory=dict)

    def to_yaml(self) -> str:
        """Return the template as a commented YAML file."""
        return HEADER + self.config.to_yaml(self.notes)


def hospitals() -> Template:
    """Return five unequal hospitals with scikit-learn's breast-cancer data and ε = 4 for each record."""
    data = {
        "source": "sklearn:breast_cancer",
        "classes": ["malignant", "benign"],
        "shape": [30],
        "feature_bounds": [[float(end) for end in pair.split()] for pair in _RANGES.split(",")],
        "partition": {"kind": "quantity", "sizes": [182, 114, 68, 55, 36]},
        "names": ["north", "south", "east", "west", "harbour"],
        "test_is_public": True,
    }
    notes = {
        "data.feature_bounds": ["Round numbers of the size of a cell nucleus, not taken from the patients."],
        "data.partition.sizes": ["They are also what each hospital declares, as data.sizes is not given."],
    }
    common = make_common("hospitals", data, Defaults(1e-5, rounds=10, steps=10, batch_size=16, learning_rate=1.0))
    return Template(RunConfig.of(common | {"weighting": "declared"}), notes)


TEMPLATES = {"hospitals": hospitals}


def make_common(name: str, data: dict[str, Any], chosen: Defaults) -> dict[str, Any]:
    """Return the values of a run that begins with logistic regression in style sample, at ε = 4."""
    return {
        "name": name,
        "data": data | {"test_fraction": TEST_FRACTION},
        "model": {"kind": "logistic"},
        "rounds": chosen.rounds,
        "local": {
            "steps": chosen.steps,
            "batch_size": chosen.batch_size,
            "learning_rate": chosen.learning_rate,
        },
        "privacy": {"style": "sample", "record": {"epsilon": 4.0, "delta": chosen.delta, "clip_norm": 1.0}},
    }
