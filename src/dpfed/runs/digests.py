"""Digests of what a run keeps in files, and the seal that binds them to its ledger.

A digest tells a flipped bit or a file of another round. It needs no secret, so whoever forges a file can make it as
well; a seal is keyed by an entry that only the run's ledger has, and names the ledger's head that the file goes with.

>>> digest(b"ab", b"c") == digest(b"a", b"bc")
False
>>> seal = Seal(b"an entry of the ledger", "12:ab")
>>> seal.is_of(seal.of("digest"), "digest"), Seal(b"an entry of the ledger", "13:cd").is_of(seal.of("digest"), "digest")
(True, False)
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


def digest(*parts: bytes) -> str:
    """Return the SHA-256 of the parts, each with its length: no two lists of parts have the same one."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.hexdigest()


def digest_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the digest of named arrays, as bytes: names, types, shapes and every bit."""
    parts: list[bytes] = []
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        parts += [name.encode(), array.dtype.str.encode(), str(array.shape).encode(), array.tobytes()]
    return digest(*parts).encode()


@dataclass(frozen=True)
class Seal:
    """A seal that only the run's ledger can confirm: `key` is of an entry of it, `head` the state before the file.

    Without a ledger the key is empty, and a seal says no more than a digest.
    """

    key: bytes = field(repr=False)
    head: str = ""

    def of(self, digest: str) -> str:
        """Return the seal of a file with that digest."""
        return hmac.new(self.key, f"{self.head} {digest}".encode(), hashlib.sha256).hexdigest()

    def is_of(self, seal: str, digest: str) -> bool:
        """Return whether the seal is that of a file with that digest."""
        return hmac.compare_digest(self.of(digest).encode(), str(seal).encode())
