"""Draw docs/how-to/central-shuffle-local.svg: the error of one count in three models of trust, measured.

    python docs/dev/draw_count.py

Every point is the root mean square of 400 errors, from a seeded source, so the picture is the same each time.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from dpfed import events as ev
from dpfed.accounting import epsilon
from dpfed.randomness import SeededSource

EPSILON, DELTA, REPEATS = 1.0, 1e-6, 400
USERS = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
OUT = Path(__file__).parents[1] / "how-to" / "central-shuffle-local.svg"
MODELS = {"local": ("#b3261e", "s"), "shuffle": ("#8a5a00", "o"), "central": ("#1f5f8b", "^")}


def find_report(users: int) -> float:
    """Return the largest ε₀ of a report at which all of them, shuffled, keep ε."""
    low, high = EPSILON, 12.0
    for _ in range(12):
        middle = (low + high) / 2
        event = ev.Shuffled(ev.RandomizedResponse(middle), users)
        low, high = (middle, high) if epsilon(event, DELTA, adjacency="replace_one") <= EPSILON else (low, middle)
    return low


def respond(users: int, report: float, source: SeededSource) -> float:
    """Return the error of the count of ones, a third of all, from randomized responses."""
    truth = 1 / (1 + np.exp(-report))
    ones = users // 3
    answers = source.uniform(users) < np.where(np.arange(users) < ones, truth, 1 - truth)
    return float((answers.sum() - users * (1 - truth)) / (2 * truth - 1) - ones)


def measure(users: int) -> dict[str, float]:
    """Return the root mean square error of the count in each model."""
    source, report = SeededSource(users), find_report(users)
    errors = {
        "central": source.laplace(REPEATS) / EPSILON,
        "shuffle": [respond(users, report, source) for _ in range(REPEATS)],
        "local": [respond(users, EPSILON, source) for _ in range(REPEATS)],
    }
    return {name: float(np.sqrt(np.mean(np.square(found)))) for name, found in errors.items()}


def main() -> None:
    """Measure and draw."""
    found = [measure(users) for users in USERS]
    with mpl.rc_context({"svg.hashsalt": "dpfed", "font.size": 9}):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        for name, (colour, marker) in MODELS.items():
            values = [each[name] for each in found]
            axes.loglog(USERS, values, color=colour, marker=marker, linewidth=1.5)
            axes.annotate(name, (USERS[-1], values[-1]), xytext=(7, -3), textcoords="offset points", color=colour)
        axes.set_xlabel("users")
        axes.set_ylabel("error of the count (root mean square)")
        axes.set_xlim(80, 260_000)
        axes.grid(alpha=0.2, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(OUT, format="svg", metadata={"Date": None, "Creator": None})
    for users, row in zip(USERS, found, strict=True):
        print(users, {name: round(value, 1) for name, value in row.items()})


if __name__ == "__main__":
    main()
