"""What a round has released before its checkpoint: after a crash it is used again and costs nothing.

Updates with noise of their own are stored as they come, several in a file when they come quickly: a durable write takes
as long as training a small client. What a power cut takes away of them is charged again, so it is not waited for
until their names are on disk too. In styles `user` and `hybrid` an update is not a release, and only the noised mean
is stored. Once the round's checkpoint is written all of it is removed.

A file carries a digest, and a seal of the ledger that goes with the checkpoint before: one that was changed or forged,
or is of another round or another past, is refused.

>>> import tempfile
>>> stored = UnfinishedRound(RunDirectory(tempfile.mkdtemp()))
>>> stored.write_updates(1, [Update("ward", 1, np.zeros(2), "4:ab")])
>>> stored.updates(1)["ward"].head, stored.updates(2)
('4:ab', {})
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.federated.messages import Update
from dpfed.federated.state import sealed_arrays
from dpfed.plan.plan import Released
from dpfed.runs.digests import Seal, digest, digest_arrays
from dpfed.runs.directory import OWNER_ONLY, RunDirectory, write_durably, write_whole
from dpfed.runs.rounds import is_head

TEXTS = (
    "names",
    "heads",
    "head",
    "asked",
    "contributed",
    "breakdown",
    "model",
)  # of the arrays that are stored; the others are numbers
END = "\x1f"  # after a name that NumPy would shorten
PATIENCE = 0.05  # seconds of training that may be lost to a crash


class UnfinishedRound:
    """The released values of the round under way, and its cohort where that is no secret.

    Without a `seal` digests are checked, and seals are not.
    """

    def __init__(self, run: RunDirectory, seal: Seal | None = None) -> None:
        self._run = run
        self._released = run.folder("released")
        self._owner = run.folder("owner")
        self._seal = seal

    def cohort(self, round_number: int, known: Container[str]) -> tuple[str, ...] | None:
        """Return who was drawn for that round before a crash: each one of the clients that are `known`, once."""
        path = self._cohort_path(round_number)
        if not path.exists():
            return None
        with _translate_errors(path):
            found = json.loads(path.read_bytes())
            if isinstance(found, list):  # of an older version
                self._require_older()
                return _require_clients(found, known)
            cohort = _require_clients(found["cohort"], known)
            self._require_own(_cohort_digest(round_number, cohort), found["digest"], found["seal"])
            return cohort

    def write_cohort(self, round_number: int, cohort: Iterable[str]) -> None:
        """Store who was drawn: drawing again would ask more clients than the plan says."""
        names = list(cohort)
        known = _cohort_digest(round_number, names)
        content = json.dumps({"cohort": names, "digest": known, "seal": self._seal_of(known)})
        write_durably(self._cohort_path(round_number), content.encode(), mode=OWNER_ONLY)

    def write_updates(self, round_number: int, updates: Sequence[Update]) -> None:
        """Store what clients released; from here on the round may use it again at no cost."""
        place = len(self._update_paths(round_number))
        content = self._pack(
            round_number,
            names=_to_texts(update.client for update in updates),
            heads=np.array([update.head for update in updates]),
            values=np.stack([update.value for update in updates]),
        )
        write_whole(self._released / f"round-{round_number:06d}-{place:06d}.npz", content, mode=OWNER_ONLY)

    def updates(self, round_number: int) -> dict[str, Update]:
        """Return the stored updates of that round, by client."""
        found: dict[str, Update] = {}
        for path in self._update_paths(round_number):
            parts = self._unpack(path, round_number, names=1, heads=1, values=2)
            for name, head, value in zip(_from_texts(parts[0]), *parts[1:], strict=True):
                found.setdefault(name, Update(name, round_number, value, str(head)))
        return found

    def write_release(
        self,
        round_number: int,
        released: Released,
        head: str,
        asked: Iterable[str],
        contributed: Iterable[str] = (),
        breakdown: str = "",
    ) -> None:
        """Store what the server released of a round, who was asked where that is no secret, and who keeps a state.

        `breakdown` says why the round must leave the model as it is, so that it does so after a crash too.
        """
        count = np.nan if released.noisy_count is None else released.noisy_count
        arrays = {"average": released.average, "count": np.array(count), "head": np.array(head)}
        arrays["asked"] = _to_texts(asked)
        if kept := list(contributed):
            arrays["contributed"] = _to_texts(kept)
        if breakdown:
            arrays["breakdown"] = np.array(breakdown)
        write_whole(self._release_path(round_number), self._pack(round_number, **arrays), mode=OWNER_ONLY)

    def release(self, round_number: int) -> tuple[Released, str, tuple[str, ...], tuple[str, ...]] | None:
        """Return what the server released of that round before a crash.

        With it come the head that paid for it, who was asked, and whose update was used where clients keep state.
        """
        path = self._release_path(round_number)
        if not path.exists():
            return None
        average, count, head, *names = self._unpack(
            path, round_number, average=1, count=0, head=0, asked=1, contributed=1
        )
        asked, contributed = map(_from_texts, names)
        return Released(average, None if np.isnan(count) else float(count)), str(head), asked, contributed

    def breakdown(self, round_number: int) -> str:
        """Return why the stored release of that round must not move the model; an empty text where it may."""
        path = self._release_path(round_number)
        return str(self._unpack(path, round_number, breakdown=0, head=0)[0]) if path.exists() else ""

    def write_measured(self, round_number: int, model: str, updates: Sequence[Update]) -> None:
        """Store the counts that clients released about the model of that digest; they may be used again at no cost."""
        place = len(self._measured_paths(round_number))
        content = self._pack(
            round_number,
            model=np.array(model),
            names=_to_texts(update.client for update in updates),
            heads=np.array([update.head for update in updates]),
            values=np.stack([np.asarray(update.value, dtype=float) for update in updates]),
        )
        write_durably(self._released / f"measured-{round_number:06d}-{place:06d}.npz", content, mode=OWNER_ONLY)

    def measured(self, round_number: int, model: str | None = None) -> dict[str, Update]:
        """Return the stored counts of clients after that round, by client: those about the model of that digest.

        Others are of a round that was done again, and cost what they did.
        """
        found: dict[str, Update] = {}
        for path in self._measured_paths(round_number):
            known, *parts = self._unpack(path, round_number, model=0, names=1, heads=1, values=2)
            if model in (None, str(known)):
                for name, head, value in zip(_from_texts(parts[0]), *parts[1:], strict=True):
                    found.setdefault(name, Update(name, round_number, value, str(head)))
        return found

    def write_measured_release(self, round_number: int, model: str, total: NDArray[Any], head: str) -> None:
        """Store the sum of counts that the server released about the model of that digest."""
        content = self._pack(round_number, model=np.array(model), average=total.astype(float), head=np.array(head))
        write_durably(self._measured_release_path(round_number), content, mode=OWNER_ONLY)

    def measured_release(self, round_number: int, model: str | None = None) -> tuple[NDArray[Any], str] | None:
        """Return the sum of counts that the server released about that model, and the head that paid for it."""
        path = self._measured_release_path(round_number)
        if not path.exists():
            return None
        known, total, head = self._unpack(path, round_number, model=0, average=1, head=0)
        return (total, str(head)) if model in (None, str(known)) else None

    def contributed(self, round_number: int) -> tuple[str, ...]:
        """Return whose updates are in what was stored of that round, as far as it says."""
        released = self.release(round_number)
        return (*self.updates(round_number), *(released[3] if released else ()))

    def heads(self, round_number: int) -> list[str]:
        """Return the ledger's heads that the stored files of that round name."""
        released = self.release(round_number)
        return [update.head for update in self.updates(round_number).values()] + ([released[1]] if released else [])

    def measured_heads(self, round_number: int) -> list[str]:
        """Return the ledger's heads that the stored counts after that round name."""
        released = self.measured_release(round_number)
        return [each.head for each in self.measured(round_number).values()] + ([released[1]] if released else [])

    def require(self, round_number: int, known: Container[str]) -> None:
        """Refuse what was stored of that round if any of it was changed or forged; `known` are the clients."""
        self.heads(round_number)
        self.measured_heads(round_number)
        self.cohort(round_number, known)

    def forget(self, round_number: int) -> None:
        """Remove the stored files of a round whose checkpoint is written."""
        for path in self._paths(round_number):
            path.unlink(missing_ok=True)

    def forget_all_but(self, round_number: int) -> None:
        """Remove the stored files of all other rounds: they belong to other weights and another head of the ledger."""
        stored = (self._released.glob(f"{kind}-*.npz") for kind in ("round", "measured"))
        found = {*self._owner.glob("cohort-*.json"), *chain.from_iterable(stored)}
        for path in found.difference(self._paths(round_number)):
            path.unlink(missing_ok=True)

    def _pack(self, round_number: int, **arrays: Any) -> bytes:
        known = _digest(round_number, arrays)
        return sealed_arrays.to_bytes(arrays, known, self._seal_of(known))

    def _unpack(self, path: Path, round_number: int, **axes: int) -> tuple[Any, ...]:
        with _translate_errors(path):
            found, known, seal = sealed_arrays.read(path)
            if not known:
                self._require_older()
            else:
                self._require_own(_digest(round_number, found), known, seal)
            # Older files have neither, nor those of algorithms that keep no state and of rounds that moved the model.
            for name, empty in (("contributed", np.array([], dtype=str)), ("breakdown", np.array(""))):
                if name in axes:
                    found.setdefault(name, empty)
            _require_forms(found, axes)
            return tuple(found[name] for name in axes)

    def _seal_of(self, known: str) -> str:
        return "" if self._seal is None else self._seal.of(known)

    def _require_own(self, digest: str, known: str, seal: str) -> None:
        if digest != known:
            raise ValueError("it does not match its digest")
        if self._seal is not None and not self._seal.is_of(seal, known):
            raise ValueError("its seal is not of this run in this ledger, after the last checkpoint")

    def _require_older(self) -> None:
        if not self._run.is_older:
            raise ValueError("it has no digest")

    def _paths(self, round_number: int) -> list[Path]:
        whole = (self._cohort_path, self._release_path, self._measured_release_path)
        several = (self._update_paths, self._measured_paths)
        return [*(path(round_number) for path in whole), *(path for find in several for path in find(round_number))]

    def _cohort_path(self, round_number: int) -> Path:
        return self._owner / f"cohort-{round_number:06d}.json"

    def _release_path(self, round_number: int) -> Path:
        return self._released / f"round-{round_number:06d}.npz"

    def _measured_release_path(self, round_number: int) -> Path:
        return self._released / f"measured-{round_number:06d}.npz"

    def _measured_paths(self, round_number: int) -> list[Path]:
        return sorted(self._released.glob(f"measured-{round_number:06d}-*.npz"))

    def _update_paths(self, round_number: int) -> list[Path]:
        return sorted(self._released.glob(f"round-{round_number:06d}-*.npz"))


