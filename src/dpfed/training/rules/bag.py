"""Bags of words (nn.EmbeddingBag): the output is a sum, a mean or a maximum of rows that an example looked up.

Of a sum every row gets the gradient of the output, as many times as its word occurs, or by the words' weights; of a
maximum each number goes to the row that it came from. So an example touches at most as many rows as it has words or
numbers, and nothing as large as the table is written out for one example (`embedding.Touched`).

>>> import torch
>>> piece = spread(torch.tensor([[3, 1, 3]]), torch.ones(1, 3), torch.tensor([[2.0]]), torch.Size([4, 1]))
>>> piece.weighted(torch.ones(1))["weight"].flatten().tolist()      # word 3 occurs twice
[0.0, 2.0, 0.0, 4.0]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpfed.training.kept import unwatched
from dpfed.training.rules import embedding
from dpfed.training.rules.embedding import Touched
from dpfed.training.rules.pieces import Call, Materialised, Method, Piece

KINDS: tuple[type[nn.Module], ...] = (nn.EmbeddingBag,)
_MAX = 2  # torch's number of the mode


def noted(call: Call) -> None:
    """Note a call's bags as (B, words), and a copy of the words' weights, which may be overwritten later.

    Bags of one length that were given in a row, with offsets, are the same bags. Others stay in their row, which the
    rule does not serve.
    """
    module, x = call.module, call.x
    if x is None or not _is_plain(module):
        return
    offsets, weights = _given(call, 1, "offsets"), _given(call, 2, "per_sample_weights")
    if isinstance(offsets, Tensor) and not module.include_last_offset and (length := _length(x, offsets)):
        call.x = x = x.view(-1, length)
    if isinstance(weights, Tensor):
        call.weights = weights.detach().reshape(x.shape).clone()


def _is_plain(module: Any) -> bool:
    return type(module).forward is nn.EmbeddingBag.forward and "forward" not in module.__dict__


def _given(call: Call, place: int, name: str) -> Any:
    return call.arguments[place] if len(call.arguments) > place else call.keywords.get(name)


def _length(x: Tensor, offsets: Tensor) -> int:
    """Return how many words each bag has, 0 if not all have as many."""
    length, rest = divmod(len(x), max(len(offsets), 1))
    if x.dim() != 1 or rest or not length:
        return 0
    with unwatched():  # whether this call is served is no decision of the model
        return length if torch.equal(offsets, torch.arange(0, len(x), length).to(offsets)) else 0


def methods(_: Call) -> dict[str, Method]:
    """Return the one way."""
    return {"touched": touched}


def touched(call: Call) -> Piece:
    """Return gradients of the rows that were looked up."""
    return rows_touched(call)


def direct(call: Call) -> Materialised:
    """Return gradients of the whole table, for one that is used in several places."""
    return embedding.written(rows_touched(call))


def rows_touched(call: Call) -> Touched:
    """Return gradients of the rows that were looked up, by the bag's mode."""
    module, (x, g) = call.module, call.pair
    if not isinstance(module, nn.EmbeddingBag):
        raise TypeError(type(module).__name__)
    if module.mode == "max":
        return _of_maxima(module, x, g)
    return spread(x, _factors(module, x, g, call.weights), g, module.weight.shape)


def _factors(module: nn.EmbeddingBag, x: Tensor, g: Tensor, weights: Tensor | None) -> Tensor:
    """Return by what each word's row is multiplied, (B, words): padding by nothing, and a mean is of the rest."""
    is_word = _is_word(module, x)
    if weights is not None:
        return weights.to(g.dtype).masked_fill(~is_word, 0)
    factors = is_word.to(g.dtype)
    return factors if module.mode == "sum" else factors / factors.sum(1, keepdim=True).clamp_(min=1)


def _is_word(module: nn.EmbeddingBag, x: Tensor) -> Tensor:
    return torch.ones_like(x, dtype=torch.bool) if module.padding_idx is None else x != module.padding_idx


def spread(x: Tensor, factors: Tensor, g: Tensor, shape: torch.Size) -> Touched:
    """Return each example's output gradient at all of its rows, multiplied by what the row's words have together."""
    keys, places = torch.unique(_keys(x, shape), return_inverse=True)
    sums = factors.new_zeros(keys.numel()).index_add_(0, places.reshape(-1), factors.reshape(-1))
    return Touched(keys, g[keys // shape[0]] * sums.unsqueeze(1), len(x), shape)


def _of_maxima(module: nn.EmbeddingBag, x: Tensor, g: Tensor) -> Touched:
    """Return each number of the output's gradient at the row that has the maximum, as torch chooses among equals."""
    shape = module.weight.shape
    offsets = torch.arange(0, x.numel(), x.shape[1], device=x.device, dtype=x.dtype)
    table, padding = module.weight.detach(), module.padding_idx
    chosen = torch.embedding_bag(table, x.reshape(-1), offsets, False, _MAX, False, None, False, padding)[3]
    keys, places = torch.unique(_keys(chosen, shape), return_inverse=True)
    values = g.new_zeros(keys.numel(), shape[1])
    values[places, torch.arange(shape[1], device=g.device)] = g * _is_word(module, x).any(1, keepdim=True)
    return Touched(keys, values, len(x), shape)


def _keys(rows: Tensor, shape: torch.Size) -> Tensor:
    return rows + torch.arange(len(rows), device=rows.device).unsqueeze(1) * shape[0]
