"""The configuration that a run's directory keeps for later commands; a changed one is refused.

>>> import tempfile
>>> read_kept(RunDirectory(tempfile.mkdtemp())) is None
True
"""

from __future__ import annotations

from dpfed.config.run import RunConfig
from dpfed.runs.directory import CONFIG, RunDirectory


def read_kept(run: RunDirectory) -> RunConfig | None:
    """Return the configuration that the run was begun with; None if it was begun in Python."""
    path = run.path / CONFIG
    if not path.exists():
        return None
    config = RunConfig.read(path)
    run.require_terms(config.terms)
    return config
