"""The time of entries: by this machine's clock, but never earlier than the entry before.

Expiry is decided by that time, so a clock that is set back cannot bring an expired account to life. A clock that is
more than five minutes behind the last entry is wrong, or the last entry's was: a person must decide which.

>>> later("2026-01-01T00:00:00.000000Z")
'2026-01-01T00:00:00.000001Z'
>>> is_behind("2026-01-01T00:00:00.000000Z", "2026-01-01T00:05:00.000001Z")
True
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

# How far a clock may be behind the last entry: two machines of one ledger differ by less.
PATIENCE = timedelta(minutes=5)
_LAST = "9999-12-31T23:59:59.999999Z"


def now() -> str:
    """Return the time of this machine's clock in the format of entries."""
    microseconds = str(time.time_ns() // 1_000)
    return f"{_second(microseconds[:-6])}.{microseconds[-6:]}Z"


def later(at: str, microseconds: int = 1) -> str:
    """Return the time that many microseconds after the given one; no two transactions have the same time."""
    try:
        moved = datetime.fromisoformat(at) + timedelta(microseconds=microseconds)
    except OverflowError:
        return _LAST
    return f"{moved.astimezone(UTC).isoformat(timespec='microseconds')[:26]}Z"


def is_behind(clock: str, last: str) -> bool:
    """Return whether the clock is too far behind the last entry to be right."""
    return datetime.fromisoformat(last) - datetime.fromisoformat(clock) > PATIENCE


@lru_cache(maxsize=1)
def _second(since_1970: str) -> str:
    # Worth keeping: on caches that a disk write has emptied, this takes a tenth of a commit.
    return datetime.fromtimestamp(int(since_1970), UTC).isoformat()[:19]
