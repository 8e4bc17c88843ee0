"""The files of a run: its directory, its rounds, the notes of its last checkpoint and the digests that bind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed.names import load_lazily

if TYPE_CHECKING:
    from dpfed.runs.directory import RunDirectory as RunDirectory

_HOME = {"RunDirectory": "dpfed.runs.directory"}

__all__ = [*_HOME]

__getattr__, __dir__ = load_lazily(__name__, _HOME)
