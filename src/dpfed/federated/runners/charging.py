"""Who reserves, commits and counts the charges of a run: apart from whoever trains.

In one process all accounts are in one ledger, and one transaction charges a whole cohort. On a network each site will
charge its own ledger, and the server count how often it asked.

>>> from dpfed.plan.plan import LocalPlan
>>> local = LocalPlan(size=8, batch_size=4, steps=3, clip_norm=1.0, noise_multiplier=9.0)
>>> with Ledger("sqlite:///ledger.db") as ledger:
...     _ = ledger.open("ward-2026", epsilon=4.0, delta=1e-5)
...     charging = SharedLedger(ledger, {"ward": "ward-2026"})
...     charging.reserve(Plan("study", rounds=2, local={"ward": local}))
...     charging.commit_local(["ward"], number=1)
...     charging.charged().local, charging.left("ward", number=2)
({'ward': 1}, 1)
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from typing import NamedTuple

from dpfed.checks import REPLACE_ONE
from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InvalidArgument
from dpfed.events import Event
from dpfed.federated.messages import Charged
from dpfed.ledger.ledger import Ledger
from dpfed.ledger.reservation import Reservation
from dpfed.plan.by_round import Charges, add_up, choose_payment, cover_local, cover_release
from dpfed.plan.measuring import find_client_noise, find_server_noise, list_client_charges, list_server_charges
from dpfed.plan.plan import Plan
from dpfed.plan.ranges import list_range_charges
from dpfed.runs.directory import NO_HEAD


class _Account(NamedTuple):
    name: str
    account: str


class SharedLedger:
    """The charges of clients whose accounts are in one ledger; `study` is the account that pays for server noise.

    Without a ledger only a plan that protects nobody can be reserved.

    Privacy: what is counted is in the ledger, durably, and never less than was drawn: a commit returns before anybody
    draws noise, and after a crash counts are read from the ledger.
    """

    def __init__(self, ledger: Ledger | None, accounts: Mapping[str, str], study: str | None = None) -> None:
        self.ledger = ledger
        self.study = study
        self._accounts = dict(accounts)
        self._beside: dict[str, tuple[str, ...]] = {}
        self._reservation: Reservation | None = None
        self._local: dict[str, dict[Event, int]] = {}
        self._left: dict[str, dict[Event, int]] = {}
        self._releases: dict[Event, int] = {}
        self._left_releases: dict[Event, int] = {}
        self._covers: tuple[int, dict[int, tuple[Event, ...]]] = 0, {}
        self._begun = 0
        self._measured: dict[str, int] = {}
        self._left_measured: dict[str, int] = {}
        self._measured_releases = self._left_measured_releases = 0
        self._ranges = 0

    @property
    def head(self) -> str:
        """The ledger's head."""
        return NO_HEAD if self.ledger is None else str(self.ledger.head())

    def charges(self, plan: Plan) -> dict[str, dict[Event, int]]:
        """Return what the whole plan takes from each account; refuse clients that are not the plan's."""
        return plan.charges([_Account(*each) for each in self._accounts.items()], self.study)

    def reserve(self, plan: Plan, heads: Iterable[str] = ()) -> None:
        """Reserve the plan in every account, or find it reserved after a crash.

        A ledger that lacks one of the `heads` was rolled back, and is refused.
        """
        charges: Mapping[str, Charges] = self.charges(plan)
        known = list(heads)
        self._plan, self._covers = plan, (0, {})
        if self.ledger is not None and charges:
            self._require_fitting(self.ledger, charges)
            charges = self._add_beside(self.ledger, charges)
            for head in known:
                self.ledger.require(head)
            self._reservation = self._reserve_or_resume(self.ledger, charges, is_new=not known)
            self._count(self._reservation)
        elif charges:
            raise InvalidArgument("ledger", f"style {plan.style!r} charges accounts: give the runner a ledger")

    def require_fitting(self, plan: Plan) -> None:
        """Refuse accounts whose promise is about something else than what the plan protects, and reserve nothing."""
        self._plan = plan
        if self.ledger is not None:
            self._require_fitting(self.ledger, self._accounts.values())

    def key(self, plan: Plan, heads: Iterable[str] = ()) -> bytes:
        """Return the digest of the entry by which the run was reserved: no file and no head shows it.

        A ledger that lacks one of the `heads` was rolled back, and is refused; so is one that has no such run.
        """
        if self.ledger is None or not plan.units:
            return b""
        for head in heads:
            self.ledger.require(head)
        return self.ledger.seal_key(plan.name)

    def seals_files(self, plan: Plan) -> bool:
        """Return whether the ledger says that the files of the run have digests and seals."""
        return self.ledger is not None and bool(plan.units) and self.ledger.seals_files(plan.name)

    def times(self, client: str) -> int:
        """Return how often that client was charged its local event: the number of its last charge."""
        return sum(self._local.get(client, {}).values())

    def left(self, client: str, number: int) -> int:
        """Return how many charges of that client are left with which it may pay for the round.

        One, where clients are not charged.
        """
        if not self._plan.charges_clients:
            return 1
        left = self._left[client]
        if self._plan.noise_schedule is None:  # every round has the one event that is reserved
            return sum(left.values())
        return sum(left.get(event, 0) for event in self._cover(client, number))

    def commit_local(self, clients: Collection[str], number: int) -> None:
        """Commit the event of the round for each of these clients, in one transaction, before the first draws noise.

        Where the round's own event is not reserved, or not any more, it is the reserved one of next less noise. Where
        the cohort is secret an account that cannot be charged stops the run whether or not its client was drawn.
        """
        if self._reservation is None or not self._plan.charges_clients:
            return
        self._require_ranges()
        chosen = {name: choose_payment(self._cover(name, number), self._left[name]) for name in clients}
        once = {id(event): {event: 1} for event in {id(event): event for event in chosen.values()}.values()}
        due = self._sum_charges({name: once[id(event)] for name, event in chosen.items()})
        if self._plan.is_secret:
            self._reservation.commit_unseen(due)
            self._begun += 1
        elif due:
            self._reservation.commit(due)
        for name, event in chosen.items():
            _move(event, 1, self._left[name], self._local[name])

    def commit_release(self, times: int, number: int) -> str:
        """Commit that many client events of the round to the study's account, and return the ledger's head.

        The round is marked, even where nothing is due; one whose cohort is secret always commits, and needs no mark.
        """
        if self._reservation is not None and self.study is not None:
            event = choose_payment(cover_release(self._plan, number), self._left_releases)
            due = {self.study: {event: times}} if times else {}
            if self._plan.is_secret:
                self._reservation.commit(due)
            else:
                self._reservation.mark(self.study, due)
                self._begun += 1
            _move(event, times, self._left_releases, self._releases)
        return self.head

    def commit_ranges(self) -> int:
        """Commit the release of the plan's ranges to every client's account, and return which one it is.

        One transaction, before anybody draws noise. A release that a crash lost is made again while charges are left.
        """
        for event, most in list_range_charges(self._plan).items():
            if self._reservation is None or self._ranges >= most:
                message = "the ranges of this run were charged, and a crash lost them"
                remedy = "begin another run; one with spare_rounds releases them again"
                raise BudgetExceeded(f"{message}: {remedy}")
            self._reservation.commit(self._sum_charges({name: {event: 1} for name in self._accounts}))
            self._ranges += 1
        return self._ranges

    def left_measured(self, client: str) -> int:
        """Return how often the client may still be measured; any number of times where it is not charged for it."""
        return self._left_measured[client] if self._plan.charges_clients else 1

    def commit_measured(self, clients: Collection[str]) -> None:
        """Commit the event of one measurement for each of these clients, in one transaction, before any noise."""
        noise = find_client_noise(self._plan)
        if self._reservation is None or noise is None or not clients:
            return
        self._reservation.commit(self._sum_charges({name: {noise.event: 1} for name in clients}))
        for name in clients:
            self._left_measured[name] -= 1
            self._measured[name] += 1

    def commit_measured_release(self) -> str:
        """Commit the event of one measurement to the study's account, un-sampled, and return the ledger's head."""
        noise = find_server_noise(self._plan)
        if self._reservation is not None and self.study is not None and noise is not None:
            self._reservation.commit({self.study: {noise.event: 1}})
            self._left_measured_releases -= 1
            self._measured_releases += 1
        return self.head

    def charged(self) -> Charged:
        """Return what is committed so far."""
        by_client = {name: dict(charges) for name, charges in self._local.items()}
        return Charged(
            by_client,
            dict(self._releases),
            dict(self._left_releases),
            self._begun,
            dict(self._measured),
            self._measured_releases,
            self._left_measured_releases,
            self._ranges,
        )

    def release(self, run: str) -> None:
        """Return to the accounts what was never committed."""
        if self.ledger is not None and any(open_.run == run for open_ in self.ledger.reservations()):
            self.ledger.release(run, reason="the run has ended")

    def _count(self, reservation: Reservation) -> None:
        plan, left = self._plan, reservation.left_of_each()
        if plan.charges_clients:
            left_of_each = {name: left[account] for name, account in self._accounts.items()}
            committed = {name: _subtract(plan.local_charges(name), rest) for name, rest in left_of_each.items()}
            own, ranges = list_client_charges(plan), list_range_charges(plan)
            left_of_each, _ = split_all(left_of_each, ranges)
            committed, released = split_all(committed, ranges)
            self._ranges = max(released.values(), default=0)
            self._left, self._left_measured = split_all(left_of_each, own)
            self._local, self._measured = split_all(committed, own)
        if self.study is not None:
            own = list_server_charges(plan)
            self._releases, self._measured_releases = _split(reservation.committed_of_each(self.study), own)
            self._left_releases, self._left_measured_releases = _split(left[self.study], own)
        marks = reservation.marks()
        self._begun = max([marks, *map(self.times, self._local)]) if plan.is_secret else marks

    def _reserve_or_resume(
        self, ledger: Ledger, charges: Mapping[str, Mapping[Event, int]], *, is_new: bool
    ) -> Reservation:
        run = self._plan.name
        if not ledger.has_run(run):
            return ledger.reserve(charges, run=run, fixed_plan=True)
        reservation = ledger.resume(run, plan=charges)
        if is_new and not any(map(reservation.left, charges)):
            where = "give the plan another name, or go on in its own directory"
            raise InvalidArgument("plan", f"run {run!r} is spent in this ledger: {where}")
        return reservation

    def _sum_charges(self, charges: Mapping[str, Charges]) -> dict[str, Charges]:
        """Return what these charges of clients take from every account that pays for them."""
        found: dict[str, Charges] = {}
        for name, own in charges.items():
            for account in (self._accounts[name], *self._beside.get(name, ())):
                # One and the same for many accounts, so that the ledger checks it once.
                found[account] = add_up([*found[account].items(), *own.items()]) if account in found else own
        return found

    def _cover(self, client: str, number: int) -> tuple[Event, ...]:
        """Return the events with which a client may pay for the round, found once for all that have the same plan."""
        if self._covers[0] != number:
            self._covers = number, {}
        known, part = self._covers[1], id(self._plan.local[client])
        if part not in known:
            known[part] = cover_local(self._plan, client, number)
        return known[part]

    def _require_ranges(self) -> None:
        """Refuse to train before the ranges of the plan are released: it would be another run than the plan says."""
        if self._plan.ranges is not None and not self._ranges:
            message = "the plan releases ranges before its first round, and they were not released"
            raise InvalidArgument("plan", f"{message}: begin it by `dpfed run`, or take ranges out of the plan")

    def _add_beside(self, ledger: Ledger, charges: Mapping[str, Charges]) -> Mapping[str, Charges]:
        """Return the charges with those of other accounts on the same data, for other units, in style `local`.

        Privacy: what protects the whole client protects each of its records and persons as well, if one is replaced,
        and costs them as much. So their accounts pay too, and a change of style spends no budget twice.
        """
        if not self._plan.noises_updates:
            return charges
        beside = ledger.beside(self._accounts.values())
        self._beside = {name: beside[account] for name, account in self._accounts.items()}
        others = {account for each in self._beside.values() for account in each}
        if shared := sorted(others.intersection(self._accounts.values())):
            message = f"account {shared[0]} of one client is for the same data as that of another"
            raise InvalidArgument("clients", f"{message}: give each client data and an account of its own")
        for account, terms in ledger.terms(others).items():
            _require_replacement(account, terms.adjacency, "is for the same data as the client's, so it pays as well")
        return self._sum_charges({name: self._plan.local_charges(name) for name in self._accounts})

    def _require_fitting(self, ledger: Ledger, accounts: Iterable[str]) -> None:
        """Refuse accounts whose promise is about something else than what the plan protects."""
        if self._plan.noises_updates:  # for the client, and so for one record or person of it
            for account, terms in ledger.terms(accounts).items():
                _require_replacement(account, terms.adjacency, "pays for a client's whole update")
            return
        unit = self._plan.local_unit
        relations = {"client": self._plan.client_adjacency, unit: self._plan.record_adjacency}
        for account, terms in ledger.terms(accounts).items():
            wanted = "client" if account == self.study else unit
            if terms.unit != wanted:
                what = "adds noise for one client" if wanted == "client" else f"clips each {unit}"
                message = f"style {self._plan.style} {what}, and account {account} is for one {terms.unit}"
                raise InvalidArgument("clients", f"{message}: give it an account whose unit is {wanted}")
            if terms.adjacency != relations[wanted]:
                message = f"the plan is for {relations[wanted]}, and account {account} for {terms.adjacency}"
                raise AdjacencyMismatch(f"{message}: give it an account that was opened for {relations[wanted]}")


