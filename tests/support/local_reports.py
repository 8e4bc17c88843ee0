"""What tests of local mechanisms share: known answers, and the χ² bound on bias and variance of an estimate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats

from dpfed.randomness import RandomSource, SeededSource

ALPHA = 1e-6
REPEATS = 400
CASES = json.loads((Path(__file__).parents[1] / "reference" / "local.json").read_text(encoding="utf-8"))


def known(group: str) -> list[dict]:
    """Return the known answers of a group."""
    found = [case for case in CASES if case["group"] == group]
    assert found
    return found


def require_moments(errors: list[float], variance: float) -> None:
    """Fail unless independent errors have mean 0 and that variance: false-alarm probability 2e-6 in all."""
    scaled = np.asarray(errors) / np.sqrt(variance)
    edge = stats.norm.isf(ALPHA / 2)
    assert abs(scaled.mean()) * np.sqrt(len(scaled)) < edge
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], len(scaled))
    assert low < np.sum(scaled**2) < high


def repeat(
    estimate: Callable[[RandomSource, int], float], truth: float, seed: int, repeats: int = REPEATS
) -> list[float]:
    """Return the errors of so many estimates, from one seeded stream."""
    source = SeededSource(seed)
    return [estimate(source, index) - truth for index in range(repeats)]
