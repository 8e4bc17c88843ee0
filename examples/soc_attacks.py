"""Print how accurate soc.yaml is by rule and attack, as a table: `python examples/soc_attacks.py`.

Two of eight companies attack in every round. Bulyan would need eleven companies to bear two, and is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpfed.config.run import RunConfig
from dpfed.errors import BreakdownError
from dpfed.federated import launch

HERE = Path(__file__).parent
RULES: dict[str, dict[str, Any]] = {
    "mean": {"kind": "mean"},
    "coordinate_median": {"kind": "coordinate_median", "max_faulty": 2},
    "trimmed_mean": {"kind": "trimmed_mean", "max_faulty": 2},
    "geometric_median": {"kind": "geometric_median", "max_faulty": 2},
    "krum": {"kind": "krum", "max_faulty": 2},
    "nnm + trimmed_mean": {"max_faulty": 2},
    "bulyan": {"kind": "bulyan", "max_faulty": 2},
}
ATTACKS = ("none", "sign_flip", "scaling", "gaussian", "alie", "mimic", "label_flip", "nan")


def measure(rule: str, attack: str) -> str:
    """Return the accuracy after the last round on connections held out, or that the rule is refused."""
    plain = RunConfig.read(HERE / "soc.yaml").model_dump(mode="json", exclude_unset=True, exclude={"quarantine"})
    attacked = {} if attack == "none" else {"attack_sim": f"{attack}:2"}
    config = RunConfig.of({**plain, "aggregation": RULES[rule], **attacked})
    try:
        prepared = launch.prepare(config, HERE)
    except BreakdownError:
        return "refused"
    with tempfile.TemporaryDirectory() as folder, prepared.ledger(folder) as ledger:
        *_, last = prepared.federation(folder, ledger)
    return f"{next(score.value for score in last.metrics if score.name == 'accuracy'):.3f}"


def main(rules: Iterable[str] = RULES, attacks: tuple[str, ...] = ATTACKS) -> None:
    """Print the table, a line as soon as it is measured."""
    print(f"| rule | {' | '.join(attacks)} |\n|{'---|' * (1 + len(attacks))}")
    for rule in rules:
        print(f"| {rule} | {' | '.join(measure(rule, attack) for attack in attacks)} |", flush=True)


if __name__ == "__main__":
    main()
