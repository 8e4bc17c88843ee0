"""What a tracker is told of a run: the facts of the report that may be shared, as flat names and numbers.

A tracking server is shown around more freely than a run's directory. So nothing reaches it but constants of the plan,
ε so far and scores by the rules of the report: those on records that nobody declared public stay away.

>>> spent = [{"epsilon": 1.5, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}]
>>> numbers({"round": 1, "spent": spent, "metrics": {"accuracy": {"value": 0.9, "mark": ""}}})
{'epsilon/record': 1.5, 'accuracy': 0.9}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dpfed.plan import Plan
from dpfed.report.run_facts import round_facts


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """ε so far of each unit and the scores of a round, of what `RoundResult.facts` says."""
    facts = round_facts(record)
    epsilons = {f"epsilon/{unit}": epsilon for unit, epsilon in facts.epsilon.items()}
    scores = {score.name: score.value for score in facts.scores if score.value is not None and not score.mark}
    return epsilons | scores


def constants(plan: Plan) -> dict[str, str]:
    """The plan's numbers by dotted name; under ``local`` those in which all clients agree, and how many there are."""
    plain = json.loads(plan.to_json())
    parts = list(plain.pop("local").values())
    alike = {name: value for name, value in parts[0].items() if all(part[name] == value for part in parts)}
    return dict(_flat("", plain | {"clients": len(parts), "local": alike}))


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        elif value is not None:
            yield f"{prefix}{name}", str(value)
