"""Everything dpfed refuses, as one tree.

Each error also derives from the builtin that fits, so ``except ValueError`` keeps working, and its message
says what was asked, what is allowed and what to do::

    PrivacyError
    ├── InvalidArgument (ValueError)         a value that no setting could make right; .argument names it
    │   ├── AdjacencyMismatch                the event is stated for the other neighbouring relation
    │   └── InfeasibleTarget                 no setting reaches the asked guarantee; .remedies says what would
    ├── UnknownEvent (TypeError)             something that is not an event of dpfed.events
    ├── UnsupportedEvent (NotImplementedError)   a sound question this accountant has no proof for
    ├── BudgetExceeded (RuntimeError)        the step does not fit what is left; nothing was spent
    ├── NotPrivate (RuntimeError)            a seeded source where a real one is required
    ├── BreakdownError (RuntimeError)        too few updates came for the rule to bear its faulty ones
    ├── UpdateRejected (ValueError)          an update that is malformed, and that no rule may see
    ├── MessageRefused (ValueError)          a message that is malformed, altered, stale or of somebody else
    ├── SiteRefused (RuntimeError)           sites that do not take part in a run; .codes says why, by site
    └── LedgerError (RuntimeError)           what a ledger of budgets refuses or cannot do
        ├── UnknownAccount (LookupError)     no account of that name
        ├── UnknownRun (LookupError)         no reservation of that run
        ├── AccountUnavailable               the account is frozen, expired or closed
        ├── NotReserved                      a commit of what the reservation does not hold
        ├── LeaseHeld                        another live process has the run
        ├── LeaseLost                        another process took the run over
        ├── LedgerUnavailable                busy, read-only, full or out of reach; nothing was written
        └── LedgerCorrupted                  rows that do not add up; .row names the first
            └── LedgerRolledBack             the ledger lacks rows that a checkpoint has seen

and one warning, `SlowModelWarning`, which `make_private` gives.

>>> from dpfed import events
>>> events.Gaussian(noise_multiplier=-1.0)
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: noise_multiplier must be a positive finite number, got -1.0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class PrivacyError(Exception):
    """The root of every error that dpfed raises on purpose."""


class InvalidArgument(PrivacyError, ValueError):
    """A value that is out of range; ``argument`` is the name of the parameter."""

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(message)
        self.argument = argument


class AdjacencyMismatch(InvalidArgument):
    """An event stated for one neighbouring relation was asked about under the other."""

    def __init__(self, message: str) -> None:
        super().__init__("adjacency", message)


class InfeasibleTarget(InvalidArgument):
    """No setting reaches the target; ``remedies`` lists changes that would, each with its number."""

    def __init__(self, argument: str, message: str, remedies: Iterable[str] = ()) -> None:
        self.remedies = tuple(remedies)
        super().__init__(argument, "; ".join([message, *self.remedies]))


class UnknownEvent(PrivacyError, TypeError):
    """Something that is not one of the events of ``dpfed.events``."""


class UnsupportedEvent(PrivacyError, NotImplementedError):
    """A sound question for which this accountant has no proved bound, so it gives no number."""


class BudgetExceeded(PrivacyError, RuntimeError):
    """The step does not fit into what is left of the budget; nothing was spent and no noise was drawn."""


class NotPrivate(PrivacyError, RuntimeError):
    """A seeded, reproducible source was used where only unpredictable noise is allowed."""


class BreakdownError(PrivacyError, RuntimeError):
    """Fewer updates came than a rule of aggregation needs; it is not executed with fewer."""

    def __init__(self, message: str, arrived: int, needed: int) -> None:
        super().__init__(message)
        self.arrived = arrived
        self.needed = needed

    def __reduce__(self) -> tuple[type[BreakdownError], tuple[str, int, int]]:
        return type(self), (str(self), self.arrived, self.needed)


class UpdateRejected(PrivacyError, ValueError):
    """An update that is not what a model of this shape can be changed by; the message holds no number of it."""


class MessageRefused(PrivacyError, ValueError):
    """A message that is malformed, altered, too large, stale or of somebody else; it is never acted upon."""


class SiteRefused(PrivacyError, RuntimeError):
    """Sites that do not take part in a run; ``codes`` has the fixed word of each, by its name."""

    def __init__(self, message: str, codes: Mapping[str, str]) -> None:
        super().__init__(message)
        self.codes = dict(codes)

    def __reduce__(self) -> tuple[type[SiteRefused], tuple[str, dict[str, str]]]:
        return type(self), (str(self), self.codes)


class LedgerError(PrivacyError, RuntimeError):
    """What a ledger of budgets refuses or cannot do; nothing was spent."""


class UnknownAccount(LedgerError, LookupError):
    """The ledger has no account of that name."""


class UnknownRun(LedgerError, LookupError):
    """The ledger has no reservation of that run."""


class AccountUnavailable(LedgerError):
    """The account is frozen, expired or closed for further charges."""


class NotReserved(LedgerError):
    """A commit asked for more, or for something else, than the reservation still holds."""


class LeaseHeld(LedgerError):
    """Another live process works on this run."""


class LeaseLost(LedgerError):
    """Another process has taken this run over; this one may not charge it any more."""


class LedgerUnavailable(LedgerError):
    """The database is busy, read-only, full or out of reach; nothing was written."""


class LedgerCorrupted(LedgerError):
    """The ledger's rows do not add up; ``row`` is the sequence number of the first bad one, if known."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class LedgerRolledBack(LedgerCorrupted):
    """The ledger does not contain a head that was seen before: an old copy was put in its place."""


class SlowModelWarning(UserWarning):
    """A model is trained one example at a time, which is exact and slow; the message says why, and what to do."""
