"""A disk that is full, and places that cannot be written: one sentence, and nothing is lost."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

import marked_inputs as inputs
from dpfed.ledger.ledger import Ledger
from marked_inputs import head_of, invoke, is_one_sentence


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    inputs.write_csv(Path("ward.csv"))
    inputs.write_config(Path("run.yaml"), rounds=2)
    return tmp_path


class Full:
    """Writes that fail from the n-th on, as on a full disk."""

    def __init__(self, sound: int) -> None:
        self.sound = sound
        self.fsync = os.fsync

    def __call__(self, file: int) -> None:
        self.sound -= 1
        if self.sound < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.fsync(file)


@pytest.mark.parametrize("sound", range(0, 30, 3))
def test_a_disk_that_fills_up_while_storing_ends_in_one_sentence_and_the_run_goes_on_later(here, monkeypatch, sound):
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", Full(sound))
        result = invoke("run", "run.yaml", "--directory", "new")
    if result.exit_code != 0:
        assert is_one_sentence(result), result.output
        assert "No space left on device" in result.stderr or "cannot be written" in result.stderr
    if (here / "new" / "config.yaml").exists():
        result = invoke("resume", "new")
        assert "after 2 of 2 rounds" in result.output, result.output
        with Ledger(here / "new" / "ledger.db", create=False) as ledger:
            assert ledger.verify().rows


def test_a_disk_without_room_is_refused_before_anything_is_charged(here, monkeypatch):
    usage = shutil.disk_usage(here)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    result = invoke("run", "run.yaml", "--directory", "new")
    assert is_one_sentence(result)
    assert "the disk of new has 1 MB left, and the run may need 16 MB: delete files, then" in result.stderr
    assert "nothing was spent" in result.stderr
    assert head_of(here / "new" / "ledger.db") is None


def test_an_export_that_cannot_be_written_leaves_nothing_and_is_one_sentence(here, monkeypatch):
    assert invoke("run", "run.yaml", "--directory", "new").exit_code == 0
    Path("model.md").mkdir()
    for options in ([], ["--force"]):
        result = invoke("export", "new", "model.safetensors", *options)
        assert is_one_sentence(result)
        assert "model.md is a folder" in result.stderr
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda path, mode: False)
        assert "nothing can be written into ." in invoke("export", "new", "other.safetensors").stderr
    result = invoke("export", "new", f"{'x' * 300}.safetensors")
    assert is_one_sentence(result)
    result = invoke("export", "new", "a\0b.safetensors")
    assert is_one_sentence(result)
    assert not list(here.glob("*.safetensors"))


GARBAGE = [
    b"",
    b"\xff\xfe",
    b"[]",
    b'"x"',
    b"{}",
    b"[" * 5000,
    b'{"round": 1}\n',
    b'{"round": "x"}\n',
    b"null\n",
    b"x,y\n1,2\n",
]


@pytest.mark.parametrize("content", GARBAGE)
def test_garbage_in_a_file_of_a_run_is_noticed_before_a_round_is_run(here, content):
    inputs.crash_in_the_last_round(Path("run.yaml"), Path("new"), rounds=2)
    head = head_of(here / "new" / "ledger.db")
    checkpoint = sorted(Path("new/checkpoints").iterdir())[-1]
    for name in (
        "plan.json",
        "rounds.jsonl",
        "owner.jsonl",
        "owner/cohort-000002.json",
        "owner/origin",
        checkpoint.relative_to("new"),
    ):
        path = Path("new", name)
        sound = path.read_bytes()
        path.write_bytes(content)
        is_empty = path.suffix == ".jsonl" and b"\n" not in content  # half a line of a crash, which is allowed
        is_nobody = path.name.startswith("cohort") and content == b"[]"  # nobody was drawn
        if not is_empty and not is_nobody:
            result = invoke("resume", "new")
            assert is_one_sentence(result), (name, result.output)
            assert path.name in result.stderr
            assert head_of(here / "new" / "ledger.db") == head
        path.write_bytes(sound)
