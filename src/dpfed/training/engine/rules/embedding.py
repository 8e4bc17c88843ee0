"""Embeddings: the gradient of one example touches only the rows it looked up.

Positions that looked up the same row are added first (norms of parts do not add), then norm and clipped sum come
from the same short list of touched rows; a gradient of the whole table is never written out per example.

>>> import torch
>>> touched = TouchedRows(torch.tensor([0, 5]), torch.tensor([[3.0], [4.0]]), 2, torch.Size([4, 1]))
>>> touched.norms().tolist()      # row 0 of example 0; row 1 of example 1
[3.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dpfed.errors import InvalidArgument
from dpfed.training.engine.rules.contributions import (
    Call,
    Materialised,
    Method,
    absolute_norms,
    rows_of,
    square_norms,
)


@dataclass(frozen=True, slots=True)
class TouchedRows:
    """Gradients of the rows of a table that each example touched; a key is example · rows of the table + row."""

    keys: Tensor
    values: Tensor
    size: int
    shape: torch.Size

    def norms(self) -> Tensor:
        """Return ‖gᵢ‖ of every example."""
        return self.squares().sqrt_()

    def squares(self) -> Tensor:
        """Return ‖gᵢ‖² of every example."""
        return self._sum_by_example(square_norms(self.values))

    def absolute_norms(self) -> Tensor:
        """Return ‖gᵢ‖₁ of every example."""
        return self._sum_by_example(absolute_norms(self.values))

    def sum_weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Return Σ cᵢgᵢ as a dense table."""
        scaled = self.values * coefficients[self.keys // self.shape[0]].unsqueeze(1)
        table = self.values.new_zeros(self.shape)
        return {"weight": table.index_add_(0, self.keys % self.shape[0], scaled)}

    def only(self, names: Collection[str]) -> TouchedRows:
        """Return the same: the table is its only parameter."""
        return self

    def _sum_by_example(self, values: Tensor) -> Tensor:
        """Add up the values of rows for every example."""
        totals = self.values.new_zeros(self.size, dtype=torch.float64)
        return totals.index_add_(0, self.keys // self.shape[0], values)


def check(path: str, module: nn.Module) -> None:
    """Refuse an Embedding whose gradient depends on other examples, or whose forward pass changes the table."""
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
        message = (
            f"{path or 'the model'} is an Embedding with max_norm or scale_grad_by_freq, which mixes examples: "
            "make it without them"
        )
        raise InvalidArgument("model", message)


def methods(_: Call) -> dict[str, Method]:
    """Return the only method: gradients of the touched rows."""
    return {"touched": gather_rows}


def gather_rows(call: Call) -> TouchedRows:
    """Return the gradients of the rows that the call looked up."""
    return sum_by_row(*find_lookups(call), call.module.get_parameter("weight").shape)


def find_lookups(call: Call) -> tuple[Tensor, Tensor]:
    """Return the rows that each example looked up (B, S) and their gradients (B, S, d); that of padding is zero."""
    x, g = call.pair
    rows = x.reshape(len(g), -1)
    values = g.reshape(*rows.shape, g.shape[-1])
    padding = getattr(call.module, "padding_idx", None)
    return rows, values if padding is None else values.masked_fill((rows == padding).unsqueeze(2), 0)


def sum_by_row(rows: Tensor, values: Tensor, shape: torch.Size) -> TouchedRows:
    """Return the gradients of touched rows; those of a row that one example looked up several times are added."""
    keys, places = torch.unique(make_keys(rows, shape), return_inverse=True)
    sums = values.new_zeros(keys.numel(), shape[1]).index_add_(0, places.reshape(-1), values.flatten(0, 1))
    return TouchedRows(keys, sums, len(rows), shape)


def make_keys(rows: Tensor, shape: torch.Size) -> Tensor:
    """Return the key of each row (B, S) of a table of that shape."""
    return rows + torch.arange(len(rows), device=rows.device).unsqueeze(1) * shape[0]


def merge(pieces: Sequence[TouchedRows]) -> TouchedRows:
    """Merge look-ups in the same table: gradients of a row that several touched are added."""
    keys, places = torch.unique(torch.cat([piece.keys for piece in pieces]), return_inverse=True)
    values = torch.cat([piece.values for piece in pieces])
    sums = values.new_zeros(keys.numel(), values.shape[1]).index_add_(0, places, values)
    return replace(pieces[0], keys=keys, values=sums)


def direct(call: Call) -> Materialised:
    """Return the gradients of the whole table, for one that is used in several places."""
    return write_out(gather_rows(call))


def write_out(piece: TouchedRows) -> Materialised:
    """Write out a whole table of gradients for each example."""
    table = piece.values.new_zeros(piece.size * piece.shape[0], piece.shape[1])
    table[piece.keys] = piece.values
    return Materialised({"weight": rows_of(table.view(piece.size, *piece.shape))})


KINDS: tuple[type[nn.Module], ...] = (nn.Embedding,)
