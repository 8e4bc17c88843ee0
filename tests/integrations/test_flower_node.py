"""One real network on loopback: a SuperLink with TLS and known nodes, three sites, three rounds of the example."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from dpfed.errors import InvalidArgument
from dpfed.federated.keys import SigningKey
from dpfed.integrations import flower_files, flower_node
from dpfed.integrations.flower_messages import TYPE, unwrap, wrap
from dpfed.integrations.flower_node import NodeSettings
from real_networks import RealNetwork, make_example_file

ROUNDS, SITES = 3, 3


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A network on which the run was done, with a stranger's node that tried to take part."""
    folder = tmp_path_factory.mktemp("network")
    network = RealNetwork(folder, file=make_example_file(rounds=ROUNDS, seed=7))
    flower_files.write_node_key(folder)
    heard: list[bytes] = []
    stop = threading.Event()
    settings = NodeSettings(network.hub.address, network.hub.authority, folder / "node.key")
    stranger = threading.Thread(target=flower_node.serve, args=(settings, heard.append, stop))
    try:
        network.start_hub()
        stranger.start()
        for name in network.made.sites:
            network.start_site(name)
        result = network.begin()
    finally:
        stop.set()
        stranger.join()
        codes = network.stop()
    return network, result, heard, codes


def test_the_model_is_that_of_the_embedded_run_bit_for_bit(done):
    network, result, _, _ = done
    assert result.exit_code == 0, result.output
    assert network.equals_embedded()


def test_every_site_has_charged_its_own_ledger_once_a_round_and_the_report_says_so(done):
    network, *_ = done
    assert [sum(network.committed(name).values()) for name in network.made.sites] == [ROUNDS] * SITES
    assert network.reported() == network.recomputed()


def test_a_node_that_is_not_registered_gets_nothing(done):
    _, _, heard, _ = done
    assert heard == []


def test_sites_end_when_they_are_asked_to(done):
    *_, codes = done
    assert {code for name, code in codes.items() if name != "hub"} == {0}


def test_no_app_is_fetched_by_a_resident_site(done):
    log = (done[0].made.hub_folder / "superlink.log").read_text()
    assert "[Fleet.PushMessages]" in log
    assert "[Fleet.GetFab]" not in log
    assert "[Fleet.GetRun]" not in log


def test_a_key_that_is_no_key_of_a_node_is_refused(tmp_path):
    (tmp_path / "node.key").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nnothing\n")
    with pytest.raises(InvalidArgument, match="holds no elliptic-curve key"):
        flower_node.read_key(tmp_path / "node.key")
    with pytest.raises(InvalidArgument, match="elliptic-curve keys"):
        flower_node.register("127.0.0.1:1", _authority(tmp_path), [SigningKey.make().public.text])


def _authority(folder: Path) -> Path:
    flower_files.write_certificates(folder, "127.0.0.1")
    return folder / flower_files.CA


@pytest.fixture
def message(monkeypatch):
    """A function that makes a message as a node gets it."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    return lambda records: Message(records, dst_node_id=7, message_type=TYPE)


def session(handle) -> flower_node._Session:
    return flower_node._Session(None, None, handle, 1000, threading.Event())


def test_what_another_app_sends_is_not_handled_and_answered_with_an_error(message):
    heard: list[bytes] = []
    reply = session(heard.append)._reply(message(RecordDict({"train": ConfigRecord({"content": b"x"})})))
    assert (reply.has_error(), heard) == (True, [])


def test_a_request_that_fails_is_answered_with_an_error_that_says_nothing(message, caplog):
    def fail(content: bytes) -> bytes:
        raise ValueError("record 7 is ill")

    reply = session(fail)._reply(message(wrap(b"x")))
    assert reply.error.reason == "the site failed"
    assert "record 7 is ill" in caplog.text  # which is the site's own log


def test_a_request_is_answered_by_what_handles_it(message):
    assert unwrap(session(lambda content: content[::-1])._reply(message(wrap(b"abc"))).content) == b"cba"


def test_a_response_that_says_it_is_too_large_is_not_read():
    class Unread(httpx.SyncByteStream):
        def __iter__(self):
            raise AssertionError("it was read")

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-length": "1001"}, stream=Unread())

    hooks = {"response": [lambda response: flower_node._refuse_large(response, 1000)]}
    with (
        httpx.Client(transport=httpx.MockTransport(answer), event_hooks=hooks) as client,
        pytest.raises(flower_node._TooLarge),
    ):
        client.get("https://hub.example/part")
