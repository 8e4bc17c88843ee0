"""What the complaints of a database mean to a person: what happened, and what to do.

>>> print(explain("database is locked", "sqlite:///ledger.db", wait=30.0))
the ledger at sqlite:///ledger.db was busy for more than 30 s: nothing was written; try again, or give a longer wait \
(database is locked)
"""

from __future__ import annotations

from dpfed.errors import LedgerCorrupted, LedgerError, LedgerUnavailable

# What the triggers say to an entry that does not continue the chain.
MOVED = "the head of the ledger has moved"
_DAMAGED = ("malformed", "not a database", "unsupported file format", "database corruption", "Could not decode")
_WITHOUT_ROOM = ("full", "disk I/O", "No space", "could not extend file")


def explain(complaint: str, shown: str, wait: float) -> LedgerError:
    """Return the error that a driver's complaint about the ledger at the address `shown` stands for."""
    text = " ".join(complaint.split())
    if any(word in text for word in _DAMAGED):
        return explain_damage(text, shown)
    if "append-only" in text or "only grows" in text or MOVED in text:
        return LedgerError(f"the ledger at {shown} refused to be rewritten: {text}")
    return LedgerUnavailable(f"the ledger at {shown} {_describe(text, wait)} ({text})")


def explain_damage(text: object, shown: str) -> LedgerCorrupted:
    """Return the error for a file that is not as SQLite wrote it."""
    return LedgerCorrupted(f"the file of the ledger at {shown} is damaged: {text}")


def explain_moved_files(shown: str) -> LedgerUnavailable:
    """Return the error for files that are not those which this process has open."""
    return LedgerUnavailable(
        f"the file of the ledger at {shown}, its -wal or its -shm was moved, replaced or deleted, or "
        "written over, or was away for a while, after this process had opened it, so nothing more is charged "
        "and no noise may be drawn: stop every run that uses it, put back the newest files, all together, and "
        "start again"
    )


def explain_absence(shown: str) -> LedgerUnavailable:
    """Return the error for an address at which there is no ledger."""
    return LedgerUnavailable(f"there is no ledger at {shown}: check the address, or open an account there first")


def _describe(text: str, wait: float) -> str:
    if "locked" in text or "lock timeout" in text:
        return f"was busy for more than {wait:g} s: nothing was written; try again, or give a longer wait"
    if "readonly" in text or "read-only" in text:
        return "is read-only, nothing was written: make the file and its folder writable for this user"
    if any(word in text for word in _WITHOUT_ROOM):
        return "cannot grow, the disk is full or failing; nothing was written: make room, then go on"
    if "unable to open" in text:
        return "cannot be opened: does its folder exist, and may this user write there?"
    return "is out of reach; a commit that was under way counts as spent if it arrived, and no noise may be drawn"
