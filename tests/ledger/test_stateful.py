"""Any interleaving of verbs, on a real database, against a filter that anyone can read.

The oracle adds up every event again after every step, with fractions and the accountant's `RenyiFilter`; it shares
no code with dpfed.ledger. Besides it keeps what was really released, by the account it was asked of, and holds the
ledger to it: no account may show less than what the accounts that lead to it have released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import dpfed
from dpfed import events as ev
from dpfed.accounting.filter import RenyiFilter, divergences, filter_epsilon
from dpfed.accounting.queries import epsilon as exact_epsilon
from dpfed.errors import (
    AccountUnavailable,
    BudgetExceeded,
    InvalidArgument,
    LeaseLost,
    NotReserved,
    PrivacyError,
)
from dpfed.rounding import round_up
from worlds import settle, sqlite_path

EVENTS = (ev.Gaussian(3.0), ev.Gaussian(6.0), ev.ZeroConcentratedDP(0.05), ev.Repeated(ev.Gaussian(6.0), 2))
DELTA = 1e-5
ORDERS = (None, (4.0,), (3.0, 12.0))
MOST_ACCOUNTS = 6

Bag = Counter[ev.Event]
Refusal = type[PrivacyError] | tuple[type[PrivacyError], ...] | None


@dataclass
class Account:
    """An account as its events, one by one."""

    cap: float
    orders: tuple[float, ...]
    parent: str | None
    overlaps: tuple[str, ...]
    spent: Bag = field(default_factory=Counter)
    frozen: bool = False
    exact: float | None = None
    closed: bool = False

    def admits(self, everything: Bag) -> bool:
        budget = RenyiFilter(self.cap, DELTA, self.orders)
        spent = [sum(parts) for parts in zip(*(self._costs(everything) or [[0] * len(self.orders)]), strict=True)]
        return any(total <= Fraction(cap) for total, cap in zip(spent, budget.caps, strict=True))

    def epsilon(self, bag: Bag) -> float:
        if not bag:
            return 0.0
        sums = [sum(parts) for parts in zip(*self._costs(bag), strict=True)]
        return filter_epsilon([round_up(value) for value in sums], DELTA, self.orders)

    def _costs(self, bag: Bag) -> list[list[Fraction]]:
        return [
            [count * Fraction(each) for each in divergences(event, self.orders, "add_remove")]
            for event, count in bag.items()
        ]


class Oracle:
    """All accounts, all reservations, and what was really released by which account."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.held: dict[tuple[str, str, str], Bag] = {}  # by run, origin and account
        self.released: dict[str, Bag] = {}  # what was committed or recorded, by origin

    def reach(self, name: str) -> list[str]:
        """Everyone who is charged with the account: up through parents, and to whoever overlaps it."""
        seen = [name]
        for each in seen:
            above = [self.accounts[each].parent, *(n for n, a in self.accounts.items() if each in a.overlaps)]
            seen += [other for other in dict.fromkeys(above) if other and other not in seen]
        return seen

    def pending(self, name: str) -> Bag:
        return sum((bag for (_, _, account), bag in self.held.items() if account == name), Counter())

    def own(self) -> Counter[tuple[str, str, ev.Event]]:
        """What may still be committed."""
        own = ((run, origin, bag) for (run, origin, account), bag in self.held.items() if origin == account)
        return Counter({(run, origin, event): count for run, origin, bag in own for event, count in bag.items()})

    def total(self, name: str) -> Bag:
        return self.accounts[name].spent + self.pending(name)

    def open(self, name: str, account: Account, opening: Bag) -> None:
        old = {each: set(self.reach(each)) for each in self.accounts}
        bags = {each: self.total(each) for each in self.accounts}
        self.accounts[name] = account
        touched = set()
        for origin in [*self._not_carried_by_another(account.overlaps, old), name]:
            bag = opening if origin == name else bags[origin]
            for other in self.reach(name):
                if other not in old.get(origin, set()) and bag:
                    self.charge(other, bag)
                    touched.add(other)
        self.released[name] = Counter(opening)
        if not all(self.accounts[each].admits(self.total(each)) for each in touched):
            raise BudgetExceeded("carried too much")

    @staticmethod
    def _not_carried_by_another(overlaps: tuple[str, ...], reach: dict[str, set[str]]) -> list[str]:
        def covers(other: str, one: str) -> bool:
            is_earlier = overlaps.index(other) < overlaps.index(one)
            return other != one and other in reach[one] and (one not in reach[other] or is_earlier)

        return [one for one in overlaps if not any(covers(other, one) for other in overlaps)]

    def charge(self, name: str, bag: Bag) -> None:
        account = self.accounts[name]
        account.spent = account.spent + bag
        account.closed, account.exact = account.closed or account.exact is not None, None

    def parts(self, charges: dict[str, dict[ev.Event, int]]) -> dict[str, Bag]:
        found: dict[str, Bag] = {}
        for origin, counts in charges.items():
            for name in self.reach(origin):
                found[name] = found.get(name, Counter()) + Counter(counts)
        return found

    def reserve(self, run: str, charges: dict[str, dict[ev.Event, int]], fixed: bool) -> None:
        plans = {name: self._admission(name, part, fixed) for name, part in self.parts(charges).items()}
        for name, plan in plans.items():
            self.accounts[name].exact = plan
        for origin, counts in charges.items():
            for name in self.reach(origin):
                self.held[run, origin, name] = self.held.get((run, origin, name), Counter()) + Counter(counts)

    def _admission(self, name: str, part: Bag, fixed: bool) -> float | None:
        """The exact ε that admits, None for the filter; raises what the ledger must raise."""
        account = self.accounts[name]
        if account.frozen or account.closed or account.exact is not None:
            raise AccountUnavailable(name)
        if account.admits(self.total(name) + part):
            return None
        if fixed and not self.total(name):
            plan = composed_epsilon(part)
            if plan <= account.cap:
                return plan
        raise BudgetExceeded(name)

    def commit(self, run: str, origin: str, event: ev.Event, count: int) -> None:
        held = {name: bag for (r, o, name), bag in self.held.items() if (r, o) == (run, origin)}
        if origin not in held or held[origin][event] < count:
            raise NotReserved(run)
        part = {name: min(count, bag[event]) for name, bag in held.items() if bag[event]}
        if any(self.accounts[name].frozen for name in part):
            raise AccountUnavailable(origin)
        for name, taken in part.items():
            account = self.accounts[name]
            # Charges after the fact may have taken the room that was reserved.
            if account.exact is None and not account.admits(account.spent + Counter({event: taken})):
                raise BudgetExceeded(name)
        for name, taken in part.items():
            self.held[run, origin, name] -= Counter({event: taken})
            self.accounts[name].spent[event] += taken
        self.released[origin][event] += count

    def has_room(self, name: str, taken: Bag) -> bool:
        """Whether what is committed stays within the cap; charges after the fact may have taken reserved room."""
        account = self.accounts[name]
        return account.exact is not None or account.admits(account.spent + taken)

    def release(self, run: str) -> None:
        for key in [key for key in self.held if key[0] == run]:
            del self.held[key]
        for name, account in self.accounts.items():
            if not self.total(name):
                account.exact = None  # nothing was ever released

    def in_scope(self, name: str) -> Bag:
        """What has really been released from the data of the account."""
        return sum((bag for origin, bag in self.released.items() if name in self.reach(origin)), Counter())


