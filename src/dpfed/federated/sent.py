"""What a site keeps of its runs: the exact values that left it, encrypted at rest, to be sent again free of charge.

One file for a run and round holds the value that left and what the client keeps for its next round: both are there or
neither is, whenever the power fails. Each is encrypted with AES-256-GCM under the site's own key and bound to its
place, so a file that was changed, or put in the place of another, is refused. A round asked for with another model
replaces the file: the value and the state in it always belong together.

>>> import tempfile
>>> store = SentStore(Path(tempfile.mkdtemp()), bytes(32))
>>> store.keep("study-1", 1, Kept("plan", "model", np.ones(2), {"dual": np.zeros(2)}))
>>> store.read("study-1", 1).value, store.read("study-1", 2)
(array([1., 1.]), None)
>>> store.advance("study-1", 7), store.advance("study-1", 7), store.last("study-1")
(True, False, 7)
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument, MessageRefused
from dpfed.federated.algorithms.protocol import State
from dpfed.federated.wire import Message, from_blob, to_blob
from dpfed.ledger import inputs
from dpfed.runs.directory import OWNER_ONLY, write_durably

KEY = 32  # bytes
_NONCE = 12
VALUE, STATE = "value", "state/"
PLAN, LAST, ENDED = "plan", "last", "ended"
RELEASE = ".release-"  # what an owner asks of the process that serves; no run has a name that begins so
ROUND, MEASURED = "round-", "measured-"  # what is kept of a round: the update, and the counts of what is held out
RAW = "raw-"  # how many of either were made without noise
ALL_RAW, ALL_RUNS = ".raw", "all"  # how many were, in all runs; no run has a name that begins so


@dataclass(frozen=True, eq=False)
class Kept:
    """A value that left, for which plan and model, and what the client keeps with it; None once it was confirmed.

    `head` is that of the site's ledger once the value was charged.
    """

    plan: str
    model: str
    value: Floats | None = field(repr=False)
    state: State = field(default_factory=dict, repr=False)
    head: str = ""


class SentStore:
    """The values that left a site, the plans it agreed to, and the number of the last request of each run.

    `most_raw` is how many values without noise may be made in all runs together.

    Privacy: in styles `none` and `user` these are raw updates: whoever has the folder and the key has them.
    """

    def __init__(self, folder: Path, key: bytes, most_raw: int | None = None) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(key) != KEY:
            raise InvalidArgument("key", f"the key of what was sent must have {KEY} bytes: `dpfed site init` makes one")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._cipher = AESGCM(key)
        self._most_raw = most_raw

    def runs(self) -> tuple[str, ...]:
        """Return the runs that the site agreed to and that have not ended."""
        return tuple(sorted(path.name for path in self._folder.iterdir() if (path / PLAN).exists()))

    def keep_plan(self, run: str, terms: Message) -> None:
        """Store what the site agreed to."""
        self._write(run, PLAN, terms)

    def plan(self, run: str) -> Message | None:
        """Return what the site agreed to; None for a run that it does not know."""
        return self._read(run, PLAN)

    def last(self, run: str) -> int:
        """Return the number of the last request of the run that was answered."""
        found = self._read(run, LAST)
        return 0 if found is None else int(found.header["number"])

    def advance(self, run: str, number: int, head: str = "") -> bool:
        """Note durably that a request of that number is answered; return false for one that is not the newest.

        `head` is that of the site's ledger before the answer.
        """
        if number <= self.last(run):
            return False
        self._write(run, LAST, Message({"number": number, "head": head}))
        return True

    def heads(self) -> dict[str, str]:
        """Return the heads that the site's ledger had in all runs, also as they ended, each with its run.

        The ledger must have them still.
        """
        kept = [(run, self._read(run, name)) for run in self.runs() for name in self._names(run)]
        ended = [path.parent.name for path in sorted(self._folder.glob(f"*/{ENDED}"))]
        kept += [(run, self._read(run, ENDED)) for run in ended]
        found = {str(each.header.get("head", "")): run for run, each in kept if each is not None}
        return {head: run for head, run in found.items() if head}

    def keep(self, run: str, round_number: int, kept: Kept, kind: str = ROUND) -> None:
        """Store what leaves in that round, and what stays, durably and together."""
        arrays = {STATE + name: np.asarray(array, dtype=float) for name, array in kept.state.items()}
        if kept.value is not None:
            arrays[VALUE] = np.asarray(kept.value)
        header = {"plan": kept.plan, "model": kept.model, "head": kept.head}
        self._write(run, _name(round_number, kind), Message(header, arrays))

    def read(self, run: str, round_number: int, kind: str = ROUND) -> Kept | None:
        """Return what left in that round; None if nothing did, or not any more."""
        found = self._read(run, _name(round_number, kind))
        if found is None:
            return None
        state = {name.removeprefix(STATE): array for name, array in found.arrays.items() if name.startswith(STATE)}
        plan, model, head = (str(found.header.get(name, "")) for name in ("plan", "model", "head"))
        return Kept(plan, model, found.arrays.get(VALUE), state, head)

    def confirm(self, run: str, round_number: int, counted: int) -> None:
        """Delete the values of all rounds before that one, and the states before the one that counts."""
        for number in self._rounds(run, MEASURED):
            if number < round_number:
                (self._place(run) / _name(number, MEASURED)).unlink(missing_ok=True)
        for number in self._rounds(run):
            kept = self.read(run, number) if number < round_number else None
            if kept is None:
                continue
            if number < counted or not kept.state:
                (self._place(run) / _name(number)).unlink(missing_ok=True)
            elif kept.value is not None:
                self.keep(run, number, replace(kept, value=None))

    def take_raw(self, run: str, kind: str, most: int) -> bool:
        """Note durably that one more value without noise is made.

        Return false if there were `most` of them in the run before, or as many in all runs as the site allows.
        """
        made, in_all = self._count_raw(run, RAW + kind), self._count_raw(ALL_RUNS, ALL_RAW)
        if made >= most or (self._most_raw is not None and in_all >= self._most_raw):
            return False
        self._write(ALL_RUNS, ALL_RAW, Message({"made": in_all + 1}))
        self._write(run, RAW + kind, Message({"made": made + 1}))
        return True

    def _count_raw(self, run: str, name: str) -> int:
        found = self._read(run, name)
        return 0 if found is None else int(found.header["made"])

    def forget(self, run: str, head: str = "") -> None:
        """Delete all that was kept of a run; a note stays that it has ended, so that no old request begins it again.

        `head` is that of the site's ledger: a ledger that is put back once all runs have ended lacks it.
        """
        self._write(run, ENDED, Message({"head": head}))
        for path in self._place(run).iterdir():
            if path.name != ENDED:
                path.unlink()
        self.withdraw_release(run)

    def ask_release(self, run: str, reason: str) -> None:
        """Ask the process that serves the site to end the run."""
        self._write(run, RELEASE, Message({"reason": reason}))

    def asked_releases(self) -> dict[str, str]:
        """Return the runs that are to end, and why."""
        runs = sorted(path.name.removeprefix(RELEASE) for path in self._folder.glob(f"{RELEASE}*"))
        found = {run: self._read(run, RELEASE) for run in runs if inputs.is_name(run)}
        return {run: str(message.header["reason"]) for run, message in found.items() if message is not None}

    def withdraw_release(self, run: str) -> None:
        """Delete what was asked for a run, whether or not it was done."""
        self._path(run, RELEASE).unlink(missing_ok=True)

    def has_ended(self, run: str) -> bool:
        """Return whether the run was forgotten."""
        return (self._place(run) / ENDED).exists()

    def _place(self, run: str) -> Path:
        if not inputs.is_name(run) or "/" in run:
            raise InvalidArgument("run", f"run must be the name of a run at this site, got {run!r:.60}")
        return self._folder / run

    def _path(self, run: str, name: str) -> Path:
        place = self._place(run)
        if name == ALL_RAW:
            return self._folder / name
        return self._folder / f"{RELEASE}{run}" if name == RELEASE else place / name

    def _names(self, run: str) -> list[str]:
        """Return the files of a run that name a head."""
        return [LAST, *(_name(number, kind) for kind in (ROUND, MEASURED) for number in self._rounds(run, kind))]

    def _rounds(self, run: str, kind: str = ROUND) -> list[int]:
        return [int(path.name.removeprefix(kind)) for path in sorted(self._place(run).glob(f"{kind}??????"))]

    def _write(self, run: str, name: str, message: Message) -> None:
        nonce = os.urandom(_NONCE)
        path = self._path(run, name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        content = nonce + self._cipher.encrypt(nonce, to_blob(message), f"{run}\0{name}".encode())
        write_durably(path, content, mode=OWNER_ONLY)

    def _read(self, run: str, name: str) -> Message | None:
        from cryptography.exceptions import InvalidTag

        path = self._path(run, name)
        try:
            content = path.read_bytes()
            return from_blob(self._cipher.decrypt(content[:_NONCE], content[_NONCE:], f"{run}\0{name}".encode()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (InvalidTag, ValueError, MessageRefused):
            message = f"{path} was changed, or the site's key is another: put back a copy of it"
            raise InvalidArgument("sent", f"{message}, or end the run here by `dpfed site release {run}`") from None


def make_key(path: Path) -> None:
    """Write a new key for what a site sends, for its owner alone."""
    write_durably(path, os.urandom(KEY).hex().encode(), mode=OWNER_ONLY)


def read_key(path: Path) -> bytes:
    """Return the key in a file that `make_key` wrote."""
    try:
        return bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        message = f"{path} holds no key that `dpfed site init` made, under which what leaves is kept"
        raise InvalidArgument(
            "sent_key", f"{message}: put back a copy, or make a new one if no run is under way"
        ) from None


def _name(round_number: int, kind: str = ROUND) -> str:
    return f"{kind}{round_number:06d}"
