"""What guessing would reach, from what anybody may know: a model that is no better is useless, whatever it cost.

Whoever always says the most frequent class is right as often as that class is there. Its share is taken from declared
counts of the classes or from released ones; a score of the model, from records that are public or from a release.

>>> share_of_guessing({"well": 630, "ill": 370})
0.63
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dpfed.config.run import RunConfig
from dpfed.plan.measure import CONFUSION, SCORES

BETTER = "The model is better than guessing"
NO_BETTER = "The model is NO BETTER THAN GUESSING"
UNSURE = "NOTHING SHOWS that the model is better than guessing, as far as noise and chance let anybody see"
SITES = "its sites alone know, unless metrics: in the run file releases figures"


def share_of_guessing(counts: Mapping[Any, float]) -> float | None:
    """Return how often the most frequent class is right; None where there are no counts."""
    return max(counts.values()) / sum(counts.values()) if sum(counts.values()) > 0 else None


def share_of_released(released: Mapping[str, Any]) -> float | None:
    """Return the share of the most frequent class by the noised counts of a round; None if they are not by class."""
    if released.get("kind") not in (CONFUSION, SCORES):
        return None
    counts = np.asarray(released["counts"], dtype=float)
    classes = 2 if released["kind"] == SCORES else math.isqrt(len(counts))
    return share_of_guessing(dict(enumerate(np.maximum(counts.reshape(classes, -1).sum(axis=1), 0.0))))


def compare_with_guessing(
    config: RunConfig,
    facts: Mapping[str, Any],
    *,
    is_networked: bool = False,
    released: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Yield what guessing would reach and whether the model is better, as far as everyone may know it.

    `facts` are those of a run's public files: its directory and its metrics. `released` is what was counted, with
    noise, after its last measured round.
    """
    counted = released or {}
    guess, source = share_of_guessing(config.data.class_counts), "declared counts"
    score = facts["metrics"].get("accuracy", {}).get("value")
    figure = counted.get("figures", {}).get("accuracy", {})
    is_known = figure.get("value") is not None and (figure["low"] > 0 or figure["high"] < 1)
    if guess is None and is_known:
        guess, source = share_of_released(counted), "released counts, with noise"
    owner = SITES if is_networked else f"for the owner alone: dpfed evaluate {facts['directory']}"
    if guess is None:
        yield f"Is it better than guessing? {owner[0].upper()}{owner[1:]}"
    elif score is not None:
        verdict = BETTER if score > guess else NO_BETTER
        yield f"{verdict}: right in {score:.2%}, and the most frequent class in {guess:.2%} ({source})."
    elif is_known:
        yield _judge_released(figure, guess, source)
    else:
        said = f"Guessing the most frequent class would be right in {guess:.2%} ({source})"
        yield f"{said}; whether the model is better, {owner}"


def _judge_released(figure: Mapping[str, float], guess: float, source: str) -> str:
    """Return the verdict on a released accuracy, whose interval decides."""
    verdict = BETTER if figure["low"] > guess else NO_BETTER if figure["high"] <= guess else UNSURE
    right = f"right in {figure['value']:.1%} (95 %: {figure['low']:.1%} to {figure['high']:.1%}, released)"
    return f"{verdict}: {right}, and the most frequent class in {guess:.1%} ({source})."
