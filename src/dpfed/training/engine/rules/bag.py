"""Bags of words (nn.EmbeddingBag): the output is a sum, a mean or a maximum of rows that an example looked up.

Of a sum every row gets the gradient of the output, as many times as its word occurs, or by the words' weights; of a
maximum each number goes to the row that it came from. So an example touches at most as many rows as it has words or
numbers, and nothing as large as the table is written out for one example (`embedding.TouchedRows`).

>>> import torch
>>> piece = spread(torch.tensor([[3, 1, 3]]), torch.ones(1, 3), torch.tensor([[2.0]]), torch.Size([4, 1]))
>>> piece.sum_weighted(torch.ones(1))["weight"].flatten().tolist()      # word 3 occurs twice
[0.0, 2.0, 0.0, 4.0]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpfed.training.engine.kept import watch_paused
from dpfed.training.engine.rules import embedding
from dpfed.training.engine.rules.contributions import Call, Materialised, Method
from dpfed.training.engine.rules.embedding import TouchedRows

KINDS: tuple[type[nn.Module], ...] = (nn.EmbeddingBag,)
_MAX = 2  # torch's number of the mode


def note_bags(call: Call) -> None:
    """Set a call's bags as (B, words), and a copy of the words' weights, which may be overwritten later.

    Bags of one length that were given as one row of words with offsets are reshaped. Others stay one row, which this
    rule does not serve.
    """
    module, x = call.module, call.x
    if x is None or not _is_plain(module):
        return
    offsets, weights = _get_argument(call, 1, "offsets"), _get_argument(call, 2, "per_sample_weights")
    if isinstance(offsets, Tensor) and not module.include_last_offset and (length := _find_length(x, offsets)):
        call.x = x = x.view(-1, length)
    if isinstance(weights, Tensor):
        call.weights = weights.detach().reshape(x.shape).clone()


def _is_plain(module: Any) -> bool:
    """Return whether the forward pass is torch's own."""
    return type(module).forward is nn.EmbeddingBag.forward and "forward" not in module.__dict__


def _get_argument(call: Call, place: int, name: str) -> Any:
    """Return an argument of the call, given by its place or by its name."""
    return call.arguments[place] if len(call.arguments) > place else call.keywords.get(name)


def _find_length(x: Tensor, offsets: Tensor) -> int:
    """Return the number of words of each bag, 0 if not all have the same."""
    length, rest = divmod(len(x), max(len(offsets), 1))
    if x.dim() != 1 or rest or not length:
        return 0
    with watch_paused():  # whether this call is served is no decision of the model
        return length if torch.equal(offsets, torch.arange(0, len(x), length).to(offsets)) else 0


def methods(_: Call) -> dict[str, Method]:
    """Return the only method: gradients of the touched rows."""
    return {"touched": gather_rows}


def direct(call: Call) -> Materialised:
    """Return the gradients of the whole table, for one that is used in several places."""
    return embedding.write_out(gather_rows(call))


def gather_rows(call: Call) -> TouchedRows:
    """Return the gradients of the rows that the call looked up, by the bag's mode."""
    module, (x, g) = call.module, call.pair
    if not isinstance(module, nn.EmbeddingBag):
        raise TypeError(type(module).__name__)
    if module.mode == "max":
        return _spread_maxima(module, x, g)
    return spread(x, _compute_factors(module, x, g, call.weights), g, module.weight.shape)


def _compute_factors(module: nn.EmbeddingBag, x: Tensor, g: Tensor, weights: Tensor | None) -> Tensor:
    """Return the factor of each word's row, (B, words): 0 for padding, and a mean is of the other words."""
    is_word = _is_word(module, x)
    if weights is not None:
        return weights.to(g.dtype).masked_fill(~is_word, 0)
    factors = is_word.to(g.dtype)
    return factors if module.mode == "sum" else factors / factors.sum(1, keepdim=True).clamp_(min=1)


def _is_word(module: nn.EmbeddingBag, x: Tensor) -> Tensor:
    """Return where the bags have words, not padding."""
    return torch.ones_like(x, dtype=torch.bool) if module.padding_idx is None else x != module.padding_idx


def spread(x: Tensor, factors: Tensor, g: Tensor, shape: torch.Size) -> TouchedRows:
    """Spread each example's output gradient over its rows, each multiplied by the sum of its words' factors."""
    keys, places = torch.unique(embedding.make_keys(x, shape), return_inverse=True)
    sums = factors.new_zeros(keys.numel()).index_add_(0, places.reshape(-1), factors.reshape(-1))
    return TouchedRows(keys, g[keys // shape[0]] * sums.unsqueeze(1), len(x), shape)


def _spread_maxima(module: nn.EmbeddingBag, x: Tensor, g: Tensor) -> TouchedRows:
    """Spread each number of the output gradient to the row that has the maximum, which torch chooses among equals."""
    shape = module.weight.shape
    offsets = torch.arange(0, x.numel(), x.shape[1], device=x.device, dtype=x.dtype)
    table, padding = module.weight.detach(), module.padding_idx
    chosen = torch.embedding_bag(table, x.reshape(-1), offsets, False, _MAX, False, None, False, padding)[3]
    keys, places = torch.unique(embedding.make_keys(chosen, shape), return_inverse=True)
    values = g.new_zeros(keys.numel(), shape[1])
    values[places, torch.arange(shape[1], device=g.device)] = g * _is_word(module, x).any(1, keepdim=True)
    return TouchedRows(keys, values, len(x), shape)
