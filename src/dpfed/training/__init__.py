"""Private training of torch models; names are loaded when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {"check": "dpfed.training.checking"}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'dpfed.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
