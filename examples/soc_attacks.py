"""Print how accurate soc.yaml is by rule and attack, as a table: `python examples/soc_attacks.py`.

Two of eight companies attack in every round. Bulyan would need eleven companies to bear two, and is refused. A cell is
the mean of three seeds with its standard error; that of `backdoor` has the trigger's success rate beside it, which is
how many connections of other classes are taken for the first one when they carry the trigger.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.config.run import RunConfig
from dpfed.data.poison import measure_backdoor
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
ATTACKS = ("none", "sign_flip", "scaling", "gaussian", "alie", "min_sum", "mimic", "label_flip", "backdoor", "nan")
SEEDS = (1, 2, 3)


def measure(rule: str, attack: str, seeds: Iterable[int] = SEEDS) -> str:
    """Return accuracy ± standard error after the last round, or that the rule is refused."""
    try:
        found = np.array([run(rule, attack, seed) for seed in seeds])
    except BreakdownError:
        return "refused"
    cell = describe(found[:, 0])
    return f"{cell} (trigger {describe(found[:, 1])})" if attack in ("none", "backdoor") else cell


def run(rule: str, attack: str, seed: int) -> tuple[float, float]:
    """Return accuracy on connections held out, and how often a trigger in them works."""
    plain = RunConfig.read(HERE / "soc.yaml").model_dump(mode="json", exclude_unset=True, exclude={"quarantine"})
    attacked = {} if attack == "none" else {"attack_sim": f"{attack}:2"}
    config = RunConfig.of({**plain, "aggregation": RULES[rule], "seed": seed, **attacked})
    prepared = launch.prepare(config, HERE)
    with tempfile.TemporaryDirectory() as folder, prepared.ledger(folder) as ledger:
        *_, last = prepared.federation(folder, ledger)
    accuracy = next(score.value for score in last.metrics if score.name == "accuracy")
    return accuracy, measure_trigger(prepared, last.weights)


def measure_trigger(prepared: launch.Launch, weights: Any) -> float:
    """Return the success rate of the trigger on connections held out."""
    held_out = prepared.test
    if held_out is None:
        raise SystemExit("soc.yaml holds no connections out: say test_fraction")

    def predict(features: np.ndarray) -> np.ndarray:
        outputs, _ = prepared.model.predict(weights, (features, np.zeros(len(features), dtype=np.int64)))
        return np.asarray(outputs).argmax(axis=1)

    return measure_backdoor(predict, held_out)


def describe(values: np.ndarray) -> str:
    """Return the mean with its standard error."""
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{values.mean():.3f} ± {error:.3f}"


def main(rules: Iterable[str] = RULES, attacks: tuple[str, ...] = ATTACKS, seeds: Iterable[int] = SEEDS) -> None:
    """Print the table, a line as soon as it is measured."""
    print(f"| rule | {' | '.join(attacks)} |\n|{'---|' * (1 + len(attacks))}")
    for rule in rules:
        print(f"| {rule} | {' | '.join(measure(rule, attack, tuple(seeds)) for attack in attacks)} |", flush=True)


if __name__ == "__main__":
    main()
