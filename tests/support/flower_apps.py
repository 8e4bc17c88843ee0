"""Flower in one process: a grid in memory, requests as Flower's strategies make them, and all that an answer tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from dpfed.ledger.ledger import Ledger

SENT = {"weight": np.array([[1.0, -2.0, 3.0]], np.float32), "bias": np.array([0.5], np.float32)}
Train = Callable[[Message, Context], Message]


class MemoryGrid(Grid):
    """Nodes that answer at once; an app that raises is answered for as a stock SuperNode does."""

    def __init__(self, apps: Mapping[int, ClientApp | Train]) -> None:
        self.apps = dict(apps)
        self.contexts = {node: context_of(node) for node in apps}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self._ask(message) for message in messages]

    def _ask(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        try:
            return self.apps[node](deepcopy(message), self.contexts[node])
        except Exception as error:
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *parts: Any, **named: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        raise NotImplementedError


@contextmanager
def flower_task() -> Iterator[None]:
    """Be the process of a Flower task, without which no message can be made; give its state back."""
    names = ("_task_id", "_run_id", "_node_id")
    before = [getattr(TaskIdentity, name) for name in names]
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(TaskIdentity, name, value)


def context_of(node: int = 7, **settings: Any) -> Context:
    return Context(run_id=1, node_id=node, node_config=settings, state=RecordDict(), run_config={})


def record_of(arrays: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def ask(arrays: Mapping[str, Any] = SENT, kind: str = "train", **config: Any) -> Message:
    content = RecordDict({"arrays": record_of(arrays), "config": ConfigRecord({"server-round": 1, **config})})
    return Message(content, dst_node_id=7, message_type=kind)


def ask_old(arrays: Mapping[str, Any] = SENT, kind: str = "train") -> Message:
    numbered = {str(place): array for place, array in enumerate(arrays.values())}
    content = RecordDict({"fitins.parameters": record_of(numbered), "fitins.config": ConfigRecord({})})
    return Message(content, dst_node_id=7, message_type=kind)


def app_of(train: Train) -> ClientApp:
    app = ClientApp()
    app.train()(train)
    return app


def vector_of(reply: Message) -> np.ndarray:
    (record,) = reply.content.array_records.values()
    return np.concatenate([array.numpy().astype(np.float64).ravel() for array in record.values()])


def tell(reply: Message) -> dict[str, Any]:
    """Return all that an answer tells but the values of its arrays and when it was made."""
    metadata = {name: value for name, value in vars(reply.metadata).items() if name not in ("_created_at", "_ttl")}
    if reply.has_error():
        return {"metadata": metadata, "error": (reply.error.code, reply.error.reason), "others": None}
    arrays = {
        (key, name): (array.dtype, tuple(array.shape), array.stype, len(array.data))
        for key, record in reply.content.array_records.items()
        for name, array in record.items()
    }
    others = {key: dict(record) for key, record in reply.content.items() if not isinstance(record, ArrayRecord)}
    return {"metadata": metadata, "error": None, "keys": list(reply.content), "arrays": arrays, "others": others}


def count_charges(url: str, account: str) -> int:
    with Ledger(url, create=False) as ledger:
        return sum(line.count or 0 for line in ledger.statement(account).lines if line.kind == "committed")
