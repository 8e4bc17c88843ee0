"""Bytes through a Grid: sites by their keys, failures by one word each, and no reply held up by another."""

from __future__ import annotations

import signal
import threading
import time
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives import serialization
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from dpfed.errors import InvalidArgument
from dpfed.federated.transport import LATE, LOST, REFUSED
from dpfed.integrations import flower, flower_files
from dpfed.integrations.flower import GridTransport
from dpfed.integrations.flower_messages import TYPE, unwrap, wrap
from dpfed.runs import server_status
from dpfed.runs.server_status import BROKEN


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Who this process is to Flower, which a message asks for."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class MemoryGrid(Grid):
    """A Grid without a SuperLink: replies are what a function of the message gives; None has not come yet."""

    def __init__(self, answer=lambda message: Message(message.content, reply_to=message), nodes=()):
        self.answer, self.nodes, self.pushed = answer, nodes, {}
        self.refuses = False

    def set_run(self, run): ...

    @property
    def run(self): ...

    def create_message(self, *args, **kwargs): ...

    def send_and_receive(self, messages, *, timeout=None): ...

    def get_node_ids(self):
        return [node.node_id for node in self.nodes]

    def get_nodes(self):
        return self.nodes

    def push_messages(self, messages):
        if self.refuses:
            return []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(len(self.pushed))
            self.pushed[message.metadata.message_id] = message
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        found = [self.answer(self.pushed[each]) for each in message_ids if each in self.pushed]
        return [reply for reply in found if reply is not None]


def push(transport: GridTransport, content: bytes = b"a question") -> str:
    return transport.push("7", content, deadline=time.time() + 60).token


def test_a_reply_comes_back_once():
    grid = MemoryGrid(lambda message: Message(wrap(unwrap(message.content)[::-1]), reply_to=message))
    transport = GridTransport(grid)
    token = push(transport, b"abc")
    assert [(each.token, each.content, each.failure) for each in transport.pull([token])] == [(token, b"cba", None)]
    assert transport.pull([token]) == []
    assert grid.pushed[token].metadata.message_type == TYPE
    assert 59 < grid.pushed[token].metadata.ttl <= 60


@pytest.mark.parametrize(
    ("code", "word"), [(1, REFUSED), (2, REFUSED), (3, LATE), (4, LATE), (5, LOST), (8, LOST), (77, LOST)]
)
def test_each_error_of_flower_is_one_word(code, word):
    transport = GridTransport(MemoryGrid(lambda message: Message(Error(code, "why"), reply_to=message)))
    (arrived,) = transport.pull([push(transport)])
    assert (arrived.content, arrived.failure) == (None, word)


def test_the_records_of_another_app_are_refused():
    other = RecordDict({"metrics": ConfigRecord({"loss": 0.1})})
    transport = GridTransport(MemoryGrid(lambda message: Message(other, reply_to=message)))
    assert transport.pull([push(transport)])[0].failure == REFUSED


def test_what_the_superlink_does_not_take_is_lost():
    grid = MemoryGrid()
    grid.refuses = True
    transport = GridTransport(grid)
    token = push(transport)
    assert [(each.token, each.failure) for each in transport.pull([token])] == [(token, LOST)]


def test_a_site_that_never_sends_what_it_announced_holds_up_nobody(monkeypatch):
    """Flower waits for the parts of a reply; a hostile site lets it wait for hours."""
    monkeypatch.setattr(flower, "PATIENCE", 0.05)
    never, hostile = threading.Event(), []

    def answer(message):
        if unwrap(message.content) == b"hostile" and not hostile:
            hostile.append(message)
            never.wait()
        return Message(message.content, reply_to=message) if unwrap(message.content) == b"honest" else None

    transport = GridTransport(MemoryGrid(answer))
    tokens = [push(transport, b"hostile"), push(transport, b"honest")]
    first, second = transport.pull(tokens), transport.pull(tokens)
    never.set()
    assert (first, [each.token for each in second]) == ([], [tokens[1]])


def test_a_message_of_which_nothing_is_heard_is_lost_after_a_while_and_then_for_good(monkeypatch):
    monkeypatch.setattr(flower, "LEAST_SILENCE", 0.0)
    monkeypatch.setattr(flower, "SHARE", 0.0)
    grid = MemoryGrid(lambda message: None)
    transport = GridTransport(grid)
    token = push(transport)
    assert [(each.token, each.failure) for each in transport.pull([token])] == [(token, LOST)]
    grid.answer = lambda message: Message(message.content, reply_to=message)
    assert transport.pull([token]) == []


