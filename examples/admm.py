"""FedAvg and three ADMMs on one real table, each with the same ε in total for every record, over five seeds.

    python examples/admm.py               # some minutes; prints a table and draws admm.png
    python examples/admm.py --seeds 1     # one seed

Eight clinics hold scikit-learn's breast-cancer records (569 of them, 30 measurements) in unequal shares of the two
classes. All algorithms take sixty steps at the same batch size and clip norm, so their events, their noise and their ε
are the same: FedAvg, ICEADMM and IIADMM in six rounds of ten steps, IADMM in sixty rounds of one. Each has the better
of two learning rates, by the same held-out records: in a real study that choice is a release too. A seed decides which
records are held out, who holds the others, and the noise: that makes a run repeatable and not private.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dpfed.config import RunConfig
from dpfed.federated.launch import prepare

HERE = Path(__file__).parent
EPSILONS = (1.0, 4.0, 8.0, None)  # in total; None is without noise and clip
RATES = (0.1, 0.5)
CLINICS, STEPS, SEEDS = 8, 60, 5
KINDS: dict[str, tuple[int, dict[str, Any]]] = {  # rounds, algorithm
    "FedAvg": (6, {"kind": "fedavg"}),
    "IADMM": (60, {"kind": "iadmm", "rho": 0.5}),
    "ICEADMM": (6, {"kind": "iceadmm", "rho": 0.5}),
    "IIADMM": (6, {"kind": "iiadmm", "rho": 0.5}),
}


def make_config(name: str, epsilon: float | None, rate: float, seed: int) -> RunConfig:
    """Return the run of one algorithm with that total ε for a record."""
    rounds, algorithm = KINDS[name]
    record = {"epsilon": epsilon, "delta": 1e-5, "clip_norm": 1.0}
    bounds = RunConfig.read(HERE / "hospitals.yaml").data.model_dump(mode="json")["feature_bounds"]
    return RunConfig.of(
        {
            "name": "admm",
            "data": {
                "source": "sklearn:breast_cancer",
                "feature_bounds": bounds,
                "partition": {"kind": "dirichlet", "clients": CLINICS, "alpha": 0.5, "minimum": 20},
                "test_fraction": 0.25,
                "test_is_public": True,
                "sizes": "public",
                "seed": seed,
            },
            "model": {"kind": "logistic"},
            "rounds": rounds,
            "local": {"steps": STEPS // rounds, "batch_size": 10, "learning_rate": rate},
            "weighting": "equal",
            "algorithm": algorithm,
            "privacy": {"style": "none"} if epsilon is None else {"style": "sample", "record": record},
            "runner": "one_by_one",
            "seed": seed,
        }
    )


def measure_accuracy(name: str, epsilon: float | None, rate: float, seed: int) -> float:
    """Return the accuracy on the held-out records after the last round."""
    launch = prepare(make_config(name, epsilon, rate, seed))
    with tempfile.TemporaryDirectory() as folder, launch.ledger(folder) as ledger:
        *_, last = launch.federation(folder, ledger)
    return next(score.value for score in last.metrics if score.name == "accuracy")


def main() -> None:
    """Print a table of accuracies, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--to", type=Path, default=Path("admm.png"))
    asked = parser.parse_args()
    found = {name: [find_best(name, epsilon, asked.seeds) for epsilon in EPSILONS] for name in KINDS}
    print("| total ε | " + " | ".join(found) + " |")
    print("|---|" + "---|" * len(found))
    for place, epsilon in enumerate(EPSILONS):
        cells = [f"{100 * mean(rows[place]):.1f} ± {100 * spread(rows[place]):.1f}" for rows in found.values()]
        print(f"| {'no noise' if epsilon is None else f'{epsilon:g}'} | " + " | ".join(cells) + " |")
    draw(found, asked.to)
    print(f"wrote {asked.to}")


def find_best(name: str, epsilon: float | None, seeds: int) -> list[float]:
    """Return the accuracy for each seed at the learning rate whose mean is the best."""
    return max(([measure_accuracy(name, epsilon, rate, seed) for seed in range(seeds)] for rate in RATES), key=mean)


def spread(values: list[float]) -> float:
    """Return the standard deviation; zero of one value."""
    return stdev(values) if len(values) > 1 else 0.0


def draw(found: dict[str, list[list[float]]], path: Path) -> None:
    """Draw the mean accuracy of each algorithm by ε, with the standard deviation over the seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, rows) in enumerate(found.items()):
        places = [place + 0.08 * (number - 1.5) for place in range(len(EPSILONS))]
        heights = [100 * mean(row) for row in rows]
        axes.errorbar(places, heights, [100 * spread(row) for row in rows], marker="o", capsize=3, label=name)
    axes.set_xticks(range(len(EPSILONS)), ["no noise" if each is None else f"ε = {each:g}" for each in EPSILONS])
    axes.set_ylabel("accuracy on held-out records, %")
    axes.set_title("One table, eight clinics, the same total ε")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
