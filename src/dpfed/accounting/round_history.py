"""The rounds of a federation at one level of protection: what each client did, and what it has cost so far.

>>> level = RoundHistory(delta=1e-5, adjacency="add_remove")
>>> level.add(RoundRecord(round=1, client=None, noise_multiplier=1.0, sample_rate=0.1, steps=100))
>>> round(level.worst(), 2)
7.05
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from numbers import Integral
from typing import Any

from dpfed import checks
from dpfed.accounting.calibrate import dp_sgd_event
from dpfed.accounting.tally import Tally
from dpfed.errors import InvalidArgument
from dpfed.events import Event


@dataclass(frozen=True)
class RoundRecord:
    """One round's training at one level, of one client or (client None) of every client alike."""

    round: int
    client: str | None
    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        checks.count(round_num=self.round)
        object.__setattr__(self, "client", client_name(self.client))
        checks.positive(noise_multiplier=self.noise_multiplier)
        checks.rate(sample_rate=self.sample_rate)
        checks.count(steps=self.steps)

    @property
    def event(self) -> Event:
        """The event of the round for each record, or for each client."""
        return dp_sgd_event(self.noise_multiplier, self.sample_rate, self.steps)


class RoundHistory:
    """The rounds of one level: a composition per named client, and one of what every client did."""

    def __init__(self, delta: float, adjacency: str) -> None:
        self.delta = delta
        self.adjacency = adjacency
        self.records: list[RoundRecord] = []
        self._seen: set[tuple[int, str | None]] = set()
        self._tallies: dict[str | None, Tally] = {None: Tally(adjacency)}

    def require_new(self, record: RoundRecord, level: str) -> None:
        """Refuse a round that this client (or every client) has already been recorded for."""
        if (record.round, record.client) in self._seen:
            who = "every client" if record.client is None else record.client
            raise InvalidArgument(
                "round_num",
                f"round {record.round} of {who} is already recorded at {level} level: record it once",
            )

    def add(self, record: RoundRecord) -> None:
        """Compose the record into its client's account, or into every client's."""
        if record.client is not None and record.client not in self._tallies:
            self._tallies[record.client] = self._tallies[None].copy()
        for name in self._tallies if record.client is None else [record.client]:
            self._tallies[name].add(record.event)
        self.records.append(record)
        self._seen.add((record.round, record.client))

    def epsilon(self, client: str | None) -> float:
        """Return the ε of a client so far; for one that was never named, of what every client did."""
        return self._tallies[client if client in self._tallies else None].epsilon(self.delta)

    def names(self) -> tuple[str, ...]:
        """Return the clients that were ever named."""
        return tuple(name for name in self._tallies if name is not None)

    def worst_name(self) -> str | None:
        """Return the client of the largest ε; None where that is any client that was never named."""
        return max(self._tallies, key=self.epsilon)

    def worst(self) -> float:
        """Return the largest ε of any client."""
        return self.epsilon(self.worst_name())

    def by_round(self) -> dict[int, float]:
        """Return the worst client's ε after each round, in the order of the rounds."""
        replay, table = RoundHistory(self.delta, self.adjacency), {}
        for number, records in groupby(sorted(self.records, key=_round), key=_round):
            for record in records:
                replay.add(record)
            table[number] = replay.worst()
        return table

    def history(self) -> list[dict[str, Any]]:
        """Return the records as plain JSON values; from here on a restored history agrees in every bit."""
        for tally in self._tallies.values():
            tally.settle()
        return [asdict(record) for record in self.records]


def read_history(rows: Iterable[Any]) -> list[RoundRecord]:
    """Return the records of a history; a bare (σ, q, T) is the round of its position, for every client."""
    return [_read(number, row) for number, row in enumerate(rows, start=1)]


def _read(number: int, row: Any) -> RoundRecord:
    try:
        return RoundRecord(**row) if isinstance(row, Mapping) else RoundRecord(number, None, *row)
    except TypeError:
        raise InvalidArgument("history", f"row {number} of the history is no round record: {row!r:.80}") from None


def client_name(client: object) -> str | None:
    """Return the client's name; a number is its digits, so that 7 and "7" are one client and spend one budget."""
    if client is None or (isinstance(client, str) and client):
        return client
    if isinstance(client, bool) or not isinstance(client, Integral):
        raise InvalidArgument("client", f"client must be a name, or None for every client, got {client!r}")
    return str(int(client))


def _round(record: RoundRecord) -> int:
    return record.round
