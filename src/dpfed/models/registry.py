"""The models of dpfed by name, as a configuration file gives it.

>>> build("mlp", features=4, hidden=(8,), classes=3, seed=1)
MLP(
  (layers): Sequential(
    (0): Flatten(start_dim=1, end_dim=-1)
    (1): Linear(in_features=4, out_features=8, bias=True)
    (2): ReLU()
    (3): Linear(in_features=8, out_features=3, bias=True)
  )
)
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from dpfed.errors import InvalidArgument
from dpfed.models.cnn import CNN
from dpfed.models.logistic import Logistic
from dpfed.models.mlp import MLP
from dpfed.models.resnet import ResNet
from dpfed.models.transformer import Transformer
from dpfed.models.unet import UNet

KINDS: dict[str, type[nn.Module]] = {
    "logistic": Logistic,
    "mlp": MLP,
    "cnn": CNN,
    "resnet": ResNet,
    "transformer": Transformer,
    "unet": UNet,
}


def build(kind: str, **options: Any) -> nn.Module:
    """Build the model of that kind; options that are not given have the defaults of its class."""
    if kind not in KINDS:
        raise InvalidArgument("kind", f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    known = list(inspect.signature(KINDS[kind]).parameters)
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InvalidArgument(unknown[0], f"{kind} has no option {unknown[0]!r}: use {', '.join(known)}")
    return KINDS[kind](**options)