def composed_epsilon(bag: Bag) -> float:
    parts = [ev.Repeated(event, count) for event, count in bag.items()]
    return exact_epsilon(ev.Composed(parts), DELTA) if parts else 0.0


@st.composite
def counts(draw: Any, most: int = 25) -> dict[ev.Event, int]:
    return draw(st.dictionaries(st.sampled_from(EVENTS), st.integers(1, most), min_size=1, max_size=2))


class Interleaving(RuleBasedStateMachine):
    """Runs every verb on the ledger and on the oracle, and compares what they say."""

    new_url: Any

    def __init__(self) -> None:
        super().__init__()
        self.ledger = dpfed.Ledger(self.new_url())
        self.oracle = Oracle()
        self.runs: dict[str, Any] = {}
        self.number = 0
        self.steps = 0

    def teardown(self) -> None:
        self.ledger.verify()
        self.ledger.close()

    def both(self, predicted: Any, verb: Any, else_undo: Any = None) -> Any:
        """What the verb gives, if ledger and oracle agree on whether and how it is refused."""
        expected: Refusal = None
        try:
            predicted()
        except PrivacyError as error:
            expected = type(error)
            if else_undo:
                else_undo()
        before = self.ledger.head()
        if expected is not None:
            # With several accounts the ledger names the first one's trouble.
            either = (AccountUnavailable, BudgetExceeded)
            with pytest.raises(either if expected in either else expected):
                verb()
            return None
        result = verb()
        assert self.ledger.head().sequence > before.sequence
        return result

    def name(self, data: Any) -> str:
        return data.draw(st.sampled_from(sorted(self.oracle.accounts)))

    @initialize()
    def begin(self) -> None:
        for name, epsilon in (("a1", 4.0), ("a2", 6.0)):
            self.ledger.open(name, epsilon=epsilon, delta=DELTA)
            orders = self.ledger.balance(name).account.orders
            self.oracle.open(name, Account(epsilon, orders, None, ()), Counter())

    @precondition(lambda self: len(self.oracle.accounts) < MOST_ACCOUNTS)
    @rule(data=st.data(), epsilon=st.sampled_from([2.0, 4.0, 6.0]), orders=st.sampled_from(ORDERS))
    def open(self, data: Any, epsilon: float, orders: Any) -> None:
        names = sorted(self.oracle.accounts)
        parent = data.draw(st.none() | st.sampled_from(names))
        overlaps = tuple(data.draw(st.lists(st.sampled_from(names), max_size=3, unique=True)))
        opening = data.draw(st.just({}) | counts(most=5))
        self.number += 1
        name = f"b{self.number}"
        saved = {n: Account(**vars(a)) for n, a in self.oracle.accounts.items()}

        def predicted() -> None:
            if parent in overlaps:
                raise InvalidArgument("overlaps", "parent")
            declared = RenyiFilter(epsilon, DELTA, orders).orders
            self.oracle.open(name, Account(epsilon, declared, parent, overlaps), Counter(opening))

        def undo() -> None:
            self.oracle.accounts = saved
            self.oracle.released.pop(name, None)

        wanted = {"parent": parent, "overlaps": overlaps, "orders": orders, "opening": opening}
        self.both(predicted, lambda: self.ledger.open(name, epsilon=epsilon, delta=DELTA, **wanted), undo)

    @rule(data=st.data(), fixed=st.booleans(), two=st.booleans())
    def reserve(self, data: Any, fixed: bool, two: bool) -> None:
        charges = {self.name(data): data.draw(counts(most=60)) for _ in range(1 + two)}
        self.number += 1
        run = f"run-{self.number}"
        made = self.both(
            lambda: self.oracle.reserve(run, charges, fixed),
            lambda: self.ledger.reserve(charges, run=run, fixed_plan=fixed),
        )
        if made is not None:
            self.runs[run] = made

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), count=st.integers(1, 20))
    def commit_what_may_be_left(self, data: Any, count: int) -> None:
        run = data.draw(st.sampled_from(sorted(self.runs)))
        account = data.draw(st.sampled_from(self.runs[run].accounts))
        event = data.draw(st.sampled_from(EVENTS))
        assert self.runs[run].left(account, event) == self.oracle.held.get((run, account, account), Counter())[event]
        self.commit(run, account, event, count)

    @precondition(lambda self: +self.oracle.own())
    @rule(data=st.data(), count=st.integers(1, 20))
    def commit_what_is_left(self, data: Any, count: int) -> None:
        left = +self.oracle.own()
        run, account, event = data.draw(st.sampled_from(list(left)))
        self.commit(run, account, event, min(count, left[run, account, event]))

    def commit(self, run: str, account: str, event: ev.Event, count: int) -> None:
        self.both(
            lambda: self.oracle.commit(run, account, event, count),
            lambda: self.runs[run].commit({account: {event: count}}),
        )

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), more=counts(most=10))
    def extend(self, data: Any, more: dict[ev.Event, int]) -> None:
        run, account = data.draw(st.sampled_from(sorted(self.runs))), self.name(data)
        self.both(
            lambda: self.oracle.reserve(run, {account: more}, False),
            lambda: self.runs[run].extend({account: more}),
        )

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), by_name=st.booleans())
    def release(self, data: Any, by_name: bool) -> None:
        run = data.draw(st.sampled_from(sorted(self.runs)))
        self.oracle.release(run)
        if by_name:
            self.ledger.release(run, reason="not needed")
            self.runs[run] = self.ledger.resume(run)
        else:
            self.runs[run].release()

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), event=st.sampled_from(EVENTS))
    def resume(self, data: Any, event: ev.Event) -> None:
        run = data.draw(st.sampled_from(sorted(self.runs)))
        old, self.runs[run] = self.runs[run], self.ledger.resume(run)
        for verb in (lambda: old.commit({old.accounts[0]: event}), old.release, lambda: old.extend({"a1": event})):
            with pytest.raises(LeaseLost):
                verb()

    @rule(data=st.data(), what=counts(most=3))
    def record(self, data: Any, what: dict[ev.Event, int]) -> None:
        account = self.name(data)
        for name in self.oracle.reach(account):
            self.oracle.charge(name, Counter(what))
        self.oracle.released[account] += Counter(what)
        self.ledger.record({account: what}, reason="found later")

    @rule(data=st.data())
    def freeze_or_unfreeze(self, data: Any) -> None:
        account = self.name(data)
        frozen = self.oracle.accounts[account].frozen
        (self.ledger.unfreeze if frozen else self.ledger.freeze)(account, reason="audit")
        self.oracle.accounts[account].frozen = not frozen

    @rule(data=st.data(), more=st.floats(0.01, 2.0))
    def top_up(self, data: Any, more: float) -> None:
        account = self.name(data)
        self.ledger.top_up(account, epsilon=more, reason="another year")
        self.oracle.accounts[account].cap += more

    @invariant()
    def every_balance_is_that_of_the_naive_filter_and_covers_what_was_released(self) -> None:
        shown = self.ledger.accounts()
        assert [balance.account.name for balance in shown] == list(self.oracle.accounts)
        for balance in shown:
            self.compare(balance, self.oracle.accounts[balance.account.name])

    def compare(self, shown: Any, account: Account) -> None:
        total, released = self.oracle.total(shown.account.name), self.oracle.in_scope(shown.account.name)
        assert not released - account.spent
        assert min(shown.spent, shown.reserved, shown.remaining) >= 0
        assert shown.cap.epsilon == account.cap
        status = "closed" if account.closed or account.exact is not None else "open"
        assert shown.status == ("frozen" if account.frozen else status)
        if account.exact is not None:
            assert (shown.mode, shown.remaining) == ("exact", 0)
            assert shown.spent + shown.reserved == pytest.approx(account.exact, rel=1e-9)
            assert account.cap >= account.exact >= composed_epsilon(released) * (1 - 1e-9)
            return
        assert shown.mode == "filter"
        assert shown.spent == pytest.approx(account.epsilon(account.spent), rel=1e-12)
        assert shown.spent + shown.reserved == pytest.approx(account.epsilon(total), rel=1e-12)
        assert shown.spent >= account.epsilon(released) * (1 - 1e-12)
        if status == "open" and shown.spent + shown.reserved <= account.cap:
            assert shown.spent + shown.reserved + shown.remaining == pytest.approx(account.cap, rel=1e-12)

    @invariant()
    def the_ledger_verifies(self) -> None:
        self.steps += 1
        if self.steps % 8 == 0:
            self.ledger.verify()


def explore(new_url: Callable[[], str], examples: int) -> None:
    machine = type("OnThisDatabase", (Interleaving,), {"new_url": staticmethod(new_url)})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=30))


def test_any_interleaving_of_verbs_keeps_the_balances_of_a_naive_filter(tmp_path, new_sqlite_url, campaign_scale):
    template = new_sqlite_url()
    dpfed.Ledger(template).close()
    empty = settle(sqlite_path(template))

    def copy() -> str:
        url = new_sqlite_url()
        sqlite_path(url).write_bytes(empty)
        return url

    explore(copy, 15 * campaign_scale)


def test_any_interleaving_of_verbs_does_so_on_postgresql_too(new_database, postgres, campaign_scale):
    template = new_database()
    dpfed.Ledger(postgres.url(template)).close()
    explore(lambda: postgres.url(new_database(template)), 4 * campaign_scale)
