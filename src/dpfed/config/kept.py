"""The configuration that a run's directory keeps, for whoever reads or resumes the run: unchanged, or refused.

>>> import tempfile
>>> kept(RunDirectory(tempfile.mkdtemp())) is None
True
"""

from __future__ import annotations

from dpfed.config.run import RunConfig
from dpfed.runs import CONFIG, RunDirectory


def kept(run: RunDirectory) -> RunConfig | None:
    """Return the configuration that the run was begun with; None if it was begun in Python."""
    path = run.path / CONFIG
    if not path.exists():
        return None
    config = RunConfig.read(path)
    run.require_terms(config.terms)
    return config
