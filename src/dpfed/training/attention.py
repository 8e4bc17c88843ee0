"""nn.MultiheadAttention whose matrix products the engine can see, with the same parameters and state_dict.

torch's module hands its weights to one function and never calls its own children, so gradients of single examples
would take one backward pass each. The twin projects by one Linear, attends by torch's kernel and calls ``out_proj``;
nn.TransformerEncoderLayer and its relatives work with it as they are.

>>> import torch
>>> from torch import nn
>>> layer = nn.MultiheadAttention(4, 2, batch_first=True)
>>> x, twin = torch.randn(3, 5, 4), attended(layer)
>>> torch.allclose(layer(x, x, x)[0], twin(x, x, x)[0], atol=1e-6), list(twin.state_dict()) == list(layer.state_dict())
(True, True)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfed.errors import InvalidArgument
from dpfed.training.projection import Projection, adopted


class Attention(nn.MultiheadAttention):
    """Multi-head attention in Linear layers."""

    def tie(self) -> None:
        """Nothing; makes the projection that of the present parameters."""
        self.projection = Projection(self.get_parameter("in_proj_weight"), self._parameters["in_proj_bias"])

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """What torch's module gives: the attended values, and the weights if they are asked for."""
        if query.dim() != 3 or (is_causal and attn_mask is None):
            message = f"attention takes (examples, positions, features), got {tuple(query.shape)}"
            raise InvalidArgument("model", f"{message}; is_causal is a hint that needs attn_mask beside it")
        q, k, v = (self._heads(part) for part in self._projected(query, key, value))
        mask = self._mask(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
            weights = functional.dropout(torch.softmax(scores if mask is None else scores + mask, -1), dropout)
            found = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            found = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        return self.out_proj(found.transpose(1, 2).reshape(query.shape)), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value after their projections.

        Different inputs go through the one Linear as positions of one sequence, each of which then gives up what
        it has too much: the weights belong to one parameter, and one call of one layer is one gradient.
        """
        if query is key and key is value:
            q, k, v = self.projection(query).chunk(3, 2)
            return q, k, v
        inputs = [query, key] if key is value else [query, key, value]
        parts = self.projection(torch.cat(inputs, 1)).split([part.shape[1] for part in inputs], 1)
        q, k, v = (part.chunk(3, 2)[place] for place, part in enumerate((parts[0], parts[1], parts[-1])))
        return q, k, v

    def _heads(self, values: Tensor) -> Tensor:
        return values.view(*values.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def _mask(self, attn: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
        """What is added to the scores (B, heads, queries, keys), if anything."""
        found = None
        if attn is not None:
            is_per_head = attn.dim() == 3
            found = _additive(attn.view(-1, self.num_heads, *attn.shape[1:]) if is_per_head else attn, q)
        if padding is not None:
            rows = _additive(padding, q)[:, None, None]
            found = rows if found is None else found + rows
        return found


def attended(module: nn.MultiheadAttention) -> Attention:
    """A twin of torch's module over the same parameters that computes the same, by products that the engine sees."""
    if not module.batch_first:
        raise InvalidArgument(
            "model", "this MultiheadAttention takes the position first: make it with batch_first=True"
        )
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        message = "a MultiheadAttention with kdim, vdim, add_bias_kv or add_zero_attn has no twin: leave them out"
        raise InvalidArgument("model", message)
    return adopted(Attention, module)


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of what is left out, or of what is added, as numbers to add."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
