"""Why a model is trained one example at a time, and how to make it fast.

One example at a time is correct whatever the model does, and many times slower. So a warning says it once, when
training begins.

>>> from torch import nn
>>> explain(nn.Sequential(nn.GRU(3, 4)), ["0.weight_ih_l0 is used outside its layer"])
'this model is trained one example at a time, which is exact and slow: 0.weight_ih_l0 is used outside its layer (let \
pack_padded_sequence sort (enforce_sorted=False), and give pad_packed_sequence a total_length; give the GRU inputs \
with an axis of examples, and use the layer as torch has it)'
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import nn

from dpfed.errors import SlowModelWarning
from dpfed.training.layers.twins import KINDS

# What to do about a reason that `attribution` or `programs` give, by words in it.
_PACKED = "let pack_padded_sequence sort (enforce_sorted=False), and give pad_packed_sequence a total_length"
REMEDIES = {
    "the number of packed positions": _PACKED,
    "_pack_padded_sequence is not known": _PACKED,
    "is used outside its layer": "call the layer, not a function with its weight; give a bare parameter a small module",
    "by a layer and its child": "let only one of them own the parameter",
    "keeps something for later": "return what the losses need from forward",
    "is not known to keep examples apart": "do without it along the axis of examples",
    "lets the examples decide": "use torch.where or a mask in place of if, .item(), .numpy() and indices by a mask",
    "depends on the number of examples": "leave the batch's size out of the arithmetic",
    "has not the example as first axis": "keep the examples the first axis of what the layer gets",
    "no rule serves": "make it of usual layers, without random numbers inside",
    "a gradient of its own": "write it with operations of torch",
    "changes from pass to pass": "let Python's own random numbers decide nothing in forward",
}


def warn(model: nn.Module, reasons: Sequence[str], stacklevel: int) -> None:
    """Warn that the model is slow, with the reasons, if there are any."""
    if reasons:
        warnings.warn(explain(model, reasons), SlowModelWarning, stacklevel=stacklevel + 1)


def explain(model: nn.Module, reasons: Sequence[str]) -> str:
    """Return a sentence with the reasons, each with its remedy."""
    parts = [f"{why} ({remedy})" if (remedy := find_remedy(model, why)) else why for why in reasons]
    return f"this model is trained one example at a time, which is exact and slow: {'; '.join(parts)}"


def find_remedy(model: nn.Module, why: str) -> str | None:
    """Return what to do about a reason; None if nothing is known."""
    words = next((words for words in REMEDIES if words in why), None)
    if words == "is used outside its layer" and (kind := _find_kind(model, why.removesuffix(f" {words}"))) is not None:
        padded = "" if kind.endswith("Cell") else f"{_PACKED}; "
        return f"{padded}give the {kind} inputs with an axis of examples, and use the layer as torch has it"
    if words == "lets the examples decide" and any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return f"{REMEDIES[words]}; {_PACKED}"
    return None if words is None else REMEDIES[words]


def _find_kind(model: nn.Module, parameter: str) -> str | None:
    """Return the name of the layer type that owns the parameter, if that type has a twin."""
    owner, _, _ = parameter.rpartition(".")
    module = dict(model.named_modules()).get(owner)
    return None if module is None else next((kind.__name__ for kind in KINDS if isinstance(module, kind)), None)
