"""Embeddings: the gradient of one example touches only the rows it looked up.

Positions that looked up the same row are added first (norms of parts do not add), then norm and clipped sum come
from the same short list of touched rows; a gradient of the whole table is never written out per example.

>>> import torch
>>> touched = Touched(torch.tensor([0, 5]), torch.tensor([[3.0], [4.0]]), 2, torch.Size([4, 1]))
>>> touched.norms().tolist()      # row 0 of example 0; row 1 of example 1
[3.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dpfed.errors import InvalidArgument
from dpfed.training.rules.pieces import Call, Materialised, Method, Piece, absolute_norms, rows_of, square_norms


@dataclass(frozen=True, slots=True)
class Touched:
    """Gradients of touched rows; a key is example · rows of the table + row."""

    keys: Tensor
    values: Tensor
    size: int
    shape: torch.Size

    def norms(self) -> Tensor:
        """‖gᵢ‖ from the touched rows."""
        return self.squares().sqrt_()

    def squares(self) -> Tensor:
        """‖gᵢ‖² from the touched rows."""
        return self._added(square_norms(self.values))

    def absolute_norms(self) -> Tensor:
        """‖gᵢ‖₁ from the touched rows."""
        return self._added(absolute_norms(self.values))

    def weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Σ cᵢgᵢ as a dense table."""
        scaled = self.values * coefficients[self.keys // self.shape[0]].unsqueeze(1)
        table = self.values.new_zeros(self.shape)
        return {"weight": table.index_add_(0, self.keys % self.shape[0], scaled)}

    def only(self, names: Collection[str]) -> Touched:
        """The same: there is only the one table."""
        return self

    def _added(self, values: Tensor) -> Tensor:
        """The sums of what the rows have, for every example."""
        totals = self.values.new_zeros(self.size, dtype=torch.float64)
        return totals.index_add_(0, self.keys // self.shape[0], values)


def check(path: str, module: nn.Module) -> None:
    """Nothing, unless the layer's gradient depends on other examples or its forward pass changes the table."""
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
        message = (
            f"{path or 'the model'} is an Embedding with max_norm or scale_grad_by_freq, which mixes examples: "
            "make it without them"
        )
        raise InvalidArgument("model", message)


def methods(_: Call) -> dict[str, Method]:
    """The one way."""
    return {"touched": touched}


def touched(call: Call) -> Piece:
    """Gradients of the rows that were looked up."""
    return gathered(*looked_up(call), call.module.get_parameter("weight").shape)


def looked_up(call: Call) -> tuple[Tensor, Tensor]:
    """The rows that each example looked up (B, S) and their gradients (B, S, d); that of padding is zero."""
    x, g = call.pair
    rows = x.reshape(len(g), -1)
    values = g.reshape(*rows.shape, g.shape[-1])
    padding = getattr(call.module, "padding_idx", None)
    return rows, values if padding is None else values.masked_fill((rows == padding).unsqueeze(2), 0)


def gathered(rows: Tensor, values: Tensor, shape: torch.Size) -> Touched:
    """The same, with rows that one example looked up several times added."""
    offsets = torch.arange(len(rows), device=rows.device).unsqueeze(1) * shape[0]
    keys, places = torch.unique(rows + offsets, return_inverse=True)
    sums = values.new_zeros(keys.numel(), shape[1]).index_add_(0, places.reshape(-1), values.flatten(0, 1))
    return Touched(keys, sums, len(rows), shape)


def merged(pieces: Sequence[Touched]) -> Touched:
    """Return what look-ups in the same table have together: rows that several touched are added."""
    keys, places = torch.unique(torch.cat([piece.keys for piece in pieces]), return_inverse=True)
    values = torch.cat([piece.values for piece in pieces])
    sums = values.new_zeros(keys.numel(), values.shape[1]).index_add_(0, places, values)
    return replace(pieces[0], keys=keys, values=sums)


def direct(call: Call) -> Materialised:
    """Gradients of the whole table, for one that is used in several places."""
    return written(gathered(*looked_up(call), call.module.get_parameter("weight").shape))


def written(piece: Touched) -> Materialised:
    """Return the gradients with a whole table for each example."""
    table = piece.values.new_zeros(piece.size * piece.shape[0], piece.shape[1])
    table[piece.keys] = piece.values
    return Materialised({"weight": rows_of(table.view(piece.size, *piece.shape))})


KINDS: tuple[type[nn.Module], ...] = (nn.Embedding,)
