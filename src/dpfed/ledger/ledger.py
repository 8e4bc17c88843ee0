"""The ledger: a privacy budget per data owner that cannot be overspent, lost or rewritten.

>>> import tempfile
>>> from dpfed.events import Gaussian
>>> folder = tempfile.TemporaryDirectory()
>>> ledger = Ledger(f"sqlite:///{folder.name}/ledger.db")
>>> _ = ledger.open("icu", epsilon=8.0, delta=1e-5, owner="dpo", purpose="study 12")
>>> step = Gaussian(noise_multiplier=4.0)
>>> reservation = ledger.reserve({"icu": {step: 10}}, run="study-12")
>>> reservation.commit({"icu": step})  # durable when it returns; only now may noise be drawn
>>> reservation.left("icu", step)
9
>>> reservation.release()
>>> ledger.balance("icu").remaining > 0
True
>>> ledger.verify().rows
5
>>> ledger.close(); folder.cleanup()
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from dpfed import checks, events
from dpfed.checks import ADD_REMOVE
from dpfed.errors import InvalidArgument, UnknownRun
from dpfed.events import Event
from dpfed.guarantee import Guarantee
from dpfed.ledger import admission, inputs, lease, relations, restoring, verify, views
from dpfed.ledger.account import LedgerAccount
from dpfed.ledger.clock import now
from dpfed.ledger.holding import read_first_lease, read_items, require_free, require_plan, take_lease
from dpfed.ledger.items import release_items, reserve_items
from dpfed.ledger.journal import Store, last_lease, last_of_accounts, rows, state_of
from dpfed.ledger.opening import make_terms, open_account, settle_source
from dpfed.ledger.refusals import judge_all, raise_refusals, write_refusals
from dpfed.ledger.reservation import Reservation
from dpfed.ledger.rows import Draft, Head, compact
from dpfed.ledger.rules import AccountState, Terms
from dpfed.ledger.seals import require_sound as require_sealed
from dpfed.ledger.spending import spend
from dpfed.ledger.store import backups, triggers
from dpfed.ledger.store.database import Database
from dpfed.ledger.verify import Verified
from dpfed.ledger.views import Balance, OpenReservation, Statement

if TYPE_CHECKING:
    from typing import Self

    from sqlalchemy.engine import Connection


class Ledger:
    """Accounts of privacy budget in a database, with every charge in one hash chain.

    Privacy: everything ever committed to an account is together (ε, δ)-differentially private at its cap for
    its unit and adjacency, however the runs were chosen, as long as noise is drawn only after the commit of
    the event that describes it. See `dpfed.ledger.rules` for the rule of admission.

    `url` is a database's address, or the path of a SQLite file. Unless `create` is false, a ledger is made where
    there is none.
    """

    def __init__(self, url: str | Path, *, wait: float = 30.0, create: bool = True) -> None:
        self._store = Store(Database(url, wait))
        try:
            self._store.open(create=create)
        except BaseException:
            self._store.close()  # leaves no log beside a file that is no ledger
            raise

    def open(
        self,
        account: str,
        *,
        epsilon: float,
        delta: float,
        unit: str = "record",
        adjacency: str = ADD_REMOVE,
        owner: str = "",
        purpose: str = "",
        source: str | bytes | Path | Any = None,
        parent: str | None = None,
        overlaps: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        orders: Iterable[float] | None = None,
        expires: date | datetime | None = None,
        opening: Mapping[Event, int] | None = None,
    ) -> LedgerAccount:
        """Open an account; `opening` is what was released from its data before the ledger was kept."""
        terms = make_terms(
            account,
            epsilon,
            delta,
            unit,
            adjacency,
            orders=orders,
            owner=owner,
            purpose=purpose,
            parent=parent,
            overlaps=overlaps,
            labels={} if labels is None else labels,
            expires=expires,
        )
        earlier = {} if opening is None or opening == {} else inputs.counts(opening)
        with self._store.writing() as journal:
            restoring.require_answered(journal.states(journal.terms))
            open_account(journal, settle_source(journal, terms, source), earlier, journal.terms)
        return self.account(account)

    def open_all(self, promises: Mapping[str, Guarantee], *, purpose: str = "") -> None:
        """Open an account for each promise, on data of its own: all of them or none, by one durable write."""
        wanted = [
            make_terms(name, promise.epsilon, promise.delta, promise.unit, promise.adjacency, purpose=purpose)
            for name, promise in promises.items()
        ]
        with self._store.writing() as journal:
            restoring.require_answered(journal.states(journal.terms))
            known = dict(journal.terms)
            for terms in wanted:
                settled = settle_source(journal, terms, None)
                open_account(journal, settled, {}, known)
                known[terms.name] = settled

    def terms(self, accounts: Iterable[str]) -> dict[str, Terms]:
        """Return the terms of each of the accounts, read in one transaction."""
        with self._store.reading() as link:
            known = self._store.terms(link)
        return {name: relations.require_known(inputs.name(account=name), known) for name in accounts}

    def beside(self, accounts: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return accounts on the same data for other units or adjacencies that a charge to each one does not reach.

        Of each kind it is the one that sees all charges on the data.
        """
        names = [inputs.name(account=name) for name in accounts]
        with self._store.reading() as link:
            return relations.find_unreached(names, self._store.terms(link))

    def account(self, account: str) -> LedgerAccount:
        """Return the account to which a PrivacyManager or a PrivacyAccountant can be charged."""
        with self._store.reading() as link:
            return LedgerAccount(self, self._terms(link, account))

    def reserve(self, charges: Mapping[str, Any], *, run: str, fixed_plan: bool = True) -> Reservation:
        """Reserve all charges on all accounts, or raise BudgetExceeded and reserve nothing.

        `fixed_plan` says that the plan will not grow: on an account without earlier charges it may then be
        admitted by its exact ε, which closes the account for anything further.

        Privacy: whole clients and their records or persons are not charged apart on the same data, where the latter
        would not know it (`wholes.require_told`).
        """
        wanted, run, fixed_plan = inputs.charges(charges), inputs.name(run=run), inputs.claim(fixed_plan=fixed_plan)
        with self._store.writing() as journal:
            if last_lease(journal.link, run) is not None:
                raise InvalidArgument("run", f"run {run!r} is in the ledger already: resume it, or choose another name")
            verdicts = judge_all(journal, run, wanted, fixed_plan=fixed_plan)
            refused = write_refusals(journal, run, verdicts)
            if not refused:
                token = take_lease(journal, run, lease.describe_start())
                made = reserve_items(journal, run, wanted, verdicts)
        raise_refusals(refused)
        return Reservation(self._store, run, token, made)

    def resume(self, run: str, *, plan: Mapping[str, Any] | None = None) -> Reservation:
        """Resume the reservation of a run whose process ended; refuse while another one lives.

        With a `plan` (as for `reserve`) a run that reserved another one is refused too, and left to its holder.
        """
        run, wanted = inputs.name(run=run), None if plan is None else inputs.charges(plan)
        with self._store.writing() as journal:
            items = read_items(journal.link, run)
            require_free(journal, run, items)
            require_plan(run, items, wanted)
            token = take_lease(journal, run)
        return Reservation(self._store, run, token, items)

    def has_run(self, run: str) -> bool:
        """Return whether anything was ever reserved for the run."""
        with self._store.reading() as link:
            return last_lease(link, inputs.name(run=run)) is not None

    def seal_key(self, run: str) -> bytes:
        """Return the key that seals the run's files: the digest of the entry by which it was first reserved.

        No head shows it, and no file of the run, so whoever can write those alone cannot forge their seal.
        """
        run = inputs.name(run=run)
        with self._store.reading() as link:
            first = read_first_lease(link, run)
        if first is None:
            raise UnknownRun(f"the ledger has no run {run!r}: use the ledger that it began in, or check the name")
        return first.hash.encode()

    def release(self, run: str, *, reason: str) -> None:
        """Return what a dead run never committed; its late processes can charge nothing any more."""
        run, reason = inputs.name(run=run), inputs.reason(reason)
        with self._store.writing() as journal:
            items = read_items(journal.link, run)
            require_free(journal, run, items)
            take_lease(journal, run)
            release_items(journal, items, reason, run)

    def seals_files(self, run: str) -> bool:
        """Return whether the run was reserved by a version whose runs have digests and seals in every file."""
        with self._store.reading() as link:
            first = read_first_lease(link, inputs.name(run=run))
        return first is not None and lease.is_sealed(first.details())

    def record(self, charges: Mapping[str, Any], *, reason: str, run: str | None = None) -> None:
        """Charge what has happened already, marked after the fact; written even past the cap."""
        wanted, body = inputs.charges(charges), {"after_the_fact": True, "reason": inputs.reason(reason)}
        run = None if run is None else inputs.name(run=run)
        with self._store.writing() as journal:
            for origin, counts in wanted.items():
                for account in relations.find_reached(origin, journal.terms):
                    spend(journal, "recorded", journal.terms[account], origin, counts, run, body)

    def freeze(self, account: str, *, reason: str) -> None:
        """Stop every charge on the account until it is unfrozen."""
        self._change("frozen", account, {"reason": inputs.reason(reason)})

    def unfreeze(self, account: str, *, reason: str, head: str | None = None, steward: str | None = None) -> None:
        """Let the account be charged again.

        After a backup was restored, this needs the name of a steward who answers for what may be missing; the newest
        head that anybody has kept, if it is given, must be the backup's own.
        """
        self._change("unfrozen", account, {"reason": inputs.reason(reason)}, head=head, steward=steward)

    def top_up(self, account: str, *, epsilon: float, reason: str) -> None:
        """Raise the account's cap by ε; its statement is then for the new cap."""
        added = checks.positive(epsilon=epsilon)
        self._change("topped_up", account, {"epsilon": added, "reason": inputs.reason(reason)})

    def accept_clock(self, *, reason: str) -> None:
        """Write that this machine's clock is right although it is behind the last entry, whose clock was wrong.

        Entries go on saying the later time until the clock has reached it, so nothing that expired comes back.
        """
        why = inputs.reason(reason)
        with self._store.writing(accepts_clock=True) as journal:
            clock = now()
            if not journal.is_behind(clock):
                raise InvalidArgument("clock", "this machine's clock is not behind the last entry: nothing to accept")
            journal.append(Draft("clock", body=compact({"clock": clock, "reason": why})))

    def balance(self, account: str) -> Balance:
        """Return the balance of the account."""
        with self._store.reading() as link:
            return views.balances(link, [self._terms(link, account)])[0]

    def accounts(self) -> tuple[Balance, ...]:
        """Return the balance of every account, in the order they were opened."""
        with self._store.reading() as link:
            return views.balances(link, list(self._store.terms(link).values()))

    def statement(self, account: str) -> Statement:
        """Return the statement of the account: every entry, as a bank would send it."""
        with self._store.reading() as link:
            return views.statement(link, self._terms(link, account), self._store.terms(link), self._store.head(link))

    def reservations(self, *, open_only: bool = True) -> tuple[OpenReservation, ...]:
        """Return the runs that still hold something reserved; all runs, if `open_only` is false."""
        with self._store.reading() as link:
            return tuple(each for each in views.reservations(link) if each.left or not open_only)

    def forecast(self, account: str, event: Event) -> int:
        """Return how many more such events would be admitted now, by the filter of every account they reach."""
        event = events.require_event(event)
        with self._store.reading() as link:
            known = self._store.terms(link)
            reached = [known[name] for name in relations.find_reached(inputs.name(account=account), known)]
            latest = list(last_of_accounts(link, [terms.opened for terms in reached]))
            states = {str(row.account): state_of(row) for row in latest}
            return min(admission.affordable(terms, states[terms.name], event) for terms in reached)

    @property
    def address(self) -> str:
        """The address of the ledger, without its password."""
        return self._store.database.shown

    @property
    def file(self) -> Path | None:
        """The file of a ledger in SQLite; None for PostgreSQL."""
        return self._store.database.file if self._store.database.is_sqlite else None

    def head(self) -> Head:
        """Return number and digest of the last entry: keep a copy where this ledger's administrator cannot write."""
        with self._store.reading() as link:
            return self._store.head(link)

    def require(self, head: Head | str) -> None:
        """Raise LedgerRolledBack unless the ledger contains the head: it was replaced by an older copy."""
        seen = head if isinstance(head, Head) else Head.parse(head)
        with self._store.reading() as link:
            self._store.require(link, seen)

    def verify(self) -> Verified:
        """Recompute the chain and every balance and return the counts, or raise LedgerCorrupted."""
        with self._store.reading() as link:
            verify.require_sound_file(link)
            found = verify.replay(
                rows(link), self._store.head(link), lambda terms, seal: require_sealed(link, terms, seal)
            )
            triggers.require_sound(link)
            return found

    def export(self, stream: TextIO) -> None:
        """Write every entry as a line of JSON; fingerprints of data stay here."""
        with self._store.reading() as link:
            for row in rows(link):
                stream.write(compact(row._asdict()) + "\n")

    def backup(self, path: str | Path) -> Verified:
        """Copy a SQLite ledger to a new file while others may go on writing, and verify the copy.

        The copy is refused as a ledger until it is restored. Keep its head, which is returned, somewhere else.
        """
        self._store.database.require_sqlite("pg_dump")
        with backups.drafting(Path(path)) as draft:
            with self._store.reading() as link:
                backups.copy_ledger(link, draft)
            with Ledger(draft, create=False) as copy:
                found = copy.verify()
            backups.mark_as_backup(draft)
        return found

    @classmethod
    def restore(cls, backup: str | Path, url: str | Path) -> Self:
        """Make a ledger of a backup where there is none, with every account frozen; what was reserved is committed."""
        database = Database(url, wait=30.0)
        database.require_sqlite("pg_restore")
        with backups.drafting(database.file) as draft:
            backups.copy_backup(Path(backup), draft)
            with cls(draft, create=False) as ledger:
                ledger._freeze_all(ledger.verify().head)
                ledger.verify()
        return cls(url, create=False)

    def _freeze_all(self, head: Head) -> None:
        with self._store.writing(accepts_clock=True) as journal:
            restoring.freeze_all(journal, head)

    def close(self) -> None:
        """Close the database."""
        self._store.close()

    def __contains__(self, account: object) -> bool:
        with self._store.reading() as link:
            return account in self._store.terms(link)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Ledger at {self.address}>"

    def _terms(self, link: Connection, account: str) -> Terms:
        return relations.require_known(inputs.name(account=account), self._store.terms(link))

    def _change(self, kind: str, account: str, body: dict[str, Any], **answer: str | None) -> None:
        account = inputs.name(account=account)
        with self._store.writing() as journal:
            before = journal.states([account])[account]
            if kind == "unfrozen" and before.restored:
                body |= restoring.make_answer(journal.link, account, **answer)
            after = before.after(kind, body=body)
            if kind == "topped_up":
                _require_larger(before, after)
            elif after == before:
                raise InvalidArgument("account", f"{account} is {kind} already: nothing was written")
            journal.move(after, Draft(kind, account, state=after.dumps(), body=compact(body)))


def _require_larger(before: AccountState, after: AccountState) -> None:
    if not before.cap < after.cap < math.inf:
        raise InvalidArgument(
            "epsilon",
            f"a top-up must make the cap of ε = {before.cap:g} larger and keep it finite: give another epsilon",
        )
