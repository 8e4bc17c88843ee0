"""The configuration that a run's directory keeps for later commands; a changed one is refused.

>>> import tempfile
>>> read_kept(RunDirectory(tempfile.mkdtemp())) is None
True
"""

from __future__ import annotations

import json

from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.runs.directory import CONFIG, RANGES, RunDirectory


def read_kept(run: RunDirectory) -> RunConfig | None:
    """Return the configuration that the run was begun with; None if it was begun in Python."""
    path = run.path / CONFIG
    if not path.exists():
        return None
    config = add_ranges(RunConfig.read(path), run)
    run.require_terms(config.terms, CONFIG if config.bounds is None else f"{CONFIG} or {RANGES}")
    return config


def add_ranges(config: RunConfig, run: RunDirectory) -> RunConfig:
    """Return the configuration with the ranges that the run released; they are among the terms that it goes on with."""
    path = run.path / RANGES
    if config.bounds is None or not path.exists():
        return config
    try:
        found = {
            str(name): pair and (float(pair[0]), float(pair[1])) for name, pair in json.loads(path.read_text()).items()
        }
    except (OSError, ValueError, TypeError, AttributeError, IndexError, RecursionError):
        raise InvalidArgument("directory", f"{path} is no file of ranges: put back a copy of it") from None
    return config.with_ranges({name: pair for name, pair in found.items() if pair and name in config.bounds.release})
