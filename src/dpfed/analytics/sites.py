"""Ask columns of one table or of many sites, charged to their accounts before any noise is drawn.

>>> table = np.arange(2000.0).reshape(-1, 1) % 100
>>> with Ledger("sqlite:///ledger.db") as ledger:
...     _ = ledger.open("ward", epsilon=2.0, delta=1e-5)
...     asked = ColumnStudy("ages", Histogram((tuple(range(0, 101, 5)),)), {"ward": Owner("ward", table)}, ledger)
...     answer = asked.ask(record=Guarantee(1.0, 1e-5))
...     ledger.balance("ward").spent < 1.5, 40 < answer.quantile(0, 0.5).value < 60
(True, True)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpfed.analytics.answers import HistogramAnswer, MomentsAnswer, make_answer
from dpfed.analytics.queries import Histogram, Query, find_weights, require_table
from dpfed.analytics.releases import ColumnRelease
from dpfed.analytics.scaling import find_bounds
from dpfed.arrays import Floats
from dpfed.checks import REPLACE_ONE
from dpfed.errors import AdjacencyMismatch, InvalidArgument
from dpfed.events import Event
from dpfed.guarantee import CLIENT, PERSON, Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.randomness import RandomSource, or_system


@dataclass(frozen=True, eq=False)
class Owner:
    """A data owner: its account, its columns as a table, and how many `rows` each person has, person by person.

    Without `rows` each row is a unit of its own, which a promise for one person does not allow.
    """

    account: str
    values: Any = field(repr=False)
    rows: Any = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class ColumnStudy:
    """A query to one table or to the tables of several owners; `name` is its name in the ledger.

    `study` is the account that pays for what a server noises. A person may be at `sites` of the owners.
    """

    name: str
    query: Query
    owners: Mapping[str, Owner]
    ledger: Ledger
    study: str | None = None
    sites: int = 1
    source: RandomSource | None = None

    def ask(
        self, *, record: Guarantee | None = None, client: Guarantee | None = None
    ) -> HistogramAnswer | MomentsAnswer:
        """Charge the accounts, then return the answer, noised for one record or person, one client, or both.

        Privacy: `record` (of unit record or person): every owner noises its own sum, and its account pays. `client`:
        the server scales each owner's sum (noised already, if both are asked for) to the norm of one unit, noises the
        sum of all, and the account `study` pays; without such an account each client scales and noises its own, whose
        account pays, under replace_one.
        """
        self._require_promises(record, client)
        self._require_tables()
        own = None if record is None else ColumnRelease(self.query, record, self.sites)
        whole = None if client is None else ColumnRelease(self.query, client)
        self._charge(own, whole)
        parts = {name: self._leave(name, owner, own, whole) for name, owner in self.owners.items()}
        total = np.sum(list(parts.values()), axis=0)
        return make_answer(self.query, self._release(total, whole), self._find_noise(own, whole))

    @property
    def is_local(self) -> bool:
        """Whether clients noise their own sums for a promise about clients: no account of a study is there to pay."""
        return self.study is None

    def _leave(self, name: str, owner: Owner, own: ColumnRelease | None, whole: ColumnRelease | None) -> Floats:
        """Return what leaves an owner, or what a trusted server gets of it."""
        total = self.query.add_up(np.asarray(owner.values), owner.rows)
        source = or_system(self.source).once(f"columns {self.name} {name}")
        noised = total if own is None else own.release(total, source.once("own"))
        if whole is None:
            return noised
        scaled = whole.scale(noised)
        return whole.release(scaled, source.once("whole")) if self.is_local else scaled

    def _release(self, total: Floats, whole: ColumnRelease | None) -> Floats:
        if whole is None or self.is_local:
            return total
        return whole.release(total, or_system(self.source).once(f"columns {self.name}"))

    def _find_noise(self, own: ColumnRelease | None, whole: ColumnRelease | None) -> float:
        """Return the standard deviation of the noise of one number; scaling makes an owner's own noise no larger."""
        each = 0.0 if own is None else own.noise**2 * len(self.owners)
        if whole is None:
            return float(np.sqrt(each))
        return float(np.sqrt(each + whole.noise**2 * (len(self.owners) if self.is_local else 1)))

    def _charge(self, own: ColumnRelease | None, whole: ColumnRelease | None) -> None:
        charges: dict[str, dict[Event, int]] = {}
        for owner in self.owners.values():
            events = [each.event for each in (own, whole if self.is_local else None) if each is not None]
            beside = self._find_beside(owner.account) if whole is not None and self.is_local else ()
            for account in (owner.account, *beside) if events else ():
                known = charges.setdefault(account, {})  # one may be beside two owners, and pays for both
                known.update({event: known.get(event, 0) + 1 for event in events})
        if whole is not None and self.study is not None:
            charges[self.study] = {whole.event: 1}
        self.ledger.reserve(charges, run=self.name, fixed_plan=True).commit(charges)
        self.ledger.release(self.name, reason="all of it is charged")

    def _find_beside(self, account: str) -> tuple[str, ...]:
        """Return the other accounts on the same data, which pay too where a client noises its own sum.

        Privacy: what protects the whole client costs each of its records and persons as much.
        """
        others = self.ledger.beside([account])[account]
        for other, terms in self.ledger.terms(others).items():
            if terms.adjacency != REPLACE_ONE:
                message = f"account {other} is for the same data as {account}, so it pays as well, under replace_one"
                raise AdjacencyMismatch(f"{message}: it is for {terms.adjacency}; open one for replace_one")
        return others

    def _require_promises(self, record: Guarantee | None, client: Guarantee | None) -> None:
        accounts = [owner.account for owner in self.owners.values()]
        if not accounts or len(set(accounts)) != len(accounts) or self.study in accounts:
            message = f"every owner and the study must have an account of its own, got {', '.join(accounts) or 'none'}"
            raise InvalidArgument("owners", f"{message}: open one for each")
        if record is None and client is None:
            raise InvalidArgument("record", "nobody would be protected: give record=Guarantee(...), or client=")
        if (record is not None and record.unit == CLIENT) or (client is not None and client.unit != CLIENT):
            raise InvalidArgument("unit", "record must be for a record or person, and client for a client: name these")
        if client is not None and self.is_local and (client.adjacency != REPLACE_ONE or record is not None):
            message = "a client that noises its own sum is seen to be there, and has one account"
            raise AdjacencyMismatch(f"{message}: ask for client alone under replace_one, or give a study's account")
        self._require_accounts(record, client)
        if record is not None and record.unit == PERSON and any(owner.rows is None for owner in self.owners.values()):
            message = "the promise is for one person, and it is not said whose rows there are: each would count as one"
            raise InvalidArgument("rows", f"{message}; give Owner(..., rows=) how many rows each person has, in order")

    def _require_tables(self) -> None:
        """Refuse a table of another form than the query's before anything is charged for it."""
        for owner in self.owners.values():
            find_weights(require_table(owner.values, self.query.columns), owner.rows)

    def _require_accounts(self, record: Guarantee | None, client: Guarantee | None) -> None:
        """Refuse accounts whose promise is about something else than what is asked."""
        wanted = {owner.account: client if record is None else record for owner in self.owners.values()}
        wanted = {} if record is None and not self.is_local else wanted
        wanted |= {} if self.study is None or client is None else {self.study: client}
        for account, terms in self.ledger.terms(wanted).items():
            promise = wanted[account]
            if promise is not None and (terms.unit, terms.adjacency) != (promise.unit, promise.adjacency):
                message = f"account {account} is for one {terms.unit} under {terms.adjacency}"
                raise InvalidArgument("owners", f"{message}, and asked is {promise}: give it an account for that")


def ask_bounds(
    name: str, values: Any, account: str, ledger: Ledger, guarantee: Guarantee, rows: Any = None
) -> tuple[tuple[float, float] | None, ...]:
    """Charge the account of one table, then return bounds of each of its columns, None where noise leaves it open.

    Privacy: one release of `Histogram.fixed`, which keeps the guarantee for one record or person.
    """
    query = Histogram.fixed(np.asarray(values).shape[1])
    answer = ColumnStudy(name, query, {name: Owner(account, values, rows)}, ledger).ask(record=guarantee)
    return find_bounds(answer) if isinstance(answer, HistogramAnswer) else ()
