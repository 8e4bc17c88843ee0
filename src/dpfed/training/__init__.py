"""Private training of torch models; names are loaded when first used."""

from __future__ import annotations

from dpfed.names import load_lazily

_HOME = {"check": "dpfed.training.checking.model"}

__all__ = [*_HOME]

__getattr__, __dir__ = load_lazily(__name__, _HOME)
