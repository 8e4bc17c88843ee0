"""No command shows a record: a marker is in every cell, and all that is printed, logged or written for others is read.

Commands that work and commands that fail, on CSV, Parquet and images, with code of one's own that raises what it reads.
A report for the owner may have much that others may not see, but no record either.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import marked_inputs as inputs
from marked_inputs import SECRETS, invoke, shows_a_cell

LOADER = """
import csv
import warnings
from pathlib import Path


def rows():
    with Path(__file__).with_name("ward.csv").open() as file:
        return list(csv.DictReader(file))


def load():
    return {
        site: ([[float(row["age"])] for row in rows() if row["site"] == site],
               [int(row["ill"] == "yes") for row in rows() if row["site"] == site])
        for site in ("north", "south", "east")
    }


def raises():
    raise ValueError(f"cannot read {rows()[3]}")


def nests():
    try:
        raises()
    except ValueError as error:
        raise KeyError(rows()[4]["patient"]) from error


def table():
    return rows()


def texts():
    return {"north": ([row["note"] for row in rows()], [row["patient"] for row in rows()])}


def metric(outputs, targets):
    raise ValueError(str(rows()))


def Talkative(features, classes):
    import torch

    class Talks(torch.nn.Linear):
        def forward(self, inputs):
            if inputs.abs().sum() > 0 and not torch.equal(inputs, inputs.round()):
                raise ValueError(str(rows()))
            return super().forward(inputs)

    return Talks(features, classes)


def moody(outputs, targets):
    if outputs.any() and len(outputs) != 2:
        raise ValueError(str(rows()))
    return targets
"""
AT_IMPORT = "from pathlib import Path\nfloat(Path(__file__).with_name('ward.csv').read_text())\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    inputs.write_csv(Path("ward.csv"))
    inputs.write_parquet(Path("ward.parquet"))
    inputs.write_images(Path("scans"))
    Path("clinic.py").write_text(LOADER)
    Path("greedy.py").write_text(AT_IMPORT)
    inputs.write_config(Path("run.yaml"), rounds=2)
    return tmp_path


@pytest.fixture(autouse=True)
def _no_log_shows_a_cell(caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder):
    with caplog.at_level(logging.DEBUG):
        yield
    assert not shows_a_cell(caplog.text)
    assert not [each for each in recwarn.list if shows_a_cell(str(each.message))]


@pytest.fixture(params=["", "1"], ids=["", "traceback"])
def switch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the lines of code that led to a fault."""
    monkeypatch.setenv("DPFED_TRACEBACK", request.param)


def said(*arguments: str) -> str:
    """Run the command, and return what it prints, which must show no cell."""
    result = invoke(*arguments)
    assert not shows_a_cell(result.output), (arguments, result.output[-2000:])
    return result.output


def require_nothing_written(folder: Path, known: set[Path]) -> list[Path]:
    """Return the files that were written; none of them may show a cell, not even as bytes of a number."""
    written = [path for path in folder.rglob("*") if path.is_file() and path not in known]
    for path in written:
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in SECRETS), path
    return written


def known_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("source", ["ward.csv", "ward.parquet", "clinic:load"])
def test_no_command_shows_a_cell_of_a_run_that_works(here, source):
    known = known_files(here)
    text = Path("run.yaml").read_text().replace("ward.csv", source)
    if source == "clinic:load":
        left_out = ("  label", "  ignore", "  feature")
        text = "\n".join(line for line in text.splitlines() if not line.startswith(left_out)).replace(
            "column: site", "column: client"
        )
    Path("run.yaml").write_text(text)
    assert "ε" in said("plan", "run.yaml", "--by-round")
    said("plan", "run.yaml", "--json", "--no-code")
    assert "finished after 2 of 2 rounds" in said("run", "run.yaml", "--directory", "done")
    assert json.loads(said("run", "run.yaml", "--json", "--directory", "again"))["status"] == "finished"
    for options in ([], ["--json"], ["--markdown"], ["--markdown", "--owner"], ["--json", "--owner"]):
        said("report", "done", *options)
    for line in ("resume done", "runs .", "runs . --json", "export done", "evaluate done", "evaluate done --json"):
        assert said(*line.split())
    ledger = ["--ledger", "done/ledger.db"]
    for line in ("show", "statement client-north", "reservations", "verify", "head", "export"):
        assert said("ledger", *line.split(), *ledger)
    said("doctor", *ledger)
    assert len(require_nothing_written(here, known)) > 15


@pytest.mark.parametrize("style", inputs.PRIVACY)
def test_no_command_shows_a_cell_of_a_run_of_any_style_that_stopped_and_went_on(here, style):
    inputs.write_config(Path("run.yaml"), style=style)
    known = known_files(here)
    inputs.crash_in_the_last_round(Path("run.yaml"), Path("stopped"))
    for line in AFTERWARDS:
        said(*line.split())
    assert "finished after 3 of 3 rounds" in said("resume", "stopped")
    for line in (*AFTERWARDS, "ledger backup copy.db --ledger stopped/ledger.db", "resume stopped --moved-to ."):
        said(*line.split())
    assert len(require_nothing_written(here, known)) > 8