def group_by_time(updates: Iterable[Update], seconds: float = PATIENCE) -> Iterator[list[Update]]:
    """Yield the updates in groups that took about that long to come, each for one durable write."""
    group: list[Update] = []
    started = None
    for update in updates:
        started = monotonic() if started is None else started  # what comes before the first one is the charge of all
        group.append(update)
        if monotonic() - started >= seconds:
            yield group
            group, started = [], monotonic()
    if group:
        yield group


def _to_texts(names: Iterable[str]) -> NDArray[np.str_]:
    """Return the names as an array, from which NumPy takes zeros at the end of a text: two clients would be one."""
    return np.array([name + END if name.endswith(("\0", END)) else name for name in names], dtype=str)


def _from_texts(texts: Iterable[Any]) -> tuple[str, ...]:
    return tuple(str(text).removesuffix(END) for text in texts)


def _digest(round_number: int, arrays: Mapping[str, Any]) -> str:
    return digest(str(round_number).encode(), digest_arrays(arrays))


def _cohort_digest(round_number: int, names: Sequence[str]) -> str:
    return digest(b"cohort", str(round_number).encode(), *(name.encode() for name in names))


def _require_clients(names: Any, known: Container[str]) -> tuple[str, ...]:
    """Return the names of a cohort, each of a client that is known, once."""
    if not isinstance(names, list) or not all(isinstance(name, str) and name in known for name in names):
        raise ValueError("it is no list of clients")
    if len(set(names)) < len(names):
        raise ValueError("it has a client twice")
    return tuple(names)


def _require_forms(found: Mapping[str, NDArray[Any]], axes: Mapping[str, int]) -> None:
    """Refuse arrays with other numbers of axes than these; those of one row for each name must be equally long."""
    for name, count in axes.items():
        array = found[name]
        if array.ndim != count or array.dtype.kind != ("U" if name in TEXTS else "f"):
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}")
    heads = np.atleast_1d(found["heads" if "heads" in axes else "head"])
    if not all(is_head(str(head)) for head in heads):
        raise ValueError("it names a head that no ledger can have")
    if "names" in axes and len({len(found[name]) for name in axes if axes[name]}) != 1:
        raise ValueError("names and updates differ in number")


def _translate_errors(path: Path) -> AbstractContextManager[None]:
    return sealed_arrays.translate_errors(str(path), "put back a copy, or remove it and pay for its round again")
