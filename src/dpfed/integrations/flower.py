"""A run of dpfed on Flower: messages go through the Grid of a ServerApp, and no type of Flower leaves this package.

`GridTransport` carries bytes to sites that are found by their public keys, never by node ids: those change when a
SuperLink starts anew. `app` is the ServerApp that `dpfed run FILE --on ADDRESS` submits.

>>> FAILURES[5], FAILURES[3]
('lost', 'late')
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

from cryptography.hazmat.primitives import serialization
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from dpfed.errors import PrivacyError
from dpfed.federated import network_launch
from dpfed.federated.results import RoundResult
from dpfed.federated.transport import LATE, LOST, REFUSED, Arrived, Sent, Transport
from dpfed.integrations.flower_messages import TYPE, unwrap, wrap
from dpfed.integrations.flower_node import hasten_replies
from dpfed.runs import server_status
from dpfed.runs.server_status import BROKEN, ENDED, STOPPED, WORKING, ServerStatus

ONLINE = "online"
# Flower's codes: an app that is no resident site, or failed; a message that expired or was lost; a node that is away.
FAILURES = {1: REFUSED, 2: REFUSED, 3: LATE, 4: LATE, 5: LOST, 8: LOST}
UNSENT = "unsent-"
PATIENCE = 0.5  # seconds for replies that are there; one that takes longer is fetched aside
MOST_FETCHING = 16
SHARE, LEAST_SILENCE = 0.25, 30.0  # of a message's life, and seconds, without a word before it counts as lost
LEAST_SECONDS = 1.0  # that a message lives: Flower refuses one that has expired
HUB_SILENCE = 30.0  # seconds without a word of the SuperLink, after which it counts as gone
LOOK = 0.5  # seconds: while Python waits longer for another thread, no signal is answered
EXIT = "Flower has ended the server, as it does where the SuperLink is gone or was told to stop the run"
_Answer = TypeVar("_Answer")


class GridTransport:
    """Bytes to sites and back, through the Grid of one Flower run.

    A site may announce a reply and send its parts late, or never. Flower waits for them where it stands; here a thread
    of its own does, so that the other sites' replies are not held up and deadlines hold. Flower also asks a SuperLink
    that is gone again and again, for ever: here the run ends, and goes on when it is resumed.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._found: queue.SimpleQueue[Arrived | BaseException] = queue.SimpleQueue()
        self._fetching: list[threading.Thread] = []
        self._done: set[str] = set()
        self._silent: dict[str, float] = {}
        self._heard = time.monotonic()

    def sites(self) -> Mapping[str, str]:
        """Return the address of each site that is connected now, by its public key in OpenSSH's form."""
        online = [node for node in _ask_hub(self._grid.get_nodes, HUB_SILENCE) if node.status == ONLINE]
        return {format_public_key(node.public_key): str(node.node_id) for node in online if node.public_key}

    def push(self, address: str, content: bytes, *, deadline: float) -> Sent:
        """Send the content; `deadline` is in seconds since 1970. The SuperLink drops what was not fetched by then."""
        lives = max(deadline - time.time(), LEAST_SECONDS)
        message = Message(wrap(content), int(address), TYPE, ttl=lives)
        # A large message takes its time, but not if nothing else is answered meanwhile.
        pushed = _ask_hub(lambda: list(self._grid.push_messages([message])), max(lives, HUB_SILENCE), self.sites)
        tokens = [token for token in pushed if token]
        if not tokens:
            return Sent(self._lose())
        self._silent[tokens[0]] = time.monotonic() + max(SHARE * lives, LEAST_SILENCE)
        return Sent(tokens[0])

    def pull(self, tokens: Collection[str]) -> list[Arrived]:
        """Return what has arrived, or failed, of these messages; each once."""
        self._fetching = [thread for thread in self._fetching if thread.is_alive()]
        self._require_hub()
        asked = sorted(token for token in tokens if not token.startswith(UNSENT))
        if asked and len(self._fetching) < MOST_FETCHING:
            thread = threading.Thread(target=self._fetch, args=(asked, not self._fetching), daemon=True)
            self._fetching.append(thread)
            thread.start()
            thread.join(PATIENCE)
        found = [each for each in self._drain() if each.token in tokens]
        return found + self._give_up(set(tokens) - {each.token for each in found})

    def _require_hub(self) -> None:
        """Ask the SuperLink for its nodes, which raises where it is gone, if replies have not come for long."""
        if self._fetching and time.monotonic() - self._heard > HUB_SILENCE:
            self.sites()
        elif self._fetching:
            return
        self._heard = time.monotonic()

    def _give_up(self, tokens: set[str]) -> list[Arrived]:
        """Return as lost what has been under way for too long: a node may have taken it and heard nothing of it."""
        now = time.monotonic()
        lost = [token for token in sorted(tokens - self._done) if self._silent.get(token, now) < now]
        self._done.update(lost)
        return [Arrived(token, None, LOST) for token in lost]

    def _fetch(self, tokens: list[str], is_alone: bool) -> None:
        """Fetch replies. To Flower a reply that another thread is fetching looks as if it were late: ask again then."""
        try:
            for reply in map(_read, self._grid.pull_messages(tokens)):
                if is_alone or reply.failure != LATE:
                    self._found.put(reply)
        except BaseException as error:  # it is raised again, where the run is
            self._found.put(error)

    def _drain(self) -> list[Arrived]:
        found: list[Arrived] = []
        while not self._found.empty():
            each = self._found.get()
            if isinstance(each, BaseException):
                raise each
            if each.token not in self._done:
                self._done.add(each.token)
                found.append(each)
        return found

    def _lose(self) -> str:
        token = f"{UNSENT}{time.monotonic_ns()}"
        self._found.put(Arrived(token, None, LOST))
        return token


