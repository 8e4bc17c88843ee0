"""The shuffler of style `local`: it takes reports with names, and hands on their values in random order without any.

It is somebody whom clients trust not to tell who sent what; in one process it stands between runner and round. Nothing
of the order, the names or the ledger's heads of single reports goes past it, and with too few of them nothing at all.

>>> from dpfed.randomness import SeededSource
>>> Shuffler(users=3, source=SeededSource(1)).hand_on([np.zeros(1), np.ones(1)])
[]
>>> mixed = Shuffler(users=3, source=SeededSource(1)).hand_on([np.full(1, i) for i in range(3)])
>>> sorted(float(report[0]) for report in mixed)
[0.0, 1.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpfed.arrays import Floats
from dpfed.randomness import RandomSource


@dataclass(frozen=True)
class Shuffler:
    """A uniformly random order for the reports of one round.

    Privacy: one report of each client, each ε₀-DP for its client, and at least `users` of them honest: together they
    are ``Shuffled(event, users)`` under replace_one. How many there are depends on nobody's data: a client whose
    training fails sends noise around zero.
    """

    users: int
    source: RandomSource

    def hand_on(self, reports: Sequence[Floats]) -> list[Floats]:
        """Return copies of the reports in random order; none if there are fewer than the declared users."""
        if len(reports) < self.users:
            return []
        order = list(range(len(reports)))
        for last in range(len(order) - 1, 0, -1):  # Fisher and Yates, each place from an exact uniform draw
            other = int(self.source.integers(last + 1))
            order[last], order[other] = order[other], order[last]
        return [np.array(reports[place], dtype=np.float64) for place in order]
