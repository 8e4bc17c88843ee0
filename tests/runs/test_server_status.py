"""What a server says of itself is read back, and a server whose process is gone is over, whatever it said last."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dpfed.errors import InvalidArgument
from dpfed.runs import server_status
from dpfed.runs.server_status import BROKEN, ENDED, HUB, WORKING, HubAddress, ServerStatus


@pytest.mark.parametrize("status", [ServerStatus(WORKING, 12), ServerStatus(BROKEN, 13, "the ledger is away")])
def test_a_status_is_read_as_it_was_written(tmp_path, status):
    server_status.write_status(tmp_path, status)
    assert server_status.read_status(tmp_path) == status


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": "working"}'])
def test_half_a_status_is_no_status(tmp_path, text):
    (tmp_path / "owner").mkdir()
    (tmp_path / server_status.SERVER).write_text(text)
    assert server_status.read_status(tmp_path) is None


def test_a_server_that_works_is_over_when_its_process_is():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.communicate()
    assert ServerStatus(WORKING, child.pid).is_over
    assert not ServerStatus(WORKING, os.getpid()).is_over
    assert ServerStatus(ENDED, os.getpid()).is_over


def test_a_process_that_nobody_has_waited_for_is_over():
    child = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    child.stdout.read()  # it ends when the process does
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert ServerStatus(WORKING, child.pid).is_over
    child.communicate()


def test_a_wish_to_stop_is_forgotten_with_the_server_that_heard_it(tmp_path):
    server_status.ask_to_stop(tmp_path)
    server_status.write_status(tmp_path, ServerStatus(ENDED, 1))
    assert server_status.is_asked_to_stop(tmp_path)
    server_status.clear(tmp_path)
    assert not server_status.is_asked_to_stop(tmp_path)
    assert server_status.read_status(tmp_path) is None


def test_the_hub_of_a_run_is_kept_and_a_damaged_one_is_refused(tmp_path):
    assert server_status.read_hub(tmp_path) is None
    server_status.write_hub(tmp_path, HubAddress("hub:9092", "ca.crt"))
    assert server_status.read_hub(tmp_path) == HubAddress("hub:9092", "ca.crt")
    (tmp_path / HUB).write_text("{}")
    with pytest.raises(InvalidArgument, match="--on HOST:PORT"):
        server_status.read_hub(tmp_path)


def test_what_is_written_is_for_the_owner_alone(tmp_path):
    server_status.write_status(tmp_path, ServerStatus(WORKING, 1))
    assert (tmp_path / server_status.SERVER).stat().st_mode & 0o077 == 0
