"""Who works on a run: so that two processes never resume the same one.

A holder is a process, named by machine, boot, number and start time. On the same machine it is known at once
whether it still lives; elsewhere a run whose last entry is younger than `PATIENCE` counts as alive. Whoever
takes a run over writes a new lease, and the old holder's next commit is refused.

>>> is_alive(this_process(), age=0.0)
True
"""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PATIENCE = 900.0
SEALED = {"files": "sealed"}


def this_process() -> dict[str, Any]:
    """Describe this process as a holder."""
    return {
        "host": socket.gethostname(),
        "space": _read_namespace(),
        "boot": _read_boot(),
        "pid": os.getpid(),
        "started": _read_start(os.getpid()),
    }


def describe_start() -> dict[str, Any]:
    """Describe this process as the first holder of a run whose files have digests and seals.

    The entry is in the chain, so only a run that an older version reserved may be without.
    """
    return this_process() | SEALED


def is_sealed(holder: dict[str, Any]) -> bool:
    """Return whether the entry by which a run was reserved says that its files have digests and seals."""
    return SEALED.items() <= holder.items()


def is_me(holder: dict[str, Any]) -> bool:
    """Return whether the holder is this process."""
    return this_process().items() <= holder.items()


def is_alive(holder: dict[str, Any], age: float) -> bool:
    """Return whether the holder may still work; `age` is how many seconds ago its run made the last entry."""
    here = this_process()
    if holder["host"] != here["host"]:
        return age < PATIENCE
    if holder["boot"] != here["boot"]:
        return False
    if holder["space"] != here["space"]:  # another container: its process numbers mean nothing here
        return age < PATIENCE
    started = _read_start(holder["pid"])
    return started is not None and started == holder["started"]


def age(times: list[str]) -> float:
    """Return how many seconds ago the last of the entries' times was."""
    return (datetime.now(UTC) - datetime.fromisoformat(max(times))).total_seconds()


def describe(holder: dict[str, Any]) -> str:
    """Describe the holder in words."""
    return f"process {holder['pid']} on {holder['host']}"


def _read_namespace() -> str:
    """Return the namespace of process numbers: each container has its own."""
    path = Path("/proc/self/ns/pid")
    return str(path.readlink()) if path.is_symlink() else ""


def _read_boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def _read_start(pid: int) -> str | None:
    """Return when the process was started, in the machine's own clock; None if there is none, or only a zombie."""
    try:
        # The name in brackets may hold anything, spaces and brackets too.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return _read_start_without_proc(pid)
    return None if fields[0] in "ZX" else fields[19]


def _read_start_without_proc(pid: int) -> str | None:
    """Return an empty start time for a living process where the system has no /proc."""
    if Path("/proc/self").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return ""
    return ""
