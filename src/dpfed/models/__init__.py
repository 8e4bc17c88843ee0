"""Small reference networks that train under DP-SGD as they are; names are loaded when first used.

No layer mixes examples or keeps statistics of them: GroupNorm and LayerNorm only, no buffers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "build": "dpfed.models.registry",
    "Logistic": "dpfed.models.logistic",
    "MLP": "dpfed.models.mlp",
    "CNN": "dpfed.models.cnn",
    "ResNet": "dpfed.models.resnet",
    "Transformer": "dpfed.models.transformer",
    "UNet": "dpfed.models.unet",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'dpfed.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
