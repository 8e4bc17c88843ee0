"""What a check of a model found: how far one record moved a sum, which layers have a fast way, and what a step costs.

>>> mode = ModeCheck("all at once", moved=0.9999, replaced=1.5)
>>> layer = LayerCheck("0", "Linear", 8, "linear")
>>> worst = Movement("all at once", Change("removed", 1), size=4, distance=0.9999)
>>> print(ModelCheck("Net", searches=8, pairs=90, modes=(mode,), unused=(), worst=worst, layers=(layer,), cost=1.5))
Net
8 searches (90 pairs of neighbouring data sets) moved the sum by at most 0.9999 clip norms, and by 1.5000 where a record
was replaced; not a proof.
<BLANKLINE>
mode         removed or added  replaced
all at once  0.9999            1.5000
<BLANKLINE>
layer  kind    numbers  way
0      Linear  8        linear
All layers have a fast way: every operation is on the allow-list.
<BLANKLINE>
A step on 32 records takes 1.5 times the CPU time of plain SGD.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dpfed.training.checking.modes import Unused
from dpfed.training.checking.search import Change, Movement

__all__ = ["BATCH", "Change", "LayerCheck", "ModeCheck", "ModelCheck", "Movement", "Unused"]

BATCH = 32  # records of the step that is timed


@dataclass(frozen=True)
class ModeCheck:
    """The furthest movements in one mode, in clip norms: a record removed or added (1 is allowed), or replaced (2)."""

    name: str
    moved: float | None
    replaced: float | None

    @property
    def row(self) -> tuple[str, str, str]:
        """The mode as a row of text; a change that was not tried is a dash."""
        moved, replaced = ("–" if value is None else f"{value:.4f}" for value in (self.moved, self.replaced))
        return self.name, moved, replaced


@dataclass(frozen=True)
class LayerCheck:
    """A module with trainable parameters of its own: how many numbers, and how their gradients are made."""

    path: str
    kind: str
    numbers: int
    way: str

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The layer as a row of text."""
        return self.path or "(the model)", self.kind, f"{self.numbers:,}", self.way


@dataclass(frozen=True)
class ModelCheck:
    """The result of `check`; ``print`` shows all of it.

    `slow` is the reason why every record goes through the model alone, None if a batch does. `cost` is the CPU time of
    a step divided by that of plain SGD, on this machine and now.
    """

    model: str
    searches: int
    pairs: int
    modes: tuple[ModeCheck, ...]
    unused: tuple[Unused, ...]
    worst: Movement
    layers: tuple[LayerCheck, ...]
    slow: str | None = None
    remarks: tuple[str, ...] = ()
    cost: float = field(default=float("nan"), compare=False)

    @property
    def is_sound(self) -> bool:
        """Whether no search moved a sum further than is allowed."""
        return self.worst.is_allowed

    @property
    def moved(self) -> float | None:
        """How far, in clip norms, removing or adding a record moved the sum at most; 1 is allowed."""
        return _find_largest(mode.moved for mode in self.modes)

    @property
    def replaced(self) -> float | None:
        """How far replacing a record moved it at most; 2 is allowed."""
        return _find_largest(mode.replaced for mode in self.modes)

    @property
    def verdict(self) -> str:
        """The result of the searches, in a sentence."""
        if not self.is_sound:
            what = f"FAILED: one record moved the sum further than clipping allows ({self.worst})."
            remedy = "Do not train this model. If it keeps nothing from one call to the next, this is a bug of dpfed"
            return f"{what} {remedy}: please report it, with the model, the loss and this line."
        found = f"{self.searches} searches ({self.pairs:,} pairs of neighbouring data sets) moved the sum by at most"
        if self.moved is None:
            return f"{found} {self.replaced:.4f} clip norms where a record was replaced; not a proof."
        return (
            f"{found} {self.moved:.4f} clip norms, and by {self.replaced:.4f} where a record was replaced; not a proof."
        )

    @property
    def coverage(self) -> str:
        """Whether a batch goes through the model at once, in a sentence."""
        if self.slow is not None:
            return f"Every record goes through the model alone, because {self.slow}."
        return "All layers have a fast way: every operation is on the allow-list."

    @property
    def price(self) -> str:
        """The cost of a step compared with plain SGD, in a sentence."""
        return f"A step on {BATCH} records takes {self.cost:.1f} times the CPU time of plain SGD."

    def __str__(self) -> str:
        moved = _align([("mode", "removed or added", "replaced"), *(mode.row for mode in self.modes)])
        layers = _align([("layer", "kind", "numbers", "way"), *(layer.row for layer in self.layers)])
        blocks = (
            [self.model, self.verdict],
            [*moved, *(f"{each.name}: not used, {each.why}" for each in self.unused)],
            [*layers, self.coverage, *self.remarks],
            [self.price],
        )
        return "\n\n".join("\n".join(block) for block in blocks)


def _find_largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the rows as lines of text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
