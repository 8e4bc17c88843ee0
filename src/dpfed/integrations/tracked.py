"""What is sent to a tracker: the facts of the shareable report, as flat names and numbers.

More people see a tracking server than a run's directory. So it gets constants of the plan, ε so far and the scores of
the shareable report, and nothing else: scores on records that nobody declared public are not sent.

>>> spent = [{"epsilon": 1.5, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}]
>>> numbers({"round": 1, "spent": spent, "metrics": {"accuracy": {"value": 0.9, "mark": ""}}})
{'epsilon/record': 1.5, 'accuracy': 0.9}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dpfed.plan.plan import Plan
from dpfed.report.facts import read_round
from dpfed.runs.rounds import RoundRecord


def numbers(record: RoundRecord) -> dict[str, float]:
    """Return ε so far of each unit and the scores of a round, from its record (`RoundResult.facts`)."""
    facts = read_round(record)
    epsilons = {f"epsilon/{unit}": epsilon for unit, epsilon in facts.epsilon.items()}
    scores = {score.name: score.value for score in facts.scores if score.value is not None and not score.mark}
    released = {f"released/{figure.name}": figure.value for figure in facts.released if figure.value is not None}
    return epsilons | scores | released


def constants(plan: Plan) -> dict[str, str]:
    """Return the plan's constants by dotted name, with the number of clients and what is the same for all of them."""
    plain = json.loads(plan.to_json())
    parts = list(plain.pop("local").values())
    alike = {name: value for name, value in parts[0].items() if all(part[name] == value for part in parts)}
    return dict(_flatten("", plain | {"clients": len(parts), "local": alike}))


def _flatten(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(f"{prefix}{name}.", value)
        elif value is not None:
            yield f"{prefix}{name}", str(value)
