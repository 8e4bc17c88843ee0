"""Real processes of a real network, killed and cut off: `make test-network`. The logic of faults is in `make test`.

Whatever happens, the run goes on or is resumed, every ledger verifies, and the reported ε is never below what the
sites' ledgers say.
"""

from __future__ import annotations

import json
import signal
import socket
import time
from dataclasses import replace

import numpy as np
import pytest

from dpfed.federated import wire
from dpfed.runs.directory import RunDirectory
from proxies import Proxy
from real_networks import RealNetwork


@pytest.fixture
def make(tmp_path):
    made: list[RealNetwork] = []

    def build(**changes) -> RealNetwork:
        made.append(RealNetwork(tmp_path, **changes))
        return made[-1]

    yield build
    for network in made:
        network.stop()


def require_sound(network: RealNetwork, most: dict[str, int]) -> None:
    """The run is finished, its ε is not below the ledgers', and no site was charged more often than it may be."""
    assert RunDirectory(network.run_directory).status == "finished"
    assert network.reported() >= network.recomputed()
    charged = {name: sum(network.committed(name).values()) for name in network.made.sites}
    assert all(charged[name] <= most[name] for name in charged), charged


@pytest.mark.network
def test_a_killed_server_and_a_killed_superlink_lead_to_the_same_model(make):
    """The ServerApp, a SuperLink that keeps its database or loses it, and one in memory: `dpfed resume` goes on."""
    network = make(sites=3, rounds=8, seed=7)
    network.start_hub()
    for name in network.made.sites:
        network.start_site(name)

    def kill_server() -> None:
        network.wait_for_round(1)
        network.kill_server()

    with network.disturbed_by(kill_server) as raised:
        result = network.begin()
    assert (raised, result.exit_code) == ([], 1), result.output

    def kill_hub() -> None:
        network.wait_for_round(len(network.rounds()) + 1)
        network.kill("hub")

    for database in ("superlink.db", None, None):
        with network.disturbed_by(kill_hub) as raised:
            result = network.resume()
        assert (raised, result.exit_code) == ([], 1), result.output
        network.start_hub(database)
    result = network.resume()
    assert result.exit_code == 0, result.output
    require_sound(network, dict.fromkeys(network.made.sites, 8))
    assert network.equals_embedded()


@pytest.mark.network
def test_ctrl_c_stops_after_the_round_and_resume_finishes(make):
    network = make(sites=2, rounds=5, seed=7)
    network.start_hub()
    for name in network.made.sites:
        network.start_site(name)
    network.start_command()
    network.wait_for_round(1)
    network.processes["run"].send_signal(signal.SIGINT)
    assert network.processes["run"].wait(timeout=120) == 130
    done, said = len(network.rounds()), (network.folder / "command.log").read_text()
    assert 1 <= done < 5, said
    assert f"stopped after {done} of 5 rounds" in said
    assert f"dpfed resume {network.run_directory}" in said
    result = network.resume()
    assert result.exit_code == 0, result.output
    require_sound(network, dict.fromkeys(network.made.sites, 5))
    assert network.equals_embedded()


@pytest.mark.network
def test_an_owner_releases_a_run_that_a_serving_site_holds(make):
    network = make(sites=2, rounds=4, seed=7)
    network.start_hub()
    for name in network.made.sites:
        network.start_site(name)

    def kill_server() -> None:
        network.wait_for_round(1)
        network.kill_server()

    with network.disturbed_by(kill_server) as raised:
        result = network.begin()
    assert (raised, result.exit_code) == ([], 1), result.output
    network.kill("hub")
    folder = network.made.sites["north"]
    (held,) = json.loads(network.invoke("site", "status", folder / "site.yaml", "--json").output)["runs"]
    words = ("site", "release", held["run"], folder / "site.yaml", "--reason", "the study was stopped")
    result = network.invoke(*words)
    assert result.exit_code == 0, result.output
    facts = json.loads(network.invoke("site", "status", folder / "site.yaml", "--json").output)
    assert (facts["runs"], facts["kept"]) == ([], [])
    assert network.processes["north"].poll() is None


@pytest.mark.network
def test_a_site_that_is_killed_in_a_round_and_one_behind_a_bad_line_come_back(make):
    network = make(sites=3, rounds=6, seed=7, spare_rounds=1)
    network.start_hub()
    with Proxy(network.hub.port) as line:
        file = network.made.sites["south"] / "site.yaml"
        file.write_text(file.read_text().replace(network.hub.address, f"127.0.0.1:{line.port}"))
        for name in network.made.sites:
            network.start_site(name)

        def disturb() -> None:
            network.wait_for_round(1)
            network.kill("north")
            network.start_site("north")
            network.wait_for_round(2)
            line.cut()
            network.wait_for_round(3)
            line.stall()
            time.sleep(5)
            line.cut()
            line.delay = 0.3

        with network.disturbed_by(disturb) as raised:
            result = network.begin()
    assert (raised, result.exit_code) == ([], 0), result.output
    require_sound(network, {"north": 7, "south": 6, "east": 6})


@pytest.mark.network
def test_hostile_and_broken_clients_stop_nobody_else(make):
    """One site raises, is not a number, has another shape, sends rubbish, and is too late: one in each round."""
    network = make(sites=2, rounds=6, deadline=15.0, seed=7)
    network.start_hub()
    network.start_site("south")

    def change(ask: bytes, answer: bytes, site) -> bytes:
        key = site._key
        reply = wire.unpack(answer, key.public, wire.REPLY, 10**8)
        number, value = reply.header["round"], reply.arrays.get("value")
        if reply.header["verb"] != wire.TRAIN or value is None or number not in (1, 2, 3, 4, 5):
            return answer
        if number == 1:
            raise RuntimeError("the client is broken")
        if number == 2:
            return wire.pack(replace(reply, arrays={"value": np.full_like(value, np.nan)}), key, wire.REPLY)
        if number == 3:
            return wire.pack(replace(reply, arrays={"value": np.ones(value.size + 1, value.dtype)}), key, wire.REPLY)
        if number == 4:
            return bytes(1_000_000_000)
        time.sleep(17)
        return answer

    with network.serving("north", change):
        result = network.begin()
    assert result.exit_code == 0, result.output
    require_sound(network, {"north": 6, "south": 6})
    model = RunDirectory(network.run_directory)
    assert len(model.rounds()) == 6


def test_the_bad_line_itself_passes_bytes_on_until_it_is_cut():
    with socket.create_server(("127.0.0.1", 0)) as listener, Proxy(listener.getsockname()[1]) as line:
        here = socket.create_connection(("127.0.0.1", line.port))
        there, _ = listener.accept()
        with here, there:
            here.sendall(b"question")
            assert there.recv(100) == b"question"
            there.sendall(b"answer")
            assert here.recv(100) == b"answer"
            line.cut()
            assert here.recv(100) == b""
