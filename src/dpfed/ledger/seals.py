"""What the chain says about the data that accounts stand for, so that neither the key nor a fingerprint can be changed.

A ledger knows data again by a keyed fingerprint. Key and fingerprints stay in tables of their own and are never
exported; the entry that opens an account on such data carries their digests. With another key, or without the old
fingerprint, the same data would look new, and a second full account could be opened on it.

>>> len(digest("a key"))
64
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dpfed.errors import LedgerCorrupted
from dpfed.ledger.rules import Terms
from dpfed.ledger.store.schema import SECRET, SOURCES


def digest(secret: str) -> str:
    """Return the digest of a key or fingerprint, safe to show: both are 256 bits that nobody can guess."""
    return hashlib.sha256(f"dpfed seal\0{secret}".encode()).hexdigest()


def read_key(link: Connection) -> str:
    """Return the key of the fingerprints."""
    return str(link.execute(sa.select(SECRET.c.key)).scalar_one())


def read_fingerprints(link: Connection) -> dict[str, str]:
    """Return the fingerprint of each source by its name."""
    return {str(name): str(mark) for name, mark in link.execute(sa.select(SOURCES.c.name, SOURCES.c.fingerprint))}


def make_seal(link: Connection) -> dict[str, Any]:
    """Return the digests of the key and of every fingerprint, for the entry that seals an older ledger."""
    return {
        "key": digest(read_key(link)),
        "sources": {name: digest(mark) for name, mark in read_fingerprints(link).items()},
    }


def require_sound(link: Connection, accounts: Iterable[Terms], seal: Mapping[str, Any]) -> None:
    """Refuse a key or a list of sources that is not the one which the entries have sealed."""
    keys = {str(seal["key"])} if seal else set()
    sources: dict[str, str] = dict(seal["sources"]) if seal else {}
    for terms in accounts:
        if terms.source_digest:
            keys.add(terms.key_digest)
            if sources.setdefault(terms.source, terms.source_digest) != terms.source_digest:
                raise LedgerCorrupted(
                    f"two accounts of the ledger name the source {terms.source} for different data: restore the "
                    "ledger from a backup"
                )
    if keys and keys != {digest(read_key(link))}:
        raise LedgerCorrupted(
            "the key by which the ledger knows data again is not the one that its entries say, so that the same data "
            "would look new: restore the ledger from a backup"
        )
    if keys and sources != {name: digest(mark) for name, mark in read_fingerprints(link).items()}:
        raise LedgerCorrupted(
            "the fingerprints of data in the ledger are not those that its entries say, so that the same data would "
            "look new: restore the ledger from a backup"
        )
