"""Every file of a run directory that decides anything is covered: once it is changed, whoever relies on it refuses.

What covers each file is listed below, and in the page on federation; a file that is in no list fails the tests.
"""

from __future__ import annotations

import fnmatch
import json
import shutil
from pathlib import Path

import pytest

import marked_inputs as inputs
from dpfed.runs.directory import WHOLE, RunDirectory
from marked_inputs import PRIVACY, head_of, invoke, is_one_sentence

COVERED = {
    "plan.json": "digest in the checkpoint",
    "features.json": "digest in the checkpoint",
    "status": "digest in the checkpoint",
    "owner/origin": "digest in the checkpoint",
    "owner/rows-left-out": "digest in the checkpoint",
    "config.yaml": "digest of its terms in the checkpoint",
    "rounds.jsonl": "a chain of digests, the last in the checkpoint",
    "owner.jsonl": "a chain of digests, the last in the checkpoint",
    "owner/cohort-*.json": "a digest and a seal of its own",
    "released/round-*.npz": "a digest and a seal of its own",
    "checkpoints/round-*.safetensors": "a digest and a seal of its own",
    "ledger.db": "the ledger's own chain",
}
DECIDES_NOTHING = ("report.html", "report-owner.html", "ledger.db-wal", "ledger.db-shm")
READERS = ("runs .", "report {run} --json", "report {run} --markdown --owner", "export {run} --force", "evaluate {run}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every style, finished and interrupted in the last of three rounds."""
    folder = tmp_path_factory.mktemp("made")
    inputs.write_csv(folder / "ward.csv")
    for style in PRIVACY:
        inputs.write_config(folder / f"{style}.yaml", style=style)
        inputs.crash_in_the_last_round(folder / f"{style}.yaml", folder / f"{style}-stopped")
        assert invoke("run", str(folder / f"{style}.yaml"), "--directory", str(folder / f"{style}-done")).exit_code == 0
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def copied(made: Path, name: str) -> Path:
    return Path(shutil.copytree(made / name, name))


def files_of(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())


def said(line: str, run: Path):
    return invoke(*line.format(run=run).split())


RUNS = [f"{style}-{end}" for style in PRIVACY for end in ("stopped", "done")]


@pytest.mark.parametrize("name", RUNS)
def test_it_is_known_of_every_file_of_a_run_what_covers_it(made, name):
    files = [name for name in files_of(made / name) if name not in DECIDES_NOTHING]
    unknown = [name for name in files if not any(fnmatch.fnmatch(name, pattern) for pattern in COVERED)]
    assert not unknown
    run = RunDirectory(made / name)
    assert set(files) & set(WHOLE) <= set(run.note().files)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", RUNS)
def test_a_change_of_any_file_that_decides_something_is_refused_by_resume_and_nothing_is_spent(made, name):
    run = copied(made, name)
    newest = sorted((run / "checkpoints").iterdir())[-1].name
    for file in files_of(run):
        if file in DECIDES_NOTHING or (file.startswith("checkpoints/") and newest not in file):
            continue
        content, before = (run / file).read_bytes(), head_of(run / "ledger.db")
        for changed in (b"", content if file == "ledger.db" else with_another_number(content)):
            if changed != content:
                (run / file).write_bytes(changed)
                result = said("resume {run}", run)
                assert is_one_sentence(result), (file, result.output)
                (run / file).write_bytes(content)
                assert head_of(run / "ledger.db") == before, file
    result = said("resume {run}", run)
    assert result.exit_code == 0, result.output


def with_another_number(content: bytes) -> bytes:
    """Change the last digit of a text, or a bit of the first array of an archive, or else of the last one."""
    if b"\0" in content:
        place = content.find(b"\x93NUMPY") + 128 if b"\x93NUMPY" in content else len(content) - 1
        return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    place = max(content.rfind(str(digit).encode()) for digit in range(10))
    return content if place < 0 else content[:place] + b"%d" % ((content[place] - 47) % 10) + content[place + 1 :]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("style", PRIVACY)
def test_a_forged_line_of_a_later_round_is_shown_by_nobody(made, style):
    run = copied(made, f"{style}-stopped")
    directory = RunDirectory(run)
    before = {line: said(line, run).output for line in READERS}
    assert [record["round"] for record in directory.rounds()] == [1, 2]
    forged = {"accuracy": {"value": 0.987654, "mark": ""}}
    directory.append(directory.rounds()[-1] | {"round": 3, "status": "finished", "metrics": forged})
    directory.append_owner(directory.owner_rounds()[-1] | {"round": 3, "seconds": 987654.0, "metrics": forged})
    (run / "status").write_text("finished")
    for line in READERS:
        assert said(line, run).output == before[line]
    assert json.loads(said("runs . --json", run).output)["runs"][0]["status"] == "unfinished"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("line", READERS)
@pytest.mark.parametrize("file", ["plan.json", "rounds.jsonl", "owner.jsonl", "checkpoints/round-000003.safetensors"])
def test_a_file_of_another_run_is_refused_by_every_reader(made, line, file):
    run = copied(made, "sample-done")
    shutil.copy(made / "hybrid-done" / file, run / file)
    result = said(line, run)
    assert is_one_sentence(result), result.output


@pytest.mark.usefixtures("here")
def test_another_folder_is_not_used_on_the_same_accounts(made):
    run = copied(made, "sample-stopped")
    other = Path("other").resolve()
    shutil.copytree(made, other, ignore=lambda *_: RUNS)
    (run / "owner" / "origin").write_text(str(other))
    for line in ("resume {run}", "evaluate {run}"):
        result = said(line, run)
        assert is_one_sentence(result)
        assert "owner/origin is not what this run wrote" in result.stderr


@pytest.mark.usefixtures("here")
def test_data_that_were_moved_are_found_where_its_owner_says(made, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(made, tmp_path / "first", ignore=lambda *_: RUNS)
    inputs.crash_in_the_last_round(tmp_path / "first" / "sample.yaml", tmp_path / "sample-stopped")
    (tmp_path / "first").rename(moved)
    run = Path("sample-stopped")
    refused = said("resume {run}", run)
    assert is_one_sentence(refused)
    assert "--moved-to FOLDER" in refused.stderr
    assert said("resume {run} --moved-to moved", run).exit_code == 0
    assert (run / "owner" / "origin").read_text() == str(moved)
    assert said("evaluate {run}", run).exit_code == 0
    moved.rename(tmp_path / "again")
    assert said("resume {run} --moved-to again", run).exit_code == 0  # although the run is over
    assert said("evaluate {run}", run).exit_code == 0