def _move(event: Event, times: int, left: dict[Event, int], committed: dict[Event, int]) -> None:
    left[event] -= times
    committed[event] = committed.get(event, 0) + times


def _split(charges: Charges, measured: Container[Event]) -> tuple[dict[Event, int], int]:
    """Return the charges of rounds, and how many there are of measurements."""
    rounds = {event: times for event, times in charges.items() if event not in measured}
    return rounds, sum(times for event, times in charges.items() if event in measured)


def split_all(
    charges: Mapping[str, Charges], measured: Container[Event]
) -> tuple[dict[str, dict[Event, int]], dict[str, int]]:
    """Return the charges of rounds of each client, and how many it has of measurements."""
    found = {name: _split(own, measured) for name, own in charges.items()}
    return {name: each[0] for name, each in found.items()}, {name: each[1] for name, each in found.items()}


def _subtract(charges: Charges, left: Charges) -> dict[Event, int]:
    return {event: times - left[event] for event, times in charges.items()}


def _require_replacement(account: str, adjacency: str, why: str) -> None:
    if adjacency != REPLACE_ONE:
        message = f"account {account} {why}, and is for {adjacency}; style local promises replace_one alone"
        raise AdjacencyMismatch(f"{message}: give the client an account opened with --adjacency {REPLACE_ONE}")
