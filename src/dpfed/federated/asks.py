"""The server's durable book of asks: how often each site may have been charged, never too low.

An ask is on disk before it is sent. What a site answers says how many charges it has made, and which is the last
request that it will ever answer: all asks up to that one are settled, and what was sent since counts as charged until
the next answer. Each site keeps its true count in its own ledger; this book bounds it while nothing is heard.

A line carries a seal of the study's key over itself and all before it. One that was cut off by a crash was never sent,
or says less than was heard: it is dropped.

>>> import tempfile
>>> book = AskBook(Path(tempfile.mkdtemp()) / "asks.jsonl", b"a secret")
>>> book.begin("study-1")
>>> book.ask([Ask("north", number=1, round=1), Ask("south", number=1, round=1)])
>>> book.hear("north", Heard(last=1, counts=(1,), head="9:ab"))
>>> book.heard("north").counts, book.pending("north"), book.pending("south")
((1,), (), (1,))
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dpfed.errors import InvalidArgument
from dpfed.events import Event
from dpfed.plan.by_round import choose_payment, cover_local
from dpfed.plan.measuring import list_client_charges
from dpfed.plan.plan import Plan
from dpfed.runs.directory import OWNER_ONLY


@dataclass(frozen=True)
class Ask:
    """A request that a site may be charged for: its number at that site, and the round; to train, or to measure."""

    site: str
    number: int
    round: int
    measures: bool = False


@dataclass(frozen=True)
class Heard:
    """What a site has said of itself: the last request it answers, its charges by event, its ledger's head.

    `counts` are in the order of ``plan.local_charges(site)``.
    """

    last: int = 0
    counts: tuple[int, ...] = ()
    head: str = ""
    is_private: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple(self.counts))

    def after(self, newer: Heard) -> Heard:
        """Return both together: a site that suddenly has fewer charges was rolled back, and the higher count stays."""
        counts = tuple(max(pair) for pair in zip_longest(self.counts, newer.counts, fillvalue=0))
        is_private = self.is_private and newer.is_private
        return Heard(max(self.last, newer.last), counts, newer.head or self.head, is_private)


class AskBook:
    """The asks and answers of one run, in a file that only grows; `run` names it at the sites, "" before it began."""

    def __init__(self, path: Path, key: bytes) -> None:
        self._path = path
        self._key = key
        self._seal = ""
        self._asks: dict[str, list[Ask]] = {}
        self._heard: dict[str, Heard] = {}
        self.run = ""
        if path.exists():
            self._read()

    def begin(self, run: str) -> None:
        """Begin a run of that name; what was asked for one before it, to which not all sites agreed, is settled."""
        self._append([{"run": run}], is_durable=True)
        self._take_record({"run": run})

    def drop(self) -> None:
        """Note that the run did not begin, since not all sites agreed: another attempt has another name."""
        self.begin("")

    def ask(self, asks: Iterable[Ask]) -> None:
        """Write what is about to be sent; it is on disk when this returns, and only then may it be sent."""
        made = list(asks)
        self._append([{"ask": asdict(each)} for each in made], is_durable=True)
        for each in made:
            self._asks.setdefault(each.site, []).append(each)

    def hear(self, site: str, heard: Heard) -> None:
        """Write what a site has answered; if a crash takes it away, the figure is higher until it is heard again."""
        known = self.heard(site).after(heard)
        if known != self.heard(site):
            self._append([{"heard": asdict(known), "site": site}], is_durable=False)
        self._heard[site] = known

    def heard(self, site: str) -> Heard:
        """Return what is known of the site."""
        return self._heard.get(site, Heard())

    def pending(self, site: str, *, measures: bool = False) -> tuple[int, ...]:
        """Return the rounds of the asks to train, or to measure, that are not settled: each may have been charged."""
        last, asks = self.heard(site).last, self._asks.get(site, ())
        return tuple(ask.round for ask in asks if ask.number > last and ask.measures == measures)

    def next_number(self, site: str) -> int:
        """Return the number of the next request to that site: above all that were sent or answered."""
        return 1 + max([self.heard(site).last, *(ask.number for ask in self._asks.get(site, ()))])

    def _append(self, records: Iterable[dict[str, Any]], *, is_durable: bool) -> None:
        lines = [self._sealed(record) for record in records]
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OWNER_ONLY)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(b"".join(lines))
            stream.flush()
            if is_durable:
                os.fsync(stream.fileno())

    def _sealed(self, record: dict[str, Any]) -> bytes:
        text = json.dumps(record, sort_keys=True)
        self._seal = self._seal_of(text)
        return f"{self._seal} {text}\n".encode()

    def _seal_of(self, text: str) -> str:
        return hmac.new(self._key, f"{self._seal} {text}".encode(), hashlib.sha256).hexdigest()

    def _read(self) -> None:
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.decode(errors="replace").splitlines(), start=1):
            self._take(line, number)
        if whole != content:  # cut off by a crash
            os.truncate(self._path, len(whole))

    def _take(self, line: str, number: int) -> None:
        seal, _, text = line.partition(" ")
        if not hmac.compare_digest(seal.encode(), self._seal_of(text).encode()):
            message = f"{self._path}, line {number}: it was changed, or the study's key is another"
            raise InvalidArgument("directory", f"{message}: put back a copy of the run's directory")
        self._seal = seal
        self._take_record(json.loads(text))

    def _take_record(self, record: dict[str, Any]) -> None:
        if "run" in record:
            self.run, self._asks, self._heard = record["run"], {}, {}
        elif "ask" in record:
            ask = Ask(**record["ask"])
            self._asks.setdefault(ask.site, []).append(ask)
        else:
            self._heard[record["site"]] = Heard(**record["heard"])


def count_at_most(plan: Plan, book: AskBook, name: str) -> dict[Event, int]:
    """Return the most that a site can have charged: what it said, and each ask since, as it would pay for it.

    Privacy: a site pays for a round with its own event or, where that is used up, with one of next less noise. If some
    asks were never charged, later ones paid with events of no more cost than is counted here. No site can charge more
    than it has reserved.
    """
    reserved = plan.local_charges(name)
    heard = book.heard(name).counts
    spent = {event: heard[place] if place < len(heard) else 0 for place, event in enumerate(reserved)}
    for number in book.pending(name):
        left = {event: most - spent[event] for event, most in reserved.items()}
        event = choose_payment(cover_local(plan, name, number), left)
        if left.get(event, 0) > 0:
            spent[event] += 1
    for event, most in list_client_charges(plan).items():
        spent[event] = min(spent[event] + len(book.pending(name, measures=True)), most)
    return spent
