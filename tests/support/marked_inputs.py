"""Small worlds of inputs with a marker in every cell: what a command is given, and what it must never show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result
from PIL import Image, PngImagePlugin

from dpfed.cli.main import main
from dpfed.federated import launch
from dpfed.runs.directory import RunDirectory

MARKER = "MARKER"
ROWS = 36
SITES = ("north", "south", "east")
COLUMNS = "age,weight,note,patient,site,ill"
CONFIG = """\
name: wards
data:
  source: {source}
  label: ill
  classes: ["no", "yes"]
  ignore: [note, patient]
  feature_bounds: {{age: [0, 100], weight: [0, 100]}}
  partition: {{kind: column, column: site}}
  sizes: {{north: 12, south: 12, east: 12}}
model: {{kind: logistic}}
rounds: {rounds}
cohort: {{kind: fixed, size: 2}}
max_participations: {rounds}
local: {{steps: 1, batch_size: 4, learning_rate: 0.5}}
privacy: {{style: sample, record: {{noise_multiplier: 2, delta: 1e-5, clip_norm: 1}}}}
"""


IMAGES = """\
name: scans
data:
  source: image-folder:scans
  options: {size: [3, 4]}
  classes: ["no", "yes"]
  partition: {kind: iid, clients: 3}
model: {kind: logistic}
rounds: 2
local: {steps: 1, batch_size: 1, learning_rate: 0.5}
privacy: {style: none}
"""


class Crash(KeyboardInterrupt):
    """Stands for the end of the process."""


def cells(row: int) -> list[str]:
    """Return a record; every cell but the declared site and class is found nowhere else."""
    ill = "yes" if row % 3 else "no"
    return [
        f"{20 + row}.31337{row:03d}",
        f"{40 + row}.27182{row:03d}",
        f"{MARKER}-note-{row}",
        f"{MARKER}-patient-{row}",
        SITES[row % 3],
        ill,
    ]


SECRETS = (MARKER, ".31337", ".27182")


def shows_a_cell(text: str) -> bool:
    """Whether a text has something of a record in it."""
    return any(secret in text for secret in SECRETS)


def write_csv(path: Path) -> None:
    """Write the records as CSV."""
    path.write_text("\n".join([COLUMNS, *(",".join(cells(row)) for row in range(ROWS))]) + "\n")


def write_parquet(path: Path) -> None:
    """Write the same records as Parquet, numbers as numbers."""
    import pyarrow
    from pyarrow import parquet

    columns = dict(zip(COLUMNS.split(","), zip(*map(cells, range(ROWS)), strict=True), strict=True))
    table = {name: list(map(float, texts)) if name in ("age", "weight") else texts for name, texts in columns.items()}
    parquet.write_table(pyarrow.table(table), path)


def write_images(folder: Path) -> None:
    """Write a few images in folders by class, with a marker in the notes of each."""
    notes = PngImagePlugin.PngInfo()
    notes.add_text("patient", MARKER)
    for place in range(6):
        path = folder / ("yes" if place % 2 else "no") / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((3, 4), place, np.uint8)).save(path, pnginfo=notes)


NOISE = "{noise_multiplier: 2, delta: 1e-5, clip_norm: 1}"
SAMPLE = f"style: sample, record: {NOISE}"
PRIVACY = {
    "none": "style: none",
    "sample": SAMPLE,
    "person": f"style: sample, person: {NOISE}",
    "user": f"style: user, client: {NOISE}",
    "hybrid": f"style: hybrid, record: {NOISE}, client: {NOISE}",
}


def write_config(path: Path, source: str = "ward.csv", rounds: int = 3, style: str = "sample") -> None:
    """Write a configuration of a run on one of these files, in a style or, as `person`, for one person."""
    text = CONFIG.format(source=source, rounds=rounds)
    assert SAMPLE in text
    text = text.replace(SAMPLE, PRIVACY[style])
    if style == "person":
        text = text.replace("ignore: [note, patient]", "ignore: [note]\n  person_column: patient\n  rows_per_person: 1")
    if style in ("user", "hybrid"):
        text = text.replace("cohort: {kind: fixed, size: 2}", "cohort: {kind: all}")
    path.write_text(text)


def crash_in_the_last_round(config: Path, directory: Path, rounds: int = 3) -> None:
    """Do all rounds but the last, and of that one all but its records: files of every kind are there afterwards."""
    prepared = launch.create_run(config, directory)
    plain, done = RunDirectory.append, []

    def append(self: RunDirectory, record: dict[str, object]) -> None:
        done.append(record)
        if len(done) == rounds:
            raise Crash
        plain(self, record)

    RunDirectory.append = append  # type: ignore[method-assign]
    try:
        with prepared.ledger(directory) as ledger:
            list(prepared.federation(directory, ledger))
    except Crash:
        pass
    finally:
        RunDirectory.append = plain  # type: ignore[method-assign]


def invoke(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, list(arguments))


def is_one_sentence(result: Result) -> bool:
    """Whether the command was refused by one line on stderr and exit code 2."""
    lines = result.stderr.splitlines()
    return result.exit_code == 2 and len(lines) == 1 and lines[0].startswith("dpfed: ") and not _TRACE.search(lines[0])


_TRACE = re.compile(r"Traceback|File \"|Error\(|0x[0-9a-f]{6}")


def public_files(folder: Path, inputs: set[Path]) -> Iterator[Path]:
    """Return what commands have written there that others than the owner may read, or that is a report."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path not in inputs and (path.stat().st_mode & 0o077 or path.suffix in (".html", ".svg")):
            yield path


def head_of(ledger: Path) -> int | None:
    """Return how many entries a ledger has; None where there is none, or none that can be read."""
    return _asked(ledger, "SELECT seq FROM head")


def spent_in(ledger: Path) -> int:
    """Return how many entries of a ledger commit a charge; none where there is none, or none that can be read."""
    return _asked(ledger, "SELECT count(*) FROM entries WHERE kind = 'committed'") or 0


def _asked(ledger: Path, question: str) -> int | None:
    import sqlite3

    if not ledger.is_file():
        return None
    try:
        with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as link:
            return int(link.execute(question).fetchone()[0])
    except (sqlite3.Error, TypeError, ValueError, OSError):
        return None
