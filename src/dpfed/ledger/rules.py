"""What an account is and how each kind of entry moves it: pure rules, without a database.

An account is a *filter* over data and unit: it admits a reservation when, at some order declared as it was
opened, all that was ever charged and all that is reserved stays within the cap. That holds however the
studies are chosen, also after reading the results of earlier ones. One exception is sound: the first plan of
an account without earlier charges may be admitted by its exact ε alone; the account is then closed for
further charges, because "ran to the end" (exact) and "stopped and went on" (filter) together are covered by
neither theorem.

>>> terms = Terms(name="icu", epsilon=8.0, delta=1e-5, orders=(4.0,))
>>> state = AccountState.new(terms)
>>> cost = (125,)  # of one event; `terms.cost` asks the accountant
>>> state = state.after("reserved", 10, cost)
>>> state = state.after("committed", 1, cost)
>>> state.spent, state.held, state.pending
((125,), (1125,), 9)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from dpfed.checks import ADD_REMOVE
from dpfed.events import Event
from dpfed.ledger import amounts
from dpfed.ledger.amounts import Amounts

CHARGES = ("carried", "recorded")  # spent at once: released before the ledger was kept, or after the fact
OF_ALL = ("leased", "sealed", "clock")  # entries that belong to no account
KINDS = (
    "opened",
    *CHARGES,
    "reserved",
    "committed",
    "released",
    "refused",
    "frozen",
    "unfrozen",
    "topped_up",
    "restored",
    *OF_ALL,
)


@dataclass(frozen=True)
class Terms:
    """The terms on which an account was opened; they never change."""

    name: str
    epsilon: float
    delta: float
    unit: str = "record"
    adjacency: str = ADD_REMOVE
    orders: tuple[float, ...] = ()
    owner: str = ""
    purpose: str = ""
    source: str = ""
    parent: str | None = None
    overlaps: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    expires: str | None = None
    key_digest: str = ""  # of the key and the fingerprint, where the source is known by one
    source_digest: str = ""
    opened: int = 0  # the number of the entry that says all this

    def cost(self, event: Event) -> Amounts:
        """Return what one such event costs this account."""
        return amounts.cost(event, self.orders, self.adjacency)

    def caps(self, epsilon: float) -> Amounts:
        """Return what may be spent at each order while the cap is ε."""
        return amounts.caps(epsilon, self.delta, self.orders)

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as plain JSON values."""
        plain = {**asdict(self), "orders": list(self.orders), "overlaps": list(self.overlaps)}
        del plain["opened"]
        if not self.source_digest:
            del plain["key_digest"], plain["source_digest"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], opened: int) -> Terms:
        """Return the terms that `to_dict` described, in the entry of that number."""
        tuples = {"orders": tuple(plain["orders"]), "overlaps": tuple(plain["overlaps"])}
        return cls(**{**plain, **tuples}, opened=opened)


class AccountState(NamedTuple):
    """The state of an account after an entry.

    ``held`` is reserved and not yet committed. ``charged`` and ``pending`` count events; ``plan`` is the exact
    ε by which the one plan of an account was admitted.
    """

    cap: float
    spent: Amounts
    held: Amounts
    charged: int = 0
    pending: int = 0
    frozen: bool = False
    plan: float | None = None
    closed: bool = False
    restored: bool = False  # frozen since a backup was restored

    @classmethod
    def new(cls, terms: Terms) -> AccountState:
        """Return the state of an account that was just opened."""
        nothing = (0,) * len(terms.orders)
        return cls(cap=terms.epsilon, spent=nothing, held=nothing)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was ever charged and nothing is reserved."""
        return self.charged == 0 and self.pending == 0

    @property
    def total(self) -> Amounts:
        """The amounts that are spent or reserved."""
        return amounts.plus(self.spent, 1, self.held)

    def after(
        self, kind: str, count: int = 0, cost: Amounts = (), body: Mapping[str, Any] | None = None
    ) -> AccountState:
        """Return the state after an entry of that kind."""
        body = body or {}
        match kind:
            case "carried" | "recorded":
                spent = amounts.plus(self.spent, count, cost)
                mixed = self.closed or self.plan is not None
                return self._replace(spent=spent, charged=self.charged + count, plan=None, closed=mixed)
            case "reserved":
                held = amounts.plus(self.held, count, cost)
                return self._replace(held=held, pending=self.pending + count, plan=body.get("plan", self.plan))
            case "committed":
                return self.after_commit(count, cost)
            case "released":
                held, pending = self._take_out(count, cost)
                return self._replace(held=held, pending=pending)._reopen()
            case "frozen":
                return self._replace(frozen=True)
            case "unfrozen":
                return self._replace(frozen=False, restored=False)
            case "restored":
                return self._replace(frozen=True, restored=True)
            case "topped_up":
                return self._replace(cap=self.cap + body["epsilon"])
            case _:
                return self

    def after_commit(self, count: int, cost: Amounts) -> AccountState:
        """Return the state after a commit, which is by far the most frequent entry."""
        spent, charged = amounts.plus(self.spent, count, cost), self.charged + count
        held, pending = self._take_out(count, cost)
        return AccountState(self.cap, spent, held, charged, pending, self.frozen, self.plan, self.closed, self.restored)

    def dumps(self) -> str:
        """Return the canonical JSON text of the state; joined by hand, because every commit writes one."""
        spent, held = '","'.join(map(str, self.spent)), '","'.join(map(str, self.held))
        frozen = ',"frozen":true' if self.frozen else ""
        plan = "" if self.plan is None else f',"plan":{float.__repr__(self.plan)}'
        closed = ',"closed":true' if self.closed else ""
        restored = ',"restored":true' if self.restored else ""
        return (
            f'{{"cap":{float.__repr__(self.cap)},"spent":["{spent}"],"held":["{held}"],'
            f'"charged":{self.charged},"pending":{self.pending}{frozen}{plan}{closed}{restored}}}'
        )

    @classmethod
    def loads(cls, text: str) -> AccountState:
        """Read the state that `dumps` wrote."""
        plain = json.loads(text)
        return cls(**{**plain, "spent": amounts.from_texts(plain["spent"]), "held": amounts.from_texts(plain["held"])})

    def _take_out(self, count: int, cost: Amounts) -> tuple[Amounts, int]:
        """Return what stays reserved, and how many events, once that many are taken out."""
        pending = self.pending - count
        return amounts.minus(self.held, count, cost) if pending else (0,) * len(self.held), pending

    def _reopen(self) -> AccountState:
        """Return the state open again if nothing of its exact plan was ever committed: nothing was released."""
        return self._replace(plan=None) if self.is_fresh else self
