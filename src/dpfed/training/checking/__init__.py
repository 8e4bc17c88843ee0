"""Whether a model and a loss of your own can be trained privately, tried on made-up records before they see data."""

from __future__ import annotations

from dpfed.names import load_lazily

_HOME = {"check": "dpfed.training.checking.model"}

__all__ = [*_HOME]

__getattr__, __dir__ = load_lazily(__name__, _HOME)
