from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from dpfed.cli.main import main


@pytest.fixture
def dpfed(monkeypatch) -> Callable[..., Result]:
    """The command in this process: ``dpfed("epsilon --delta 1e-5 ...")``."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(line: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, line.split(), input=stdin)

    return run
