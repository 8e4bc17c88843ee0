"""The ``metrics:`` block: figures about the model that are released with noise, and charged as part of the promise.

>>> Metrics(release=["accuracy", "auc"], epsilon=0.2).find_rounds(10)
(10,)
"""

from __future__ import annotations

from typing import Any

from pydantic import field_validator

from dpfed.config.fields import Block, Number, Whole, setting
from dpfed.plan.measure import METRICS


class Metrics(Block):
    """Figures on the records held out that may be shared: noised counts, of which the figures are computed."""

    release: tuple[str, ...] = setting(
        effect=f"what everyone may know of the model on records held out: {', '.join(METRICS)}"
    )
    epsilon: Number = setting(
        symbol="ε",
        effect=(
            "what all released figures may cost one unit, in all rounds together: part of the promised epsilon, and "
            "training noise is calibrated to the rest"
        ),
        gt=0,
    )
    rounds: tuple[Whole, ...] | None = setting(
        None, effect="the rounds after which figures are released; without it, the last one"
    )

    @field_validator("release", mode="before")
    @classmethod
    def _require_metrics(cls, names: Any) -> Any:
        given = [names] if isinstance(names, str) else names
        if not isinstance(given, list | tuple) or not given or any(name not in METRICS for name in given):
            raise ValueError(f"must list some of {', '.join(METRICS)}")
        return tuple(given)

    def find_rounds(self, rounds: int) -> tuple[int, ...]:
        """Return the rounds of a run after which figures are released."""
        return (rounds,) if self.rounds is None else self.rounds


class Stop(Block):
    """When a run ends early: once a released figure has not been better for a while."""

    metric: str = setting(effect="the released metric that decides; exact scores never do")
    patience: Whole = setting(2, effect="measurements in a row without a better value after which the run ends", ge=1)
