"""The configuration of a run; names are loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed.names import load_lazily

if TYPE_CHECKING:
    from dpfed.config.run import RunConfig as RunConfig

_HOME = {"RunConfig": "dpfed.config.run"}

__all__ = ["RunConfig"]

__getattr__, __dir__ = load_lazily(__name__, _HOME)
