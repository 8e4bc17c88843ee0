"""A resident site on Flower's fleet connection: an ordinary SuperNode to the SuperLink, in one process that stays.

Flower's own SuperNode starts a process for each message and runs whatever code it is sent. This one fetches no app and
runs nothing: bytes go to one function of ours, and its answer goes back. This is the only module that imports what
Flower keeps private, so that a new version of Flower is one file to look at (1.40 to 1.42 are alike).

A site that loses its network goes on where it was; one that the SuperLink does not know, or not any more, keeps asking.

>>> list(itertools.islice(pauses(first=1.0, most=4.0), 4))
[1.0, 2.0, 4.0, 4.0]
"""

from __future__ import annotations

import itertools
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from dpfed.errors import InvalidArgument
from dpfed.federated.transport import Handle
from dpfed.integrations.flower_messages import unwrap, wrap

log = logging.getLogger("dpfed.site")
logging.getLogger("httpx").setLevel(logging.WARNING)  # it has a line for every request

HEARTBEAT = 10.0  # the least that Flower allows: a site that was killed is missed after two of them
BUSY, IDLE = 0.1, 1.0  # seconds between two questions for messages: while a run is going on, and otherwise
STAYS_BUSY = 120.0  # seconds after the last message
MOST_BYTES = 2_000_000_000
TRIES = 8  # of one request, in about a minute: then the message is given up, and the server asks again
FOREIGN, FAILED = Error(1, "this site runs no apps"), Error(2, "the site failed")
GATEWAYS = (502, 503, 504)

Result = TypeVar("Result")


@dataclass(frozen=True)
class NodeSettings:
    """Where a resident site connects, and the key by which the SuperLink knows it."""

    superlink: str
    root_certificates: Path
    node_key: Path
    most_bytes: int = MOST_BYTES


class _Unknown(Exception):
    """The SuperLink does not know this node, or not any more."""


def serve(
    settings: NodeSettings,
    handle: Handle,
    stop: threading.Event | None = None,
    between: Callable[[], None] = lambda: None,
) -> None:
    """Answer what the SuperLink passes on, until `stop` is set; a message that is being answered is finished first.

    `between` is called every ten seconds at least while no message is being answered, connected or not.
    """
    stop = stop or threading.Event()
    key = read_key(settings.node_key)
    with _end_by_signals(stop), _connect(settings, key) as client:
        while not stop.is_set():
            node = _activate(client, key.public_key(), stop, between)
            if node is not None:
                _Session(client, node, handle, settings.most_bytes, stop, between).run()


@contextmanager
def _end_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and the first Ctrl-C end the site after its message; a second Ctrl-C interrupts it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key of a node, as `ssh-keygen -t ecdsa` or `dpfed deploy init` writes it."""
    content = path.read_bytes()
    load = serialization.load_ssh_private_key if b"OPENSSH" in content else serialization.load_pem_private_key
    try:
        key = load(content, password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidArgument("node_key", f"{path} holds no elliptic-curve key without a passphrase, as Flower wants")
    return key


def register(superlink: str, root_certificates: Path, public_keys: Iterable[str]) -> None:
    """Tell the SuperLink the public keys of sites, each in OpenSSH's form; one that it knows already is left alone."""
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    authority = root_certificates.read_bytes()
    with ControlHttpClient.from_server_address(superlink, False, authority, interceptors=[version]) as client:
        for text in public_keys:
            key = serialization.load_ssh_public_key(text.encode("ascii"))
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise InvalidArgument("public_keys", f"Flower wants elliptic-curve keys of its nodes, got {text[:20]}…")
            _register_one(client, RegisterNodeRequest(public_key=public_key_to_bytes(key)))


def _register_one(client: ControlHttpClient, request: RegisterNodeRequest) -> None:
    try:
        client.RegisterNode(request)
    except httpx.HTTPStatusError as error:
        known = FlowerError.from_json(error.response.text)
        if known is None or known.code != ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
            raise InvalidArgument("public_keys", f"the SuperLink refuses a key: {error.response.text[:200]}") from None
    except httpx.TransportError as error:
        raise InvalidArgument("superlink", f"the SuperLink cannot be reached: {error}") from None


def hasten_replies() -> None:
    """Let Flower's Grid look after 0.05 s, not a second, again for a part of a reply that is announced only."""
    defaults = pull_objects.__kwdefaults__ or {}
    if "initial_backoff" in defaults:
        defaults["initial_backoff"] = 0.05


def pauses(first: float = 0.5, most: float = 10.0) -> Iterator[float]:
    """Yield seconds to wait, twice as long each time up to `most`."""
    while True:
        yield first
        first = min(2 * first, most)


def _connect(settings: NodeSettings, key: ec.EllipticCurvePrivateKey) -> FleetHttpClient:
    client = FleetHttpClient.from_server_address(
        settings.superlink,
        False,
        settings.root_certificates.read_bytes(),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ],
    )
    client._client.event_hooks["response"].append(lambda response: _refuse_large(response, settings.most_bytes))
    return client


def _refuse_large(response: httpx.Response, most: int) -> None:
    """Refuse a response that says it is too large, before it is read."""
    if int(response.headers.get("content-length", 0)) > most:
        raise _TooLarge


class _TooLarge(Exception):
    """A message is larger than the site reads."""


