"""What guessing would reach, from what anybody may know: a model that is no better is useless, whatever it cost.

Whoever always says the most frequent class is right as often as that class is there. Its share is taken from declared
counts of the classes; a score of the model, from records that are public or from a charged release.

>>> share_of_guessing({"well": 630, "ill": 370})
0.63
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpfed.config.run import RunConfig

BETTER = "The model is better than guessing"
NO_BETTER = "The model is NO BETTER THAN GUESSING"
SITES = "its sites alone know, unless metrics: in the run file releases figures"


def share_of_guessing(counts: Mapping[str, float]) -> float | None:
    """Return how often the most frequent class is right; None where no counts are declared."""
    return max(counts.values()) / sum(counts.values()) if counts else None


def compare_with_guessing(config: RunConfig, facts: Mapping[str, Any], *, is_networked: bool = False) -> Iterator[str]:
    """Yield what guessing would reach and whether the model is better, as far as everyone may know it.

    `facts` are those of a run's public files: its directory and its metrics.
    """
    guess = share_of_guessing(config.data.class_counts)
    score = facts["metrics"].get("accuracy", {}).get("value")
    owner = SITES if is_networked else f"for the owner alone: dpfed evaluate {facts['directory']}"
    if guess is None:
        yield f"Is it better than guessing? {owner[0].upper()}{owner[1:]}"
    elif score is None:
        said = f"Guessing the most frequent class would be right in {guess:.2%} (declared counts)"
        yield f"{said}; whether the model is better, {owner}"
    else:
        verdict = BETTER if score > guess else NO_BETTER
        yield f"{verdict}: right in {score:.2%}, and the most frequent class in {guess:.2%} (declared counts)."
