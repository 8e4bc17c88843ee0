"""The twin of nn.MultiheadAttention: the same numbers, by matrix products that the engine can see.

torch's module hands its weights to one function and never calls its own children, so gradients of single examples
would take one backward pass each. The twin projects by Linear layers and attends by torch's kernel;
nn.TransformerEncoderLayer and its relatives call it without knowing.

>>> import torch
>>> from torch import nn
>>> layer = nn.MultiheadAttention(4, 2)
>>> x = torch.randn(5, 3, 4)
>>> torch.allclose(layer(x, x, x)[0], AttentionTwin(layer)(layer, x, x, x)[0], atol=1e-6)
True
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfed.training.layers.projection import Projection, tie


class Masks(NamedTuple):
    """The masks of one call: on the scores of all examples or of each head of each, and on the keys of each."""

    attention: Tensor | None
    padding: Tensor | None
    is_causal: bool

    def combine(self, heads: int, extra: int, like: Tensor) -> Tensor | None:
        """Return one mask to add to the scores (B, heads, queries, keys), None if there is none.

        The `extra` keys at the end are masked for nobody.
        """
        found = None
        if self.attention is not None:
            is_per_head = self.attention.dim() == 3
            own = self.attention.view(-1, heads, *self.attention.shape[1:]) if is_per_head else self.attention
            found = _to_additive(own, extra, like)
        if self.padding is not None:
            rows = _to_additive(self.padding, extra, like)[:, None, None]
            found = rows if found is None else found + rows
        return found


class AttentionTwin:
    """A replacement for the forward pass of multi-head attention; `products` are the layers that it runs."""

    def __init__(self, owner: nn.MultiheadAttention) -> None:
        self.products = {"out_proj": Projection()}
        if owner._qkv_same_embed_dim:
            self.products["in_proj"] = Projection()
        else:
            self.products.update({f"{letter}_proj": Projection() for letter in "qkv"})

    def __call__(
        self,
        owner: nn.MultiheadAttention,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        """Return what torch's module would return; NotImplemented where torch has to compute it."""
        masks = Masks(attn_mask, key_padding_mask, is_causal)
        inputs = [query, key, value]
        if not all(isinstance(x, Tensor) and x.dim() == 3 and not x.is_nested for x in inputs) or not self._tie(owner):
            return NotImplemented
        inputs = inputs if owner.batch_first else _transpose(inputs)
        if not _fits(owner, inputs, masks):
            return NotImplemented
        q, k, v = (_split_heads(owner, part) for part in _append_extra(owner, *self._project(owner, *inputs)))
        found, weights = _attend(owner, q, k, v, masks, need_weights=need_weights)
        outputs = self.products["out_proj"](found.transpose(1, 2).reshape(inputs[0].shape))
        weights = weights.mean(1) if weights is not None and average_attn_weights else weights
        return outputs if owner.batch_first else outputs.transpose(0, 1), weights

    def _tie(self, owner: nn.MultiheadAttention) -> bool:
        own, out = owner._parameters, owner.out_proj._parameters
        bias = own.get("in_proj_bias")
        is_tied = tie(self.products["out_proj"], out.get("weight"), out.get("bias"))
        if "in_proj" in self.products:
            is_tied &= tie(self.products["in_proj"], own.get("in_proj_weight"), bias)
        else:
            is_tied &= all(tie(self.products[f"{x}_proj"], own.get(f"{x}_proj_weight")) for x in "qkv")
        return is_tied

    def _project(
        self, owner: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value after their projections.

        Different inputs go through the one Linear as positions of one sequence, and the outputs that are not needed
        are dropped: the weights belong to one parameter, and one call of one layer is one gradient.
        """
        if "in_proj" not in self.products:
            return self._project_apart(owner, query, key, value)
        if query is key and key is value:
            q, k, v = self.products["in_proj"](query).chunk(3, 2)
            return q, k, v
        inputs = [query, key] if key is value else [query, key, value]
        parts = self.products["in_proj"](torch.cat(inputs, 1)).split([part.shape[1] for part in inputs], 1)
        q, k, v = (part.chunk(3, 2)[place] for place, part in enumerate((parts[0], parts[1], parts[-1])))
        return q, k, v

    def _project_apart(
        self, owner: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project query, key and value by weights of their own, where their sizes differ; the bias is one parameter."""
        q, k, v = (self.products[f"{x}_proj"](part) for x, part in zip("qkv", (query, key, value), strict=True))
        bias = owner._parameters["in_proj_bias"]
        if bias is None:
            return q, k, v
        of_q, of_k, of_v = bias.expand(len(query), 1, -1).chunk(
            3, 2
        )  # once for each example, so that each has a gradient of its own
        return q + of_q, k + of_k, v + of_v


def _append_extra(owner: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Append the keys and values that belong to no position: learned ones, and zeros."""
    if owner.bias_k is not None and owner.bias_v is not None:
        k, v = (torch.cat([x, own.expand(len(q), 1, -1)], 1) for x, own in ((k, owner.bias_k), (v, owner.bias_v)))
    if owner.add_zero_attn:
        nothing = q.new_zeros(len(q), 1, owner.embed_dim)
        k, v = torch.cat([k, nothing], 1), torch.cat([v, nothing], 1)
    return q, k, v


def _attend(
    owner: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor, masks: Masks, *, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the attended values (B, heads, positions, features), and the weights if they are asked for."""
    dropout = owner.dropout if owner.training else 0.0
    if masks.is_causal and masks.padding is None and not need_weights:  # then torch takes the hint for the mask
        return functional.scaled_dot_product_attention(q, k, v, None, dropout, is_causal=True), None
    extra = int(owner.bias_k is not None) + int(owner.add_zero_attn)
    mask = masks.combine(owner.num_heads, extra, q)
    if not need_weights:
        return functional.scaled_dot_product_attention(q, k, v, mask, dropout), None
    scores = q @ k.transpose(2, 3) / math.sqrt(owner.head_dim)
    weights = torch.softmax(scores if mask is None else scores + mask, -1)
    weights = functional.dropout(weights, dropout) if dropout else weights
    return weights @ v, weights


def _transpose(inputs: list[Tensor]) -> list[Tensor]:
    """Return the inputs with the examples as first axis; inputs that are one tensor stay one."""
    found = {id(x): x.transpose(0, 1) for x in inputs}
    return [found[id(x)] for x in inputs]


def _fits(owner: nn.MultiheadAttention, inputs: list[Tensor], masks: Masks) -> bool:
    """Return whether all shapes fit; where they do not, torch raises its own error."""
    (size, queries, width), keys, values = (x.shape for x in inputs)
    sizes = (size, keys[1])
    is_fitting = width == owner.embed_dim and keys[2] == owner.kdim and values[2] == owner.vdim
    attention, padding = masks.attention, masks.padding
    shapes = ((queries, keys[1]), (size * owner.num_heads, queries, keys[1]))
    return (
        is_fitting
        and keys[:2] == values[:2] == sizes
        and (tuple(attention.shape) in shapes if attention is not None else not masks.is_causal)
        and (padding is None or padding.shape == sizes)
    )


def _split_heads(owner: nn.MultiheadAttention, values: Tensor) -> Tensor:
    return values.view(*values.shape[:2], owner.num_heads, owner.head_dim).transpose(1, 2)


def _to_additive(mask: Tensor, extra: int, like: Tensor) -> Tensor:
    """Return the mask as numbers to add to the scores: −inf for True of a boolean mask, 0 for the extra keys."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
    mask = mask.to(like.dtype)
    return functional.pad(mask, (0, extra)) if extra else mask
