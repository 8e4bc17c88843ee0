"""Many models of one architecture, trained at once."""

from __future__ import annotations

from dpfed.names import load_lazily

_HOME = {"Member": "dpfed.training.many.train", "train_many": "dpfed.training.many.train"}

__all__ = [*_HOME]

__getattr__, __dir__ = load_lazily(__name__, _HOME)
