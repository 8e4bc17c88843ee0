from __future__ import annotations

import pytest

from begun_runs import plan
from dpfed.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.begin(plan())
    return directory
