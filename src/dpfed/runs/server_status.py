"""What a run on a network says of itself in its directory: whoever submitted it follows these files.

Flower's word is not taken for it: `flwr run` ends with 0 for a run that was killed. The server's process writes how it
is and its process id; whoever follows writes the hub's address, and a wish to stop. All are for the owner alone.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> write_status(folder, ServerStatus(WORKING, pid=12))
>>> read_status(folder), is_asked_to_stop(folder)
(ServerStatus(state='working', pid=12, text=''), False)
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from dpfed.errors import InvalidArgument
from dpfed.runs.directory import OWNER_ONLY, write_durably

WORKING, STOPPED, ENDED, BROKEN = "working", "stopped", "ended", "broken"
SERVER, STOP, HUB = "owner/server.json", "owner/stop", "owner/hub.json"
ASKS = "asks.jsonl"  # what sites were asked, which a run on a network alone has


@dataclass(frozen=True)
class ServerStatus:
    """How the server of a run is: working, stopped as asked, ended, or broken with the reason."""

    state: str
    pid: int
    text: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the server has ended, in whichever way: by its own word, or because its process is gone."""
        return self.state != WORKING or not _is_alive(self.pid)


@dataclass(frozen=True)
class HubAddress:
    """The SuperLink that a run was submitted to last, and the certificates that it is known by."""

    address: str
    root_certificates: str


def write_status(directory: Path, status: ServerStatus) -> None:
    """Write how the server is."""
    _write(directory / SERVER, json.dumps(asdict(status)))


def read_status(directory: Path) -> ServerStatus | None:
    """Return how the server is; None before it has said a word."""
    try:
        return ServerStatus(**json.loads((directory / SERVER).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def clear(directory: Path) -> None:
    """Forget what an earlier server said, and the wish to stop it."""
    for name in (SERVER, STOP):
        (directory / name).unlink(missing_ok=True)


def ask_to_stop(directory: Path) -> None:
    """Ask the server to stop after its round."""
    _write(directory / STOP, "")


def is_asked_to_stop(directory: Path) -> bool:
    """Return whether the server was asked to stop after its round."""
    return (directory / STOP).exists()


def write_hub(directory: Path, hub: HubAddress) -> None:
    """Write where the run was submitted to."""
    _write(directory / HUB, json.dumps(asdict(hub)))


def read_hub(directory: Path) -> HubAddress | None:
    """Return where the run was submitted to; None if it is no run on a network."""
    path = directory / HUB
    if not path.exists():
        return None
    try:
        return HubAddress(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise InvalidArgument("directory", f"{path} names no hub: give its address, --on HOST:PORT") from None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_durably(path, text.encode(), mode=OWNER_ONLY)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Return whether the process has ended and only its parent has not asked yet; Linux alone says so."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False
