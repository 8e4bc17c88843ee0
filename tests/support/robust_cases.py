"""Honest updates, robust rules in a form that needs `max_faulty` alone, and how far faulty rows can move each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dpfed.aggregation import robust
from dpfed.randomness import SeededSource

CASES = json.loads((Path(__file__).parents[1] / "reference" / "robust.json").read_text(encoding="utf-8"))
CLIP = 2.0


def cases(*kinds):
    return [case for case in CASES if case["kind"] in kinds]


def nnm_trimmed_mean(updates, *, max_faulty):
    return robust.trimmed_mean(robust.nnm(updates, max_faulty=max_faulty), max_faulty=max_faulty)


def clipped(updates, *, max_faulty):
    return robust.norm_bounded_mean(updates, max_faulty=max_faulty, clip_norm=CLIP)


def centred(updates, *, max_faulty):
    return robust.centered_clipping(updates, max_faulty=max_faulty, clip_norm=CLIP)


RULES = {
    "coordinate_median": robust.coordinate_median,
    "trimmed_mean": robust.trimmed_mean,
    "mean_around_median": robust.mean_around_median,
    "geometric_median": robust.geometric_median,
    "krum": robust.krum,
    "multi_krum": robust.multi_krum,
    "bulyan": robust.bulyan,
    "minimum_diameter": robust.minimum_diameter,
    "nnm+trimmed_mean": nnm_trimmed_mean,
    "norm_bounded_mean": clipped,
    "centered_clipping": centred,
}
LEAST = {name: (4, 3) if name == "bulyan" else (2, 3) for name in RULES}  # n = a·f + b in the tests of all rules


def make_honest(count, size, seed=0):
    return 1 + SeededSource(seed).normal((count, size))


def reach(rule, honest, faulty):
    """Return how far from the honest mean the rule may end, whatever `faulty` further rows are (L2)."""
    count, size = len(honest) + faulty, honest.shape[1]
    apart = np.linalg.norm(honest[:, None] - honest[None], axis=2).max()
    width = np.sqrt(size) * (honest.max(axis=0) - honest.min(axis=0)).max()
    farthest = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    clipped_reach = 2 * CLIP + np.linalg.norm(honest.mean(axis=0))
    return {
        "coordinate_median": width,
        "trimmed_mean": width,
        "mean_around_median": 2 * width,
        "geometric_median": 2 * (count - faulty) / (count - 2 * faulty) * farthest,
        "krum": apart * (1 + np.sqrt(count - faulty - 2)),
        "multi_krum": apart * (1 + np.sqrt(count - faulty - 2)),
        "bulyan": 2 * width,
        "minimum_diameter": 2 * apart,
        "nnm+trimmed_mean": width + 2 * np.sqrt(size) * apart,
        "norm_bounded_mean": clipped_reach,
        "centered_clipping": clipped_reach,
    }[rule]
