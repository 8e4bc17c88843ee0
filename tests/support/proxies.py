"""A line between two ends of a network that can be cut, stalled and delayed."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time


class Proxy:
    """A listener on loopback that passes bytes on to another port, until it is told to do worse."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.delay = 0.0
        self._open: list[socket.socket] = []
        self._stalled = threading.Event()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Proxy:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.cut()
        self._listener.close()
        for thread in self._threads:
            thread.join(30)

    def cut(self) -> None:
        """End all connections; new ones are passed on."""
        self._stalled.clear()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def stall(self) -> None:
        """Pass on nothing more, and close nothing, until the line is cut."""
        self._stalled.set()

    def _accept(self) -> None:
        self._listener.settimeout(0.2)
        while not self._ended.is_set():
            try:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                continue
            self._open += [here, there]
            thread = threading.Thread(target=self._pass_on, args=(here, there))
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, here: socket.socket, there: socket.socket) -> None:
        other = {here: there, there: here}
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            for each in other:
                selector.register(each, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in selector.select(0.2):
                    content = key.fileobj.recv(65536)
                    while self._stalled.is_set() and not self._ended.is_set():
                        time.sleep(0.05)
                    time.sleep(self.delay)
                    if not content:
                        return self._close(here, there)
                    other[key.fileobj].sendall(content)
        return self._close(here, there)

    def _close(self, *sockets: socket.socket) -> None:
        for each in sockets:
            each.close()