AFTERWARDS = (
    "report stopped",
    "report stopped --json --owner",
    "report stopped --markdown --owner",
    "runs .",
    "export stopped --force",
    "evaluate stopped",
    "evaluate stopped ward.csv --json",
    "evaluate stopped ward.parquet",
    "evaluate stopped clinic:raises",
    "evaluate stopped clinic:texts",
    "run run.yaml --directory stopped",
    "ledger reservations --ledger stopped/ledger.db",
    "ledger statement study --ledger stopped/ledger.db --json",
)


def test_no_command_shows_what_is_in_an_image(here):
    Path("run.yaml").write_text(inputs.IMAGES)
    known = known_files(here)
    said("plan", "run.yaml")
    assert "finished after 2 of 2 rounds" in said("run", "run.yaml", "--directory", "stopped")
    for line in AFTERWARDS:
        said(*line.split())
    for path in Path("scans").rglob("*.png"):
        path.write_bytes(path.read_bytes()[:-30])
    for line in ("plan run.yaml", "run run.yaml --directory new", "evaluate stopped", "resume stopped"):
        said(*line.split())
    assert len(require_nothing_written(here, known)) > 8


@pytest.mark.parametrize("track", ["kind: tensorboard", "kind: mlflow, tracking_uri: 'sqlite:///seen.db'"])
def test_no_tracker_is_told_a_cell(here, track):
    known = known_files(here)
    with Path("run.yaml").open("a") as file:
        file.write(f"track: {{{track}}}\n")
    assert "finished after 2 of 2 rounds" in said("run", "run.yaml", "--directory", "new")
    written = require_nothing_written(here, known)
    assert any("tfevents" in path.name or path.name == "seen.db" for path in written)


@pytest.mark.usefixtures("switch")
@pytest.mark.parametrize("runner", ["auto", "one_by_one", "processes"])
def test_a_model_that_fails_on_records_with_their_content_in_its_words_shows_no_cell(here, runner):
    text = Path("run.yaml").read_text().replace("kind: logistic", "kind: clinic:Talkative")
    Path("run.yaml").write_text(f"{text}runner: {runner}\n")
    known = known_files(here)
    told = said("run", "run.yaml", "--directory", "new")
    assert "fails on made-up records of shape (2,) with targets of shape (): a ValueError in clinic.py, line" in told
    Path("clinic.py").write_text(LOADER.replace("inputs.abs().sum() > 0", "inputs.shape[-2:] == (4, 2)"))
    sys.modules.pop("clinic")
    told = said("run", "run.yaml", "--directory", "new")
    require_nothing_written(here, known)