def _activate(
    client: FleetHttpClient, public_key: ec.EllipticCurvePublicKey, stop: threading.Event, between: Callable[[], None]
) -> Node | None:
    """Return the node that the SuperLink knows by the key; ask until it does, or until `stop`."""
    request = ActivateNodeRequest(public_key=public_key_to_bytes(public_key), heartbeat_interval=HEARTBEAT)
    said = ""
    for pause in pauses(first=0.5, most=3.0):
        between()
        try:
            node = Node(node_id=client.ActivateNode(request).node_id)
        except httpx.HTTPError as error:
            said = _say_once(_explain(error), said)
        else:
            log.info("connected to the SuperLink")
            return node
        if stop.wait(pause):
            break
    return None


def _say_once(sentence: str, said: str) -> str:
    if sentence != said:
        log.warning("%s; trying again", sentence)
    return sentence


def _explain(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        if error.response.status_code == httpx.codes.PRECONDITION_FAILED:
            return "the SuperLink does not know this node's key, or the node is still connected from before"
        return f"the SuperLink refuses this node (HTTP {error.response.status_code}): compare its clock and its key"
    return f"the SuperLink cannot be reached ({type(error).__name__}: {error})"


class _Session:
    """One node as long as the SuperLink knows it: heartbeats from a thread of their own, messages one by one."""

    def __init__(
        self,
        client: FleetHttpClient,
        node: Node,
        handle: Handle,
        most_bytes: int,
        stop: threading.Event,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._between = between
        self._client, self._node, self._handle, self._most, self._stop = client, node, handle, most_bytes, stop
        self._unknown = threading.Event()
        self._last = -STAYS_BUSY

    def run(self) -> None:
        heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        heart.start()
        try:
            while not (self._stop.is_set() or self._unknown.is_set()):
                self._between()
                if not self._answer_next():
                    self._stop.wait(BUSY if time.monotonic() - self._last < STAYS_BUSY else IDLE)
        except _Unknown:
            log.warning("the SuperLink does not know this node any more")
        finally:
            self._unknown.set()
            self._leave()

    def _leave(self) -> None:
        with suppress(httpx.HTTPError):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))

    def _beat(self) -> None:
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        while not self._unknown.wait(HEARTBEAT / 3):
            with suppress(httpx.HTTPError):
                if not self._client.SendNodeHeartbeat(request).success:
                    self._unknown.set()

    def _answer_next(self) -> bool:
        """Answer the next message, and return whether there was one; of what fails the server asks again."""
        try:
            message = self._receive()
            if message is not None:
                self._last = time.monotonic()
                self._send(self._reply(message))
        except httpx.HTTPError as error:
            log.warning("a message was lost on its way: %s", _explain(error))
            return False
        except (_TooLarge, KeyError, ValueError, RuntimeError) as error:
            log.warning("a message could not be read: %s", type(error).__name__)
            return False
        return message is not None

    def _receive(self) -> Message | None:
        response = self._try(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        metadata = response.messages_list[0].metadata
        run, number = metadata.run_id, metadata.message_id
        contents = self._pull(run, [each.object_id for each in iterate_object_tree(response.message_object_trees[0])])
        confirm = ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=number)
        self._try(self._client.ConfirmMessageReceived, confirm)
        message = inflate_object_from_contents(number, contents)
        if not isinstance(message, Message):
            raise ValueError("no message")
        message.metadata.__dict__["_message_id"] = number
        return message

    def _pull(self, run: int, names: list[str]) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        for name in names:
            contents[name] = self._pull_one(PullObjectRequest(node=self._node, run_id=run, object_id=name))
            if sum(map(len, contents.values())) > self._most:
                raise _TooLarge
        return contents

    def _pull_one(self, request: PullObjectRequest) -> bytes:
        """Return a part of a message; it may be announced before it is there."""
        for pause in itertools.islice(pauses(first=0.05, most=5.0), 2 * TRIES):
            response = self._try(self._client.PullObject, request)
            if response.object_available or not response.object_found:
                break
            self._stop.wait(pause)
        if not response.object_available:
            raise ValueError("a part of the message is missing")
        return bytes(response.object_content)

    def _reply(self, message: Message) -> Message:
        content = unwrap(message.content) if message.has_content() else None
        if content is None:
            return Message(FOREIGN, reply_to=message)
        try:
            return Message(wrap(self._handle(content)), reply_to=message)
        except Exception as error:  # the site goes on, whatever one request did to it
            log.exception("a request failed", exc_info=error)
            return Message(FAILED, reply_to=message)

    def _send(self, reply: Message) -> None:
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            tree, parts = get_object_tree(reply), get_all_nested_objects(reply)
            head = message_to_proto(remove_content_from_message(reply) if reply.has_content() else reply)
        # How long the answer took is not told: it may depend on the records.
        request = PushMessagesRequest(
            node=self._node, messages_list=[head], message_object_trees=[tree], clientapp_runtime_list=[0.0]
        )
        response = self._try(self._client.PushMessages, request)
        run, session = reply.metadata.run_id, response.session_id
        for name in response.objects_to_push:
            content = parts[name].deflate()
            part = PushObjectRequest(
                node=self._node, run_id=run, object_id=name, object_content=content, session_id=session
            )
            self._try(self._client.PushObject, part)

    def _try(self, call: Callable[[Any], Result], request: object) -> Result:
        """Return the answer to a request, which is sent again when the network fails."""
        for pause in itertools.islice(pauses(), TRIES):
            try:
                return call(request)
            except httpx.HTTPStatusError as error:
                if error.response.status_code == httpx.codes.UNAUTHORIZED:
                    raise _Unknown from None
                if error.response.status_code not in GATEWAYS:
                    raise
                last: httpx.HTTPError = error
            except httpx.TransportError as error:
                last = error
            self._between()
            if self._unknown.is_set() or self._stop.wait(pause):
                break
        raise last
