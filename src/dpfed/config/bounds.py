"""The ``bounds:`` block: ranges of columns that a run releases with noise before its first round, for its promise.

>>> block = BoundsBlock(release=["age", "pay"], epsilon=0.5, grid={"age": [0, 120, 4]})
>>> block.find_edges()[0]
(0.0, 30.0, 60.0, 90.0, 120.0)
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pydantic import field_validator, model_validator

from dpfed.analytics.queries import FIXED
from dpfed.config.fields import Block, Number, SettingError, Whole, as_number, setting

MOST_CELLS = 10_000


class BoundsBlock(Block):
    """Columns of numbers of which nobody knows a range in public: noised counts of records in public cells give one."""

    release: tuple[str, ...] = setting(effect="columns of numbers of a table, whose ranges everyone may then know")
    epsilon: Number = setting(
        symbol="ε",
        effect="what all ranges together may cost one unit: part of the promised epsilon; training has the rest",
        gt=0,
    )
    grid: dict[str, tuple[Number, Number, Whole]] | None = setting(
        None,
        effect="public cells to count a column in, as [low, high, cells]; without them powers of two up to a million",
    )

    @field_validator("release", mode="before")
    @classmethod
    def _read_columns(cls, names: Any) -> Any:
        given = [names] if isinstance(names, str) else names
        if not isinstance(given, list | tuple) or not given or len(set(map(str, given))) < len(given):
            raise ValueError("must list one column or more, each once")
        return tuple(str(name) for name in given)

    @field_validator("grid", mode="before")
    @classmethod
    def _read_grid(cls, grid: Any) -> Any:
        if grid is None:
            return None
        if not isinstance(grid, dict) or any(not isinstance(cells, list | tuple) for cells in grid.values()):
            raise ValueError("must be [low, high, cells] by column, such as {age: [0, 120, 12]}")
        return {str(name): tuple(map(as_number, cells)) for name, cells in grid.items()}

    @model_validator(mode="after")
    def _check_grid(self) -> BoundsBlock:
        for name, (low, high, cells) in (self.grid or {}).items():
            if name not in self.release:
                raise SettingError("grid", f"names {name}, which is not released: add it to release")
            if not -float("inf") < low < high < float("inf") or not 1 <= cells <= MOST_CELLS:
                raise SettingError("grid", f"of {name} must be [low, high, cells] with 1 to {MOST_CELLS:,} cells")
            if any(a >= b for a, b in pairwise(_make_edges(low, high, cells))):
                raise SettingError("grid", f"of {name} has too many cells for numbers so close: ask for fewer")
        return self

    def find_edges(self) -> tuple[tuple[float, ...], ...]:
        """Return the public edges of the cells of each column."""
        known = self.grid or {}
        return tuple(_make_edges(*known[name]) if name in known else FIXED for name in self.release)


def _make_edges(low: float, high: float, cells: int) -> tuple[float, ...]:
    return tuple(low + (high - low) * place / cells for place in range(cells + 1))
