"""What whole clients are charged for, their records pay too: no reservation may leave either behind.

What hides a client's whole update, under replace-one, is spent of the budget of each of its records and persons as
well. So an account of these, once it is charged, must know every charge of whole clients on its data: carried, or
charged to it by the same run. Who charges, and in which order, changes nothing.

>>> from dpfed.events import Gaussian
>>> holds({("r", Gaussian(2.0)): 3}, {("r", Gaussian(2.0)): 2})
True
>>> holds({("q", Gaussian(2.0)): 3}, {("r", Gaussian(2.0)): 2})  # another run's own, and not the same release
False
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dpfed.checks import REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.events import Event
from dpfed.guarantee import CLIENT
from dpfed.ledger import relations
from dpfed.ledger.journal import Journal
from dpfed.ledger.rules import Terms
from dpfed.ledger.spending import count_by_run, count_charges

Bag = Mapping[Event, int]
ByRun = Mapping[tuple[str | None, Event], int]


def require_carried(journal: Journal, new: str, known: Mapping[str, Terms]) -> None:
    """Refuse to open an account of records or persons that would not know what whole clients were charged for."""
    for other in relations.find_uncarried([new], known)[new]:
        if count_charges(journal.link, other, with_reserved=True):
            raise _lacks(new, other)


def require_told(journal: Journal, run: str, due: Mapping[str, Bag]) -> None:
    """Refuse what a run is `due` to charge, after which an account of records lacks what whole clients paid for.

    Privacy: not only on the accounts that are charged, but on all that stand for the same data and were ever charged.
    The same event costs a record under replace-one what it costs its client, and less under add/remove.
    """
    known = journal.terms
    if not any(each.unit == CLIENT for each in known.values()):
        return  # as in most ledgers
    including = relations.find_including({known[name].source for name in due}, known)
    concerned = [name for name in including if known[name].unit != CLIENT]

    counted: dict[str, ByRun] = {}

    def count(name: str) -> ByRun:
        if name not in counted:
            bag = count_by_run(journal.link, name, with_reserved=True)
            for event, times in due.get(name, {}).items():
                bag[run, event] = bag.get((run, event), 0) + times
            counted[name] = bag
        return counted[name]

    for account, others in relations.find_uncarried(concerned, known).items():
        for other in others:
            if count(account) and count(other) and not _is_told(account, other, known, count):
                if account in due:
                    raise _lacks(account, other)
                message = f"account {account} has charges for one {known[account].unit} from the same data as {other}"
                remedy = f"reserve the same charges on both, or open one with overlaps=[{other!r}] and freeze {account}"
                raise InvalidArgument("accounts", f"{message}, and would not be told of these: {remedy}")


def holds(bag: ByRun, wanted: ByRun) -> bool:
    """Return whether each run charged all that is wanted to this bag as well; what no run charged is never known."""
    return all(run is not None and bag.get((run, event), 0) >= times for (run, event), times in wanted.items())


def _is_told(account: str, other: str, known: Mapping[str, Terms], count: Callable[[str], ByRun]) -> bool:
    """Return whether one that sees all charges on the account's source was charged what the other one was."""
    tops = relations.find_tops(account, known) or (account,)
    return known[account].adjacency == REPLACE_ONE and any(holds(count(top), count(other)) for top in tops)


def _lacks(account: str, other: str) -> InvalidArgument:
    message = f"account {other} has charges for whole clients from the same data, which {account} would lack"
    remedy = f"open one for {REPLACE_ONE} with overlaps=[{other!r}], which carries them"
    return InvalidArgument("overlaps", f"{message}: {remedy}")
