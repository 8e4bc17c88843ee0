from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from done_runs import RUN, table
from dpfed.cli.main import main
from dpfed.federated.launch import create_run
from dpfed.ledger.ledger import Ledger
from ledger_commands import STEP

Run = Callable[..., Result]


@pytest.fixture
def dpfed(monkeypatch) -> Callable[..., Result]:
    """The command in this process: ``dpfed("epsilon --delta 1e-5 ...")``."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(line: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, line.split(), input=stdin)

    return run


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Where the ledger of the test will be."""
    return tmp_path / "book.db"


@pytest.fixture
def run(book: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command on that ledger: ``run("show", "icu")``."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("DPFED_LEDGER", str(book))
    return lambda *arguments: CliRunner().invoke(main, ["ledger", *arguments])


@pytest.fixture
def icu(book: Path) -> Ledger:
    """A ledger with one account and one run that holds ten and committed three."""
    ledger = Ledger(book)
    ledger.open("icu", epsilon=8.0, delta=1e-5, owner="dpo", purpose="study 12", labels={"basis": "consent"})
    reservation = ledger.reserve({"icu": {STEP: 10}}, run="study-12")
    for _ in range(3):
        reservation.commit({"icu": STEP})
    return ledger


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """A folder with a run that is finished and one that was never begun."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "iris.csv").write_text(table())
    (folder / "run.yaml").write_text(RUN)
    launch = create_run(folder / "run.yaml", folder / "runs" / "flowers-1")
    with launch.ledger(folder / "runs" / "flowers-1") as ledger:
        list(launch.federation(folder / "runs" / "flowers-1", ledger))
    (folder / "runs" / "empty").mkdir()
    return folder


@pytest.fixture
def flowers(study, tmp_path, monkeypatch):
    """This folder is a copy of the study's."""
    shutil.copytree(study, tmp_path / "study")
    monkeypatch.chdir(tmp_path / "study")
