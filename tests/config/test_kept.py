from __future__ import annotations

import pytest

from begun_runs import confirm, plan
from dpfed.config import RunConfig
from dpfed.config.kept import read_kept
from dpfed.config.templates import hospitals
from dpfed.errors import InvalidArgument
from dpfed.runs.directory import RunDirectory


def test_the_configuration_of_a_run_is_read_and_a_changed_one_refused(tmp_path):
    run, config = RunDirectory(tmp_path / "run"), RunConfig.parse(hospitals().to_yaml())
    run.begin(plan())
    assert read_kept(run) is None
    file = run.path / "config.yaml"
    file.write_text(config.to_yaml())
    confirm(run, 1, terms=config.terms)
    assert read_kept(run) == config
    file.write_text(config.model_copy(update={"runner": "processes"}).to_yaml())
    assert read_kept(run).runner == "processes"
    file.write_text(config.model_copy(update={"rounds": config.rounds + 1}).to_yaml())
    with pytest.raises(InvalidArgument, match="not what the run was begun with"):
        read_kept(run)