@pytest.mark.parametrize("line", ["run run.yaml", "run ward.csv", "plan ward.parquet", "run talkative.yaml"])
def test_nothing_that_a_process_prints_in_any_way_shows_a_cell(here, line):
    """What code in C, a thread or a fork prints does not go through Python's own streams."""
    text = Path("run.yaml").read_text().replace("kind: logistic", "kind: clinic:Talkative")
    Path("talkative.yaml").write_text(f"{text}runner: processes\n")
    environment = {**os.environ, "DPFED_TRACEBACK": "1", "PYTHONDEVMODE": "0", "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-m", "dpfed", *line.split()]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode in (0, 2)
    assert not shows_a_cell(done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace"))


def test_init_writes_nothing_of_a_column_of_numbers_names_or_notes(here):
    known = known_files(here)
    said("init", "ward.csv", "--label", "ill", "--site-column", "site", "--person-column", "patient")
    said("init", "ward.csv", "--label", "ill", "--site-column", "site", "-o", "-")
    said("init", "ward.csv", "--label", "weight", "--site-column", "site", "--size", "12", "-o", "other.yaml")
    assert len(require_nothing_written(here, known)) == 2


FAILING_LINES = [
    "run ward.csv",
    "run ward.parquet",
    "run scans/no/0.png",
    "run clinic.py",
    "plan ward.csv",
    "plan ward.parquet --no-code",
    "init ward.csv --label nothing --site-column site",
    "init ward.csv --label ill --site-column nothing",
    "init ward.csv --label note --site-column site",
    "init ward.csv --label patient --site-column note",
    "init ward.parquet --label ill --site-column site",
    "resume ward.csv",
    "report ward.csv",
    "export ward.csv",
    "evaluate ward.csv",
    "runs ward.csv",
    "epsilon --event ward.csv --delta 1e-5",
    "delta --event ward.csv --epsilon 1",
    "ledger show --ledger ward.csv",
    "ledger verify --ledger ward.csv",
    "ledger verify ward.csv",
    "ledger head --ledger ward.csv",
    "doctor --ledger ward.csv",
    "check model clinic:load --shape 2",
    "check model clinic:raises --shape 2",
    "check model greedy:Net --shape 2",
    "compare ward.csv",
    "compare --event ward.csv",
    "calibrate --event ward.csv",
]


# What `init` finds there it leaves to be declared: nothing of it is written.
NO_MISTAKES = (
    "init ward.csv --label note --site-column site",
    "init ward.csv --label patient --site-column note",
    "init ward.parquet --label ill --site-column site",
)


@pytest.mark.usefixtures("switch")
@pytest.mark.parametrize("line", FAILING_LINES)
def test_no_command_that_is_given_a_data_file_by_mistake_shows_a_cell(here, line):
    known = known_files(here)
    result = invoke(*line.split())
    may_succeed = line.startswith(("doctor", "runs", "ledger verify")) or line in NO_MISTAKES
    assert result.exit_code in ((0, 1, 2) if may_succeed else (2,)), result.output
    assert not shows_a_cell(result.output), result.output
    require_nothing_written(here, known)


CHANGES = {
    "source: ward.csv": [
        "source: clinic:raises",
        "source: clinic:nests",
        "source: clinic:table",
        "source: clinic:texts",
        "source: greedy:load",
        "source: clinic:metric",
        "source: idx:ward.csv",
        "source: nnunet:.",
    ],
    "label: ill": ["label: note", "label: age", "label: nothing", "label: patient"],
    'classes: ["no", "yes"]': ["classes: [a, b]", "classes: ['yes']"],
    "ignore: [note, patient]": ["ignore: [note]", "ignore: []", "categories: {note: [a], patient: [b]}"],
    "column: site": ["column: note", "column: patient", "column: nothing"],
    "sizes: {north: 12, south: 12, east: 12}": ["sizes: {north: 12, south: 12}", "sizes: {north: 12, west: 12}"],
    "kind: logistic": [
        "kind: clinic:raises",
        "kind: logistic, metric: clinic:metric",
        "kind: greedy:Net",
        "kind: clinic:table",
        "kind: logistic, metric: greedy:metric",
        "kind: logistic, init: ward.csv",
    ],
}


# A plan of declared sizes reads the first line of a table alone; the run refuses.
OF_CELLS = (
    *("classes: [a, b]", "classes: ['yes']", "categories: {note: [a], patient: [b]}"),
    *("sizes: {north: 12, south: 12}", "sizes: {north: 12, west: 12}"),
)


@pytest.mark.usefixtures("switch")
@pytest.mark.parametrize(
    "change", [(old, new) for old, news in CHANGES.items() for new in news], ids=lambda pair: pair[1]
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_no_refusal_of_data_that_do_not_fit_shows_a_cell(here, change, command):
    known = known_files(here)
    text = Path("run.yaml").read_text()
    assert change[0] in text
    Path("run.yaml").write_text(text.replace(*change))
    result = invoke(command, "run.yaml", *(["--directory", "new"] if command == "run" else []))
    is_for_the_run = command == "plan" and (change[0] == "kind: logistic" or change[1] in OF_CELLS)
    assert result.exit_code == (0 if is_for_the_run else 2), result.output
    assert not shows_a_cell(result.output), result.output
    require_nothing_written(here, known | {here / "new" / "config.yaml"})
    assert inputs.head_of(here / "new" / "ledger.db") is None


@pytest.mark.usefixtures("switch")
@pytest.mark.parametrize(
    "text", ["MARKER", "MARKER,1", "1,2,3,MARKER,north,yes", '1,2,"MARKER\n', "1,MARKER,x,y,north,no"]
)
def test_no_refusal_of_a_bad_line_shows_a_cell(here, text):
    with Path("ward.csv").open("a") as file:
        file.write(text + "\n")
    for command in ("plan run.yaml", "run run.yaml", "init ward.csv --label ill --site-column site"):
        said(*command.split())


@pytest.mark.usefixtures("switch")
def test_a_metric_that_fails_on_what_is_held_out_shows_no_cell(here):
    text = Path("run.yaml").read_text().replace("kind: logistic", "kind: logistic, metric: clinic:moody")
    Path("run.yaml").write_text(text)
    known = known_files(here)
    assert "finished after 2 of 2 rounds" in said("run", "run.yaml", "--directory", "new")
    assert "moody nan" in said("evaluate", "new")
    said("resume", "new")
    said("report", "new")
    require_nothing_written(here, known)


@pytest.mark.usefixtures("switch")
def test_a_file_with_data_in_the_place_of_one_of_a_run_is_not_shown(here):
    said("run", "run.yaml", "--directory", "new")
    cell = Path("ward.csv").read_bytes()
    files = sorted(path for path in Path("new").rglob("*") if path.is_file() and "report" not in path.name)
    for path in files:
        sound = path.read_bytes()
        path.write_bytes(cell)
        for line in ("report new --json", "runs .", "export new --force", "evaluate new", "resume new"):
            said(*line.split())
        path.write_bytes(sound)
