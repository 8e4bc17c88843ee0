"""What `dpfed deploy` writes and refuses; that a trial runs is in integrations/test_flower_node.py."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import click
import pytest
from click.testing import CliRunner

from dpfed.cli import deploy
from dpfed.cli.main import main
from dpfed.integrations import trial
from dpfed.integrations.deployment import write_deployment
from dpfed.integrations.flower_processes import spawn
from dpfed.integrations.trial import make_trial_file


def invoke(*words: str):
    return CliRunner().invoke(main, ["deploy", *words])


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hospitals.yaml").write_bytes(make_trial_file(2).content)
    return tmp_path / "hospitals.yaml"


def test_init_says_what_goes_where(run_file):
    result = invoke("init", str(run_file), "--hub", "hub.example:9092")
    assert result.exit_code == 0, result.output
    assert "dpfed run deployment/study/hospitals.yaml --on hub.example:9092" in result.output
    again = invoke("init", str(run_file), "--hub", "hub.example:9092")
    assert again.exit_code == 2
    assert "is not empty" in again.output


def test_init_speaks_json(run_file):
    result = invoke("init", str(run_file), "--hub", "hub.example:9092", "--directory", "wards", "--json")
    assert json.loads(result.output)["sites"] == ["north", "south"]


@pytest.mark.parametrize("hub", ["hub.example", "https://hub.example:9092", "hub:port", "", "hüb:1", "hub:70000"])
def test_an_address_without_host_and_port_is_refused(run_file, hub):
    result = invoke("init", str(run_file), "--hub", hub)
    assert (result.exit_code, "--hub must be a host and a port" in result.output) == (2, True)


def test_register_refuses_what_is_no_deployment(tmp_path):
    result = invoke("register", str(tmp_path))
    assert (result.exit_code, "is no deployment" in result.output) == (2, True)


def test_register_says_that_the_superlink_is_away(run_file):
    invoke("init", str(run_file), "--hub", "127.0.0.1:1")
    result = invoke("register", "deployment")
    assert (result.exit_code, "the SuperLink cannot be reached" in result.output) == (2, True)


def test_without_flower_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(click.UsageError, match=r"pip install 'dpfed\[flower\]'"):
        deploy.import_flower("flower_node")


def test_a_trial_of_no_sites_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("up", "--local", "0")
    assert (result.exit_code, "between 1 and 20 sites" in result.output) == (2, True)


def test_another_number_of_sites_than_a_trial_has_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_deployment(make_trial_file(2), tmp_path / "trial", "127.0.0.1:9092")
    result = invoke("up", "--local", "3")
    assert (result.exit_code, "trial is a trial of 2 sites" in result.output) == (2, True), result.output
    assert "type --local 2, or --directory with a new folder" in " ".join(result.output.split())


def start_trial(tmp_path, monkeypatch, act) -> tuple[list[dict], object]:
    """Run `dpfed deploy up` on processes that only sleep, and do something once they are there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deploy, "LOOK", 0.01)
    made = write_deployment(make_trial_file(1), tmp_path / "trial", "127.0.0.1:9092")
    started: list[dict] = []

    @contextmanager
    def running(_):
        sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
        started.append({name: spawn(sleeping, tmp_path / name, {}) for name in ("hub", *made.sites)})
        try:
            threading.Timer(0.1, act, started).start()
            yield started[0]
        finally:
            trial.end_all(started[0])

    monkeypatch.setattr(trial, "running", running)
    return started, invoke("up", "--local", "1")


@pytest.fixture
def as_from_a_terminal():
    """Hear signals that whoever started the tests has ignored (`nohup`, a job in the background)."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield usual
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_and_a_closed_terminal_end_all_processes_of_a_trial(tmp_path, monkeypatch, number, as_from_a_terminal):
    (processes,), result = start_trial(tmp_path, monkeypatch, lambda _: os.kill(os.getpid(), number))
    assert (result.exit_code, "ended the SuperLink and the sites" in result.output) == (0, True), result.output
    assert [process.poll() for process in processes.values()] == [-signal.SIGTERM] * 2
    assert signal.getsignal(number) == as_from_a_terminal[number]


def test_a_trial_under_nohup_outlives_its_terminal(tmp_path, monkeypatch):
    def close_terminal(processes: dict) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        processes["hub"].kill()

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _, result = start_trial(tmp_path, monkeypatch, close_terminal)
    signal.signal(signal.SIGHUP, before)
    assert "the SuperLink has ended" in result.output  # and nothing before ended the trial


def test_a_trial_whose_superlink_has_ended_says_where_the_reason_is(tmp_path, monkeypatch):
    (processes,), result = start_trial(tmp_path, monkeypatch, lambda processes: processes["hub"].kill())
    assert (result.exit_code, "trial/hub/superlink.log" in result.output) == (2, True), result.output
    assert processes["north"].poll() == -signal.SIGTERM


def test_all_but_the_connection_itself_is_imported_without_flower():
    names = ["cli.main", "cli.deploy", "cli.remote", "integrations.deployment", "integrations.trial"]
    names += ["integrations.flower_run", "integrations.flower_files", "integrations.flower_processes"]
    modules = ", ".join(f"dpfed.{name}" for name in names)
    code = f"import sys; sys.modules['flwr'] = None; import {modules}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
