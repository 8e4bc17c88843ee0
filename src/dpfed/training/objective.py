"""What a client minimises: its own loss, and terms that an algorithm adds to hold clients of unequal data together.

A client that starts at `start` minimises loss(w) + ⟨shift, w⟩ + pull/2·‖w − anchor‖². FedAvg has neither term, FedProx
a pull towards the model that was sent, SCAFFOLD a shift by the difference of two control variates, FedDyn and every
ADMM both.

Privacy: where records are clipped and noised at each step (styles `sample` and `hybrid`) the terms must follow from
released values. Their gradient is added after clipping and noise, as post-processing, so it needs no bound and costs
nothing. Where a client's whole update is clipped (style `user`) the terms may depend on that client's own data.

>>> objective = LocalObjective(np.zeros(2), pull=0.5, shift=np.array([1.0, 0.0]))
>>> objective.anchor.tolist()
[0.0, 0.0]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed.arrays import read_only
from dpfed.errors import InvalidArgument

Vector = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class LocalObjective:
    """A client's loss + ⟨shift, w⟩ + pull/2·‖w − anchor‖², minimised from `start`, the anchor if none is given.

    Vectors are flat, in the order of the model's layout, and cannot be written into. No shift is None.
    """

    start: Vector
    anchor: Vector = None  # type: ignore[assignment]  # __post_init__ puts the start
    pull: float = 0.0
    shift: Vector | None = None

    def __post_init__(self) -> None:
        # Clients may share an objective: one that trains in place must change neither another's nor the server's.
        is_anchor = self.anchor is None or self.anchor is self.start
        object.__setattr__(self, "start", read_only(self.start))
        object.__setattr__(self, "anchor", self.start if is_anchor else read_only(self.anchor))
        object.__setattr__(self, "pull", checks.non_negative(pull=self.pull))
        if self.shift is not None:
            object.__setattr__(self, "shift", read_only(self.shift))
        for name in ("anchor", "shift"):
            self._require_fitting(name)

    @classmethod
    def of(cls, value: LocalObjective | Vector) -> LocalObjective:
        """Return the value if it is an objective, or the plain objective that starts from these weights."""
        return value if isinstance(value, cls) else cls(np.asarray(value))

    def copied(self) -> LocalObjective:
        """Return the same in memory of its own: torch writes also into what numpy says cannot be written into."""
        start = self.start.copy()
        anchor = start if self.anchor is self.start else self.anchor.copy()
        return replace(self, start=start, anchor=anchor, shift=None if self.shift is None else self.shift.copy())

    @property
    def is_plain(self) -> bool:
        """Whether the loss is all there is."""
        return not self.pull and self.shift is None

    def _require_fitting(self, name: str) -> None:
        value = getattr(self, name)
        if value is None or value is self.start:
            return
        if value.shape != self.start.shape or not np.isfinite(value).all():
            shape = self.start.shape
            message = (
                f"{name} must hold finite numbers in the shape {shape} of the weights it is added to, got shape "
                f"{value.shape}: make it from the task's weights"
            )
            raise InvalidArgument(name, message)
