from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

PLAIN: dict[str, Any] = {
    "name": "wards",
    "data": {"source": "sklearn:digits", "partition": {"kind": "iid", "clients": 10}, "sizes": 140},
    "model": {"kind": "logistic"},
    "rounds": 5,
    "local": {"steps": 10, "batch_size": 14, "learning_rate": 0.5},
    "privacy": {"style": "sample", "record": {"epsilon": 4, "delta": 1e-5, "clip_norm": 1}},
}


@pytest.fixture
def plain() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A small configuration as plain values, with changes by dotted key; None takes a key out."""

    def changed(changes: dict[str, Any]) -> dict[str, Any]:
        values = copy.deepcopy(PLAIN)
        for path, value in changes.items():
            *above, key = path.split(".")
            block = values
            for step in above:
                block = block.setdefault(step, {})
            if value is None:
                block.pop(key)
            else:
                block[key] = value
        return values

    return changed
