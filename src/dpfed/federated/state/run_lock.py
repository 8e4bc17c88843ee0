"""A run's directory is locked while it runs: two processes never write the same files.

The ledger's lease says who may charge; a run that charges nobody has no ledger, and files are read before the ledger is
asked. The lock is the kernel's (`flock` on the directory itself, so there is no file to forget): it ends with the
process, however that ends. In one process a run may be opened again, as a notebook does.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> lock = hold(folder)
>>> hold(folder) is lock
True
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from weakref import WeakValueDictionary

from dpfed.errors import LeaseHeld


class RunLock:
    """The lock on a directory, as long as this object lives."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


_HELD: WeakValueDictionary[tuple[int, int, int], RunLock] = WeakValueDictionary()


def hold(folder: Path) -> RunLock:
    """Return the lock on that directory, or refuse a directory in which another process runs."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    status = os.fstat(descriptor)
    # By process: a fork inherits the object and the lock, but not the right to run beside its parent.
    key = os.getpid(), status.st_dev, status.st_ino
    if (held := _HELD.get(key)) is not None:
        os.close(descriptor)
        return held
    lock = RunLock(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = f"another process is running {folder}: wait until it ends, or stop it"
        raise LeaseHeld(f"{message}; a run goes on in one process at a time") from None
    except OSError:  # a disk that knows no locks: the ledger's lease is what is left
        pass
    _HELD[key] = lock
    return lock
