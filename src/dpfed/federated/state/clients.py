"""Arrays that an algorithm keeps at each client from round to round: control variates, duals.

They stay on the client's side, in files that their owner alone can read, one for each client and round. The state
after a round is written before the client's update is handed on, and which round counts is for the run's checkpoint to
say: it names, for each client, the last round whose update was used. So a crash never leaves a state without the update
that it belongs to, nor an update without its state; a state whose update was never used is ignored.

Privacy: a state is made by functions that get no data (`FederatedAlgorithm.keeps`). A file shows that a client took
part, and when: with a secret cohort it is as secret as the cohort.

>>> import tempfile
>>> states = ClientStates(Path(tempfile.mkdtemp()))
>>> states.write("ward", 3, {"control": np.ones(2)})
>>> states.read("ward", 3), states.read("ward", 0)
({'control': array([1., 1.])}, {})
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.federated.algorithms.protocol import State
from dpfed.federated.state import sealed_arrays
from dpfed.runs.digests import Seal, digest, digest_arrays
from dpfed.runs.directory import OWNER_ONLY, write_durably

ARRAY = "state/"


class ClientStates:
    """The states of clients in one folder; the `key` of the run's ledger seals them."""

    def __init__(self, folder: Path, key: bytes = b"") -> None:
        self._folder = folder
        self._key = key

    def write(self, client: str, round_number: int, state: State) -> None:
        """Store what the client keeps after that round, durably."""
        arrays: dict[str, Any] = {ARRAY + name: np.asarray(value, dtype=float) for name, value in state.items()}
        known = _digest(client, round_number, arrays)
        content = sealed_arrays.to_bytes(arrays, known, self._seal(client, round_number).of(known))
        write_durably(self._path(client, round_number), content, mode=OWNER_ONLY)

    def read(self, client: str, round_number: int) -> State:
        """Return what the client kept after that round; nothing before its first one, which is round 0."""
        if not round_number:
            return {}
        path = self._path(client, round_number)
        what = f"{path}, which a client keeps from its last round,"
        with sealed_arrays.translate_errors(what, "put back a copy of the run's directory"):
            found, known, seal = sealed_arrays.read(path)
            if known != _digest(client, round_number, found):
                raise ValueError("it does not match its digest")
            if not self._seal(client, round_number).is_of(seal, known):
                raise ValueError("its seal is not of this run in this ledger")
            return {name.removeprefix(ARRAY): value for name, value in found.items()}

    def forget_before(self, client: str, round_number: int) -> None:
        """Remove what the client kept after earlier rounds."""
        last = self._path(client, round_number).name
        for path in self._folder.glob(f"{_file_name(client)}-*.npz"):
            if path.name < last:
                path.unlink(missing_ok=True)

    def forget_all(self) -> None:
        """Remove what all clients kept."""
        for path in self._folder.glob("*.npz"):
            path.unlink(missing_ok=True)

    def _path(self, client: str, round_number: int) -> Path:
        return self._folder / f"{_file_name(client)}-{round_number:06d}.npz"

    def _seal(self, client: str, round_number: int) -> Seal:
        return Seal(self._key, f"state {round_number} {client}")


def _file_name(client: str) -> str:
    return digest(client.encode())[:32]  # a name may hold anything


def _digest(client: str, round_number: int, arrays: Mapping[str, Any]) -> str:
    return digest(client.encode(), str(round_number).encode(), digest_arrays(arrays))
