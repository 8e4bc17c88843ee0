"""Losses that give one number per record, by name: DP-SGD cuts each record's gradient on its own.

>>> import torch
>>> find_loss("cross_entropy")(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
tensor([0.6931, 0.6931, 0.6931])
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional

from dpfed.errors import InvalidArgument
from dpfed.references import is_reference, resolve
from dpfed.training.many import entropy

Loss = Callable[[Any, Any], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return −log of the softmax at the target's class, averaged over a record's pixels if it has any."""
    losses = entropy.cross_entropy(outputs, targets)
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return −log of the logistic function at a target of 0 or 1, averaged over a record's outputs."""
    scores = outputs.flatten(1)
    wanted = targets.reshape(scores.shape).to(scores.dtype)
    return functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none").mean(1)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error of each record."""
    scores = outputs.flatten(1)
    return (scores - targets.reshape(scores.shape)).square().mean(1)


KINDS: dict[str, Loss] = {"cross_entropy": cross_entropy, "binary_cross_entropy": binary_cross_entropy, "mse": mse}


def find_loss(kind: str | Loss, directory: str | Path | None = None) -> Loss:
    """Return a loss: a built-in one, package.module:name, or the function itself."""
    if callable(kind):
        return kind
    if kind in KINDS:
        return KINDS[kind]
    if not is_reference(kind):
        message = f"loss must be one of {', '.join(KINDS)} or package.module:name, got {kind!r}"
        raise InvalidArgument("loss", message)
    loss: Loss = resolve(kind, directory)
    return loss
