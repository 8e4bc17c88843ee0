"""PATE on the Adult census table: accuracy, ε and share of queries answered, over three seeds.

    python examples/get_data.py adult
    python examples/pate_adult.py examples/data/adult.csv

Of 45,222 rows 10,000 are kept for the test and 1,000 stand in for public examples, without their labels; the others are
the private records of the teachers. A seed chooses these rows, the teachers' parts and the noise, so nothing here is
private: leave `random_state` out for that.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from dpfed.guarantee import Guarantee
from dpfed.pate import PATEClassifier

TEST, PUBLIC = 10_000, 1_000
LABEL = "salary_>50K"
LEFT_OUT = {"fnlwgt", "salary_<=50K", LABEL}  # a weight of the census, and the label
# From the questionnaire, not from the rows: ages, years of school, dollars, hours of a week. Other columns are 0 or 1,
# and stay so between -1 and 1: most are 0, which is then 0 for the model too.
BOUNDS = {
    "age": (17, 90),
    "education-num": (1, 16),
    "capital-gain": (0, 20_000),
    "capital-loss": (0, 4_000),
    "hours-per-week": (1, 99),
}
WAYS = {
    "GNMax, 100 answers": {"vote": "gnmax", "max_answers": 100},
    "GNMax, 1,000 answers": {"vote": "gnmax", "max_answers": 1_000},
    "Confident, 1,000 queries": {"vote": "confident", "threshold": 0.8, "threshold_noise": 4.0, "max_answers": 400},
    "Laplace, 100 answers": {"vote": "laplace", "max_answers": 100},
}


def read(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[list[float], list[float]]]:
    """Return features, labels and the public bounds of the features."""
    with path.open(newline="") as file:
        names, *rows = csv.reader(file)
    table = np.array(rows, dtype=float)
    kept = [place for place, name in enumerate(names) if name not in LEFT_OUT]
    bounds = [BOUNDS.get(names[place], (-1, 1)) for place in kept]
    low, high = ([pair[side] for pair in bounds] for side in (0, 1))
    return table[:, kept], table[:, names.index(LABEL)].astype(int), (low, high)


def measure(data: tuple, seed: int, epsilon: float, ways: dict) -> tuple[float, float, float, float]:
    """Return accuracy, ε, the share of queries that were answered, and the share of these that is right."""
    features, labels, bounds = data
    order = np.random.default_rng(seed).permutation(len(labels))
    test, public, private = np.split(order, [TEST, TEST + PUBLIC])
    model = PATEClassifier(
        Guarantee(epsilon, 1e-5),
        teachers=250,
        classes=(0, 1),
        feature_bounds=bounds,
        partition_key=seed,
        random_state=seed,
        **ways,
    )
    model.fit(features[private], labels[private], public=features[public])
    right = np.mean(model.answers_ == labels[public][model.answered_])
    return model.score(features[test], labels[test]), model.epsilon_, model.n_answers_ / len(public), right


def main() -> None:
    """Print one line for each way to vote and each ε, over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 2.0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    data = read(options.table)
    for name, ways in WAYS.items():
        for epsilon in options.epsilon:
            found = np.array([measure(data, seed, epsilon, ways) for seed in range(options.seeds)])
            accuracy, spent, answered, right = found.mean(axis=0)
            print(
                f"{name}: ε = {spent:.3f}, accuracy {accuracy:.4f} ± {found[:, 0].std():.4f}, "
                f"answered {answered:.1%}, of these right {right:.1%}"
            )


if __name__ == "__main__":
    main()
