"""Which federated algorithm a plan names: a word and its constants, which mean nothing here.

>>> Algorithm("fedprox", {"proximity": 0.1})
Algorithm(name='fedprox', parameters={'proximity': 0.1})
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpfed.errors import InvalidArgument


@dataclass(frozen=True)
class Algorithm:
    """A name, or `package.module:name`, and parameters that are plain JSON values."""

    name: str = "fedavg"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise InvalidArgument("algorithm", f"algorithm must have a name, got {self.name!r}")
        try:
            # A copy that nobody else holds.
            plain = json.loads(json.dumps(dict(self.parameters), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InvalidArgument("algorithm", f"parameters of {self.name} must be plain values: {error}") from None
        object.__setattr__(self, "parameters", plain)

    def to_plain(self) -> dict[str, Any]:
        """Return the algorithm as plain JSON values."""
        return {"name": self.name, "parameters": dict(self.parameters)}


def server_rate(rate: float) -> dict[str, float]:
    """Return the parameter that hands this server learning rate to an algorithm; none for 1.

    A rate of 1 leaves it to the algorithm's own parameters, and one of somebody's own need not have any.
    """
    return {} if rate == 1 else {"server_learning_rate": rate}
