"""Small reference networks that train under DP-SGD as they are; names are loaded when first used.

No layer mixes examples or keeps statistics of them: GroupNorm and LayerNorm only, no buffers.
"""

from __future__ import annotations

from dpfed.names import load_lazily

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

__getattr__, __dir__ = load_lazily(__name__, _HOME)
