"""Audits of a run are kept, those of private values in the owner's folder alone."""

from __future__ import annotations

import pytest

from dpfed.errors import InvalidArgument
from dpfed.runs.audits import AUDITS, add, read_lines
from dpfed.runs.directory import RunDirectory


def test_what_is_for_the_owner_is_not_among_what_is_shared(tmp_path):
    run = RunDirectory(tmp_path)
    add(run, [{"line": "shared"}], is_shareable=True)
    add(run, [{"line": "kept"}], is_shareable=False)
    add(run, [{"line": "later"}], is_shareable=True)
    assert read_lines(run) == ("shared", "later")
    assert read_lines(run, is_owner=True) == ("shared", "later", "kept")
    assert (tmp_path / "owner" / AUDITS).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["{", "[1]", '[{"line": 3}]', "3"])
def test_a_file_that_holds_no_audits_is_refused(tmp_path, content):
    (tmp_path / AUDITS).write_text(content)
    with pytest.raises(InvalidArgument, match="holds no audits"):
        read_lines(RunDirectory(tmp_path))
