"""A run on a network is followed by its own files, and ends by its own word alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from dpfed.cli import remote
from dpfed.cli.main import main
from dpfed.integrations import flower_files
from dpfed.integrations.deployment import write_deployment
from dpfed.integrations.trial import make_trial_file
from dpfed.runs import server_status
from dpfed.runs.directory import RunDirectory
from dpfed.runs.server_status import BROKEN, ENDED, STOPPED, WORKING, HubAddress, ServerStatus
from run_directories import made, plan_of


def judge(status, tmp_path):
    remote._judge(status, tmp_path, 2, plan_of("sample"))


def test_a_run_that_says_it_has_ended_has_ended(tmp_path):
    judge(ServerStatus(ENDED, 1), tmp_path)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (ServerStatus(STOPPED, 1), 130, "stopped after 2 of 3 rounds"),
        (ServerStatus(WORKING, 1), 1, "ended without a word after 2 of 3 rounds"),
        (ServerStatus(BROKEN, 1, "north (policy)"), 1, "north (policy)"),
    ],
)
def test_any_other_end_says_how_to_go_on(tmp_path, capsys, status, code, words):
    with pytest.raises(SystemExit) as left:
        judge(status, tmp_path)
    said = capsys.readouterr().err
    assert (left.value.code, words in said, f"dpfed resume {tmp_path}" in said) == (code, True, True)


def test_a_server_that_never_speaks_is_no_success(tmp_path):
    with pytest.raises(Exception, match="which must see"):
        judge(None, tmp_path)


def test_rounds_are_shown_as_they_are_in_the_directory(tmp_path, capsys):
    directory = made(tmp_path / "run", plan_of("sample"), most=2)
    follower = remote._Follower(directory, RunDirectory(directory).plan, is_quiet=False)
    follower.shown = 0
    server_status.write_status(directory, ServerStatus(ENDED, 1))
    assert follower.follow().state == ENDED
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["round 1 of 3", "round 2 of 3"]
    assert follower.shown == 2


def test_a_killed_server_is_noticed_though_it_says_that_it_works(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.communicate()
    server_status.write_status(tmp_path, ServerStatus(WORKING, child.pid))
    assert remote._Follower(tmp_path, plan_of("sample"), is_quiet=True).follow().state == WORKING


def test_the_first_stop_asks_the_server(tmp_path, capsys):
    remote._Follower(tmp_path, plan_of("sample"), is_quiet=True)._stop()
    assert server_status.is_asked_to_stop(tmp_path)


def test_a_hub_is_the_one_asked_for_or_that_of_before(tmp_path):
    asked = remote.find_hub(tmp_path, "hub:9092", None, tmp_path)
    assert asked == HubAddress("hub:9092", str(tmp_path / "ca.crt"))
    server_status.write_hub(tmp_path, HubAddress("hub:9092", "/there/ca.crt"))
    assert remote.find_hub(tmp_path, None, None, tmp_path) == HubAddress("hub:9092", "/there/ca.crt")
    assert remote.find_hub(tmp_path, "other:1", None, tmp_path) == HubAddress("other:1", "/there/ca.crt")


@pytest.mark.parametrize("on", ["hub", "https://hub:9092", ""])
def test_an_address_without_a_port_is_refused(tmp_path, on):
    with pytest.raises(Exception, match="--on HOST:PORT"):
        remote.find_hub(None, on, None, tmp_path)


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_deployment(make_trial_file(1), tmp_path / "deployment", "127.0.0.1:1")


def test_a_superlink_that_is_away_leaves_no_directory_behind(study, tmp_path):
    result = CliRunner().invoke(main, ["run", str(study.run_file), "--on", "127.0.0.1:1"])
    assert (result.exit_code, "no SuperLink answers" in result.output) == (2, True)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_a_file_without_a_network_is_refused_by_the_name_of_the_block(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flower_files.write_certificates(tmp_path, "127.0.0.1")
    (tmp_path / "run.yaml").write_bytes(make_trial_file(1).content)
    result = CliRunner().invoke(main, ["run", "run.yaml", "--on", "127.0.0.1:1"])
    assert (result.exit_code, "network is missing" in result.output) == (2, True)


def test_a_run_on_a_network_is_never_resumed_on_one_machine(tmp_path):
    directory = made(tmp_path / "run", plan_of("sample"), most=2)
    (directory / server_status.ASKS).write_text("")
    result = CliRunner().invoke(main, ["resume", str(directory)])
    assert (result.exit_code, "begun by `dpfed run --on`" in result.output) == (2, True), result.output
