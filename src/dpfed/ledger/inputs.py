"""Names and texts that may enter a ledger; everything else is refused before anything is read or written.

Names are plain ASCII: two accounts whose names look alike to a person must not be two accounts.

>>> name(account="hospital-3")
'hospital-3'
>>> name(account="icu'; DROP TABLE entries")
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: account must be 1 to 100 letters, digits or any of ._:/@- and begin with a letter or \
digit, got "icu'; DROP TABLE entries"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from functools import lru_cache
from typing import Any

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.events import Event, dumps, require_event

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,99}")
LONGEST_TEXT = 2_000
MOST_LABELS = 50
# Counts and their sums over millions of entries are 64-bit numbers in both databases.
MOST_EVENTS = 2**40
# An event is read again by processes with less stack than the one that wrote it.
DEEPEST_EVENT = 50
LONGEST_EVENT = 100_000

Charges = dict[str, dict[Event, int]]


def is_name(text: str) -> bool:
    """Return whether the text can name an account or a run."""
    return _NAME.fullmatch(text) is not None


def name(**value: Any) -> str:
    """Return the value if it can name an account or a run."""
    ((argument, given),) = value.items()
    if not isinstance(given, str) or not is_name(given):
        raise InvalidArgument(
            argument,
            f"{argument} must be 1 to 100 letters, digits or any of ._:/@- and begin with a letter or digit, "
            f"got {given!r:.80}",
        )
    return given


def text(**value: Any) -> str:
    """Return the value if it is printable text of bounded length."""
    ((argument, given),) = value.items()
    if not isinstance(given, str) or len(given) > LONGEST_TEXT or not given.isprintable():
        shown = f"{len(given)} characters" if isinstance(given, str) else repr(given)[:80]
        raise InvalidArgument(
            argument, f"{argument} must be at most {LONGEST_TEXT} printable characters on one line, got {shown}"
        )
    return given


def reason(value: Any) -> str:
    """Return the value if it gives a reason."""
    given = text(reason=value)
    if not given.strip():
        raise InvalidArgument("reason", "reason must say why, got nothing")
    return given


def labels(value: Any) -> dict[str, str]:
    """Return the value if it is a small mapping of names to texts."""
    if not isinstance(value, Mapping) or len(value) > MOST_LABELS:
        raise InvalidArgument("labels", f"labels must map at most {MOST_LABELS} names to texts, got {value!r:.80}")
    return {name(labels=key): text(labels=item) for key, item in value.items()}


def expiry(value: Any) -> str | None:
    """Return the value as UTC in ISO form; a plain date lasts until its end."""
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument("expires", f"expires must say its time zone, got {value!r}: add tzinfo=UTC")
        try:
            return value.astimezone(UTC).isoformat()
        except OverflowError:
            raise InvalidArgument(
                "expires", f"expires must be within the years 1 to 9999 in UTC, got {value!r}"
            ) from None
    if isinstance(value, date):
        return datetime.combine(value, time.max, UTC).isoformat()
    raise InvalidArgument("expires", f"expires must be a date or an aware datetime, got {value!r:.80}")


def charges(value: Any) -> Charges:
    """Return the value as {account: {event: count}}; a lone event counts once."""
    if not isinstance(value, Mapping) or not value:
        raise InvalidArgument("charges", f"charges must map accounts to events and their counts, got {value!r:.80}")
    given = dict(value)  # keeps them alive, so that no two have the same id
    known: dict[int, dict[Event, int]] = {}  # a cohort has one and the same event, checked once
    for events in given.values():
        if id(events) not in known:
            known[id(events)] = counts(events)
    return {name(account=account): known[id(events)] for account, events in given.items()}


def counts(value: Any) -> dict[Event, int]:
    """Return the value as {event: count}; a lone event counts once."""
    if isinstance(value, Event):
        return {_event(value): 1}
    if not isinstance(value, Mapping) or not value:
        raise InvalidArgument("charges", f"charges must be an event or {{event: count}}, got {value!r:.80}")
    return {_event(event): _count(count) for event, count in value.items()}


def claim(**value: Any) -> bool:
    """Return the value if it is True or False: a text such as "no" would be true."""
    ((argument, given),) = value.items()
    if not isinstance(given, bool):
        raise InvalidArgument(argument, f"{argument} must be True or False, got {given!r:.80}")
    return given


def _event(value: Any) -> Event:
    event = require_event(value)
    try:
        is_small = _is_small(event)
    except RecursionError:  # what is nested too deep cannot even be hashed
        is_small = False
    if not is_small:
        raise InvalidArgument(
            "charges",
            f"an event must be nested at most {DEEPEST_EVENT} deep and have at most {LONGEST_EVENT} characters: "
            "say Repeated(event, count) for equal parts, or charge the parts one by one",
        )
    return event


@lru_cache(maxsize=4096)
def _is_small(event: Event) -> bool:
    return _depth(event) <= DEEPEST_EVENT and len(dumps(event)) <= LONGEST_EVENT


def _depth(event: Event) -> int:
    """Return how deep the event is nested; one more than the limit if it is deeper."""
    layer, depth = [event], 0
    while layer and depth <= DEEPEST_EVENT:
        layer = [part for whole in layer for part in (getattr(whole, "event", None), *getattr(whole, "events", ()))]
        layer = [part for part in layer if part is not None]
        depth += 1
    return depth


def _count(value: Any) -> int:
    count = checks.count(count=value)
    if count > MOST_EVENTS:
        raise InvalidArgument("count", f"count must be at most {MOST_EVENTS}, got {count}")
    return count
