"""Flower's programs are started with everything off that talks to others, and ended by their ids."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dpfed.errors import InvalidArgument
from dpfed.integrations import flower_files, flower_processes
from dpfed.integrations.flower_processes import Hub, end, program, spawn

HUB = Hub(Path("hub"), "hub.example:9092")


def test_a_superlink_has_a_database_certificates_and_known_nodes_and_installs_nothing():
    flags = HUB.flags()
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation", "--database"} <= set(flags)
    assert "--insecure" not in flags
    assert flags[flags.index("--ssl-keyfile") + 1] == "hub/server.key"


def test_telemetry_and_the_search_for_updates_are_off():
    environment = HUB.environment()
    assert (environment["FLWR_TELEMETRY_ENABLED"], environment["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    assert environment["FLWR_HOME"].endswith("hub/flower")


@pytest.mark.parametrize(("address", "host"), [("hub.example:9092", "hub.example"), ("[::1]:9092", "::1")])
def test_an_address_is_a_host_and_a_port(address, host):
    assert (Hub(Path(), address).host, Hub(Path(), address).port) == (host, 9092)


def test_nobody_answers_where_nobody_listens(tmp_path):
    flower_files.write_certificates(tmp_path, "127.0.0.1")
    assert not Hub(tmp_path, "127.0.0.1:1").answers()


def test_the_configuration_names_the_address_and_the_authority(tmp_path):
    Hub(tmp_path, "127.0.0.1:9092").configure()
    text = (tmp_path / "flower" / "config.toml").read_text()
    assert 'address = "127.0.0.1:9092"' in text
    assert f'root-certificates = "{tmp_path}/ca.crt"' in text


def test_a_program_that_is_not_installed_is_refused_with_what_to_type():
    with pytest.raises(InvalidArgument, match=r"pip install 'dpfed\[flower\]'"):
        program("flower-of-nowhere")


def test_processes_are_ended_also_one_that_does_not_want_to(tmp_path):
    stubborn = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
    deaf = subprocess.Popen(
        [sys.executable, "-c", stubborn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    deaf.stdout.readline()
    willing = spawn([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log", {})
    end([deaf, willing], patience=0.5)
    assert (deaf.poll(), willing.poll()) == (-9, -15)
    deaf.stdin.close()
    deaf.stdout.close()


def test_a_ctrl_c_while_processes_are_ended_leaves_none_of_them(tmp_path, monkeypatch):
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    processes = [spawn(sleeping, tmp_path / "log", {}) for _ in range(2)]
    for process in processes:
        monkeypatch.setattr(process, "send_signal", lambda number: None)
    wait = processes[0].wait

    def interrupt(*_):
        monkeypatch.setattr(processes[0], "wait", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(processes[0], "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        end(processes)
    assert [process.poll() for process in processes] == [-9, -9]


def test_off_is_said_in_one_place():
    assert set(flower_processes.OFF) == {"FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK"}
