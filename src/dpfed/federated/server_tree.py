"""The tree of the server's noise while a run is going on, and who took part in it.

It lives in memory only. A program that ended has lost it, and the run goes on with a new tree and a new charge; so does
a round that failed after its noise was drawn. Stored noise could be used again with other updates, and would then be
subtracted from them.

>>> tree = ServerTree(TreeAggregation(1.0, steps=10, max_participations=2, min_separation=3))
>>> tree.open(TreeMechanism(tree.event, sensitivity=1.0))
>>> with tree.step(["ward"]) as mechanism:
...     _ = mechanism.add_noise(0.5)
>>> tree.admits("ward"), tree.admits("clinic")
(False, True)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from dpfed.errors import PrivacyError
from dpfed.events import TreeAggregation
from dpfed.mechanisms.tree import TreeMechanism


class ServerTree:
    """A tree that keeps the event's pattern: a client in at most max_participations steps, min_separation apart.

    Privacy: ``event`` for one client, once for every `open`, which must be charged before. Who is admitted depends on
    who was asked before and on nothing that anybody sent.
    """

    def __init__(self, event: TreeAggregation) -> None:
        self.event = event
        self._mechanism: TreeMechanism | None = None
        self._steps = 0
        self._asked: dict[str, list[int]] = {}

    @property
    def is_open(self) -> bool:
        """Whether there is a tree that is paid for."""
        return self._mechanism is not None

    def open(self, mechanism: TreeMechanism) -> None:
        """Begin a new tree."""
        self._mechanism, self._steps, self._asked = mechanism, 0, {}

    def admits(self, client: str) -> bool:
        """Return whether the client may take part in the next step; in the first of a new tree anybody may."""
        steps = self._asked.get(client) if self.is_open else None
        if not steps:
            return True
        return len(steps) < self.event.max_participations and self._steps - steps[-1] >= self.event.min_separation

    @contextmanager
    def step(self, asked: Collection[str]) -> Iterator[TreeMechanism]:
        """Yield the noise for one step with these clients; if anything fails before the end, the tree is lost."""
        mechanism, refused = self._mechanism, [name for name in asked if not self.admits(name)]
        if mechanism is None or refused:
            message = f"{refused[0]} would take part sooner than declared" if refused else "no tree is paid for"
            raise PrivacyError(f"a step of a tree was asked for, but {message}: ask whom the tree admits")
        self._mechanism = None
        yield mechanism
        for name in asked:
            self._asked.setdefault(name, []).append(self._steps)
        self._steps += 1
        self._mechanism = mechanism
