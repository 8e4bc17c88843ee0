"""One entry of the ledger and its place in the hash chain.

Every entry carries the digest of the one before it, so a row cannot be changed, dropped or slipped in
without changing every digest after it; whoever kept an old head notices.

>>> first = Draft("leased", run="study-12").row(1, "2026-01-01T00:00:00.000000Z", GENESIS)
>>> first.hash == first.digest()
True
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quote
from typing import Any, NamedTuple

from dpfed import __version__
from dpfed.errors import InvalidArgument, LedgerCorrupted, PrivacyError

GENESIS = "0" * 64
# Raised whenever the accountant's cost of an event changes; `verify` recomputes costs of its own version only.
ACCOUNTANT = 1
CODE = f"{__version__}+{ACCOUNTANT}"
_NO_BODY = "{}"


class Head(NamedTuple):
    """The last entry: its number and its digest. Keep a copy elsewhere and `require` it later."""

    sequence: int
    digest: str

    def __str__(self) -> str:
        return f"{self.sequence}:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read the head that ``str`` wrote."""
        number, _, digest = str(text).strip().partition(":")
        if not (number.isascii() and number.isdigit() and len(number) < 19 and len(digest) == 64):
            raise InvalidArgument(
                "head", f"head must look like 12:<64 hex digits>, as dpfed ledger head prints it, got {text!r:.100}"
            )
        return cls(int(number), digest)


class Row(NamedTuple):
    """One entry as it is stored."""

    seq: int
    at: str
    kind: str
    account: str | None
    run: str | None
    item: int | None
    origin: str | None
    event: str | None
    times: int | None
    left: int | None
    cost: str | None
    state: str | None
    body: str
    code: str
    previous: str
    hash: str

    def digest(self) -> str:
        """Return the digest of everything but itself."""
        return _digest(self[:-1])

    def check(self) -> Row:
        """Return the row if its digest is right and each value has its type; else raise LedgerCorrupted."""
        if self.hash != self.digest() or not _are_kinds(tuple(map(type, self))):
            raise LedgerCorrupted(
                f"entry {self.seq} of the ledger does not match its own digest, so it was changed after it was "
                "written: restore the ledger from a backup",
                self.seq,
            )
        return self

    def explain_unsound(self, complaint: str) -> LedgerCorrupted:
        """Return the error for an entry that breaks a rule of the ledger."""
        return LedgerCorrupted(f"entry {self.seq} of the ledger is not sound: {complaint}", self.seq)

    def details(self) -> dict[str, Any]:
        """Return the body as a dict."""
        return dict(json.loads(self.body))


class Draft(NamedTuple):
    """An entry before it has its place in the chain."""

    kind: str
    account: str | None = None
    run: str | None = None
    item: int | None = None
    origin: str | None = None
    event: str | None = None
    times: int | None = None
    left: int | None = None
    cost: str | None = None
    state: str | None = None
    body: str = _NO_BODY

    def row(self, seq: int, at: str, previous: str) -> Row:
        """Return the entry at its place in the chain; a reserved entry is an item of its own number."""
        item = seq if self.kind == "reserved" else self.item
        text = (self.kind, self.account, self.run, item, self.origin, self.event, self.times, self.left)
        values: tuple[Any, ...] = (seq, at, *text, self.cost, self.state, self.body, CODE, previous)
        return Row._make((*values, _digest(values)))


class Series:
    """Entries that differ in number, time, count, what is left and state alone, as a run's commits of one item do.

    It gives the rows that drafts would give; the rest of the text that the digests are taken of is made once.
    """

    def __init__(self, kind: str, account: str, run: str, item: int, origin: str, event: str) -> None:
        self._what = (kind, account, run, item, origin, event)
        self._text = _join_json(self._what)

    def row(self, seq: int, at: str, previous: str, times: int, left: int, state: str) -> Row:
        """Return the entry at its place in the chain."""
        text = f"[{seq},{_quote(at)},{self._text},{times},{left},null,{_quote(state)},{_REST},{_quote(previous)}]"
        return Row._make((seq, at, *self._what, times, left, None, state, _NO_BODY, CODE, previous, _hash(text)))


@contextmanager
def reading_entries(shown: str) -> Iterator[None]:
    """Turn an error from reading an entry that no ledger writes into LedgerCorrupted."""
    try:
        yield
    except PrivacyError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise LedgerCorrupted(
            f"the ledger at {shown} holds something that cannot be read ({type(error).__name__}): dpfed ledger verify "
            "names the first bad entry; if it finds none, please report this"
        ) from error


@lru_cache(maxsize=256)
def _are_kinds(types: tuple[type, ...]) -> bool:
    """Return whether values of these types make an entry."""
    texts = {"at", "kind", "body", "code", "previous", "hash"}
    numbers = {"item", "times", "left"}
    return all(
        of is int
        if name == "seq"
        else of is str
        if name in texts
        else of in (type(None), int if name in numbers else str)
        for name, of in zip(Row._fields, types, strict=True)
    )


def compact(value: Any) -> str:
    """Return the value as JSON text without spaces, keys sorted."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _digest(values: tuple[Any, ...]) -> str:
    """Return the digest of the values as a JSON list in ASCII without spaces."""
    return _hash(f"[{_join_json(values)}]")


def _join_json(values: tuple[Any, ...]) -> str:
    """Join the values as JSON; by hand, which takes half the time."""
    texts = ["null" if value is None else _quote(value) if isinstance(value, str) else str(value) for value in values]
    return ",".join(texts)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()


# What the body and the code of an entry without a body are in that list.
_REST = _join_json((_NO_BODY, CODE))