@pytest.mark.parametrize("verb", ["get_nodes", "push_messages"])
def test_a_superlink_that_is_gone_ends_the_run_though_flower_would_ask_for_ever(monkeypatch, tmp_path, verb):
    """Where nobody reaps Flower's processes (a container without an init), its own watch never ends the server."""
    monkeypatch.setattr(flower, "HUB_SILENCE", 0.05)
    never, grid = threading.Event(), MemoryGrid()
    monkeypatch.setattr(grid, verb, lambda *_: never.wait())
    transport = GridTransport(grid)

    def run(*_, **__):
        transport.sites()
        transport.push("7", b"a question", deadline=time.time())

    monkeypatch.setattr(flower.network_launch, "run", run)
    monkeypatch.setattr(flower, "LEAST_SECONDS", 0.01)
    with pytest.raises(ConnectionError, match=r"the SuperLink has not answered for 0\.05 s: start it again"):
        flower.work(tmp_path, transport)
    never.set()
    assert server_status.read_status(tmp_path).state == BROKEN


def test_a_superlink_that_is_gone_is_noticed_long_before_a_message_of_a_long_round_expires(monkeypatch):
    monkeypatch.setattr(flower, "HUB_SILENCE", 0.05)
    monkeypatch.setattr(flower, "LOOK", 0.01)
    monkeypatch.setattr(flower, "PATIENCE", 0.01)
    never, grid = threading.Event(), MemoryGrid(lambda _: never.wait())
    transport = GridTransport(grid)
    token = push(transport)
    monkeypatch.setattr(grid, "get_nodes", never.wait)
    looks = (transport.pull([token]) for _ in range(500))  # five seconds, where nobody asks whether it is there
    with pytest.raises(ConnectionError, match=r"has not answered for 0\.05 s"):
        any(looks)
    monkeypatch.setattr(grid, "push_messages", lambda _: never.wait())
    with pytest.raises(ConnectionError, match=r"has not answered for 0\.05 s"):
        transport.push("7", b"a question", deadline=time.time() + 5)
    never.set()


def test_a_large_message_may_take_its_time_where_the_superlink_answers(monkeypatch):
    monkeypatch.setattr(flower, "HUB_SILENCE", 0.05)
    monkeypatch.setattr(flower, "LOOK", 0.01)
    grid, asked = MemoryGrid(), threading.Event()
    take = grid.push_messages
    monkeypatch.setattr(grid, "push_messages", lambda messages: asked.wait(5) and take(messages))
    monkeypatch.setattr(grid, "get_nodes", lambda: asked.set() or ())
    assert push(GridTransport(grid)) == "0"


def test_flower_may_end_the_server_while_it_waits_for_the_superlink(monkeypatch, tmp_path):
    """Its watch raises the signal in a thread of its own: Python answers when the main thread next wakes up."""
    monkeypatch.setattr(flower, "LOOK", 0.01)
    ended, grid, done = threading.Event(), MemoryGrid(), []
    transport = GridTransport(grid)

    def leave(*_):
        raise SystemExit(0)

    def take(_):
        done.append(ended.wait(5))
        return []

    def run(*_, **__):
        transport.push("7", b"a question", deadline=time.time() + 60)

    before = signal.signal(signal.SIGUSR2, leave)
    threading.Timer(0.05, signal.raise_signal, [signal.SIGUSR2]).start()
    monkeypatch.setattr(grid, "push_messages", take)
    monkeypatch.setattr(flower.network_launch, "run", run)
    with pytest.raises(SystemExit):
        flower.work(tmp_path, transport)
    signal.signal(signal.SIGUSR2, before)
    assert done == []  # the SuperLink has not answered yet
    ended.set()
    assert server_status.read_status(tmp_path).text == flower.EXIT


def test_a_grid_that_fails_says_so_where_the_run_is():
    def fail(message):
        raise ConnectionError("the SuperLink is gone")

    transport = GridTransport(MemoryGrid(fail))
    with pytest.raises(ConnectionError, match="the SuperLink is gone"):
        transport.pull([push(transport)])


def test_sites_are_those_online_by_the_key_that_was_registered(tmp_path):
    line = flower_files.write_node_key(tmp_path)
    key = serialization.load_ssh_public_key(line.encode())
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    nodes = [
        SimpleNamespace(node_id=4, status="online", public_key=pem),
        SimpleNamespace(node_id=5, status="offline", public_key=pem),
        SimpleNamespace(node_id=6, status="online", public_key=b""),
    ]
    assert GridTransport(MemoryGrid(nodes=nodes)).sites() == {line: "4"}


def test_a_run_that_breaks_says_why_in_its_directory(tmp_path):
    with pytest.raises(InvalidArgument):
        flower.work(tmp_path, GridTransport(MemoryGrid()))
    status = server_status.read_status(tmp_path)
    assert status.state == BROKEN
    assert "holds no run" in status.text
