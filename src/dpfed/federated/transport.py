"""The socket between a run and whatever carries its messages: bytes go out, bytes come back, or a word why not.

The runner knows sites by their public keys and messages by tokens; it knows no Flower, no ticket and no thread. What
carries messages knows nothing of what is in them. At the site's end it calls one function, ``bytes -> bytes``.

>>> Arrived("17", None, LOST)
Arrived(token='17', content=None, failure='lost')
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

LOST, LATE, REFUSED = "lost", "late", "refused"  # failures of a message; what carries it may have others

Handle = Callable[[bytes], bytes]  # the site's end: a request in, a reply out, and never an exception


@dataclass(frozen=True)
class Sent:
    """One message under way."""

    token: str


@dataclass(frozen=True)
class Arrived:
    """The end of one message: its reply, or in one word why there is none."""

    token: str
    content: bytes | None
    failure: str | None


class Transport(Protocol):
    """Whatever carries requests to sites and their replies back."""

    def sites(self) -> Mapping[str, str]:
        """Return the address of each site that is connected now, by its public key as it was registered."""

    def push(self, address: str, content: bytes, *, deadline: float) -> Sent:
        """Send the content to that address, and return at once; `deadline` is in seconds since 1970.

        An address that is not connected any more is no error: the message arrives as lost.
        """

    def pull(self, tokens: Collection[str]) -> list[Arrived]:
        """Return at once what has arrived, or failed, of these messages; each once."""