def _ask_hub(ask: Callable[[], _Answer], seconds: float, on_silence: Callable[[], object] = lambda: None) -> _Answer:
    """Return what the SuperLink answers, or raise after so many seconds without an answer.

    `on_silence` is called now and then while there is none.
    """
    answers: queue.SimpleQueue[_Answer | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put(ask())
        except BaseException as error:  # it is raised again, where the run is
            answers.put(error)

    threading.Thread(target=work, daemon=True).start()
    began = heard = time.monotonic()
    while True:
        try:
            answer = answers.get(timeout=min(LOOK, seconds))
            break
        except queue.Empty:
            now = time.monotonic()
        if now - began >= seconds:
            message = f"the SuperLink has not answered for {seconds:g} s: start it again, if it has ended"
            raise ConnectionError(message)
        if now - heard > HUB_SILENCE:
            on_silence()
            heard = time.monotonic()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _read(reply: Message) -> Arrived:
    token = reply.metadata.reply_to_message_id
    if reply.has_error():
        return Arrived(token, None, FAILURES.get(reply.error.code, LOST))
    content = unwrap(reply.content)
    return Arrived(token, content, None if content is not None else REFUSED)


def format_public_key(key: bytes) -> str:
    """Return a key that Flower has as PEM the way `ssh-keygen` writes it, in one line without a comment."""
    loaded = serialization.load_pem_public_key(key)
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return loaded.public_bytes(*form).decode("ascii")


class _Stop(Exception):
    """Whoever follows the run has asked it to stop."""


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do the rounds of the run in the directory that the run's configuration names."""
    hasten_replies()
    work(Path(str(context.run_config["directory"])), GridTransport(grid))


def work(directory: Path, transport: Transport) -> None:
    """Do the rounds of a run that was created in the directory, and write there how it went."""
    _say(directory, WORKING)
    try:
        _say(directory, ENDED, network_launch.run(None, directory, transport, on_round=_stop_if_asked(directory)))
    except _Stop:
        _say(directory, STOPPED)
    except BaseException as error:
        _say(directory, BROKEN, _explain(error))
        raise


def _explain(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return EXIT
    return f"{error}" if isinstance(error, PrivacyError | ConnectionError) else f"{type(error).__name__}: {error}"


def _stop_if_asked(directory: Path) -> Callable[[RoundResult], None]:
    def look(_: RoundResult) -> None:
        if server_status.is_asked_to_stop(directory):
            raise _Stop

    return look


def _say(directory: Path, state: str, text: str = "") -> None:
    server_status.write_status(directory, ServerStatus(state, os.getpid(), text))
