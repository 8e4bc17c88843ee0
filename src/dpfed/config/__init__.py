"""The configuration of a run; names are loaded when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfed.config.run import RunConfig as RunConfig

_HOME = {"RunConfig": "dpfed.config.run"}

__all__ = ["RunConfig"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'dpfed.config' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
