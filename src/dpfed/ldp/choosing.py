"""Which frequency oracle to take for an ε and a domain, and why.

>>> choose(1.0, 4).reason
'randomized response among 4 values: below 3e^ε + 2 = 10.2 no other oracle has a smaller variance'
>>> type(choose(1.0, 300).mechanism).__name__, type(choose(1.0, 100_000).mechanism).__name__
('OptimizedUnary', 'LocalHashing')
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpfed import checks
from dpfed.ldp.hadamard import HadamardResponse
from dpfed.ldp.hashing import LocalHashing
from dpfed.ldp.kary import KaryResponse
from dpfed.ldp.oracle import FrequencyOracle
from dpfed.ldp.unary import OptimizedUnary

MOST_BITS = 1024  # of a report, up to which sending all of them is cheaper than hashing
MOST_HASHED = 1_000_000  # values, beyond which comparing every report with each takes too long


@dataclass(frozen=True)
class Choice:
    """A frequency oracle, and why this one was chosen."""

    mechanism: FrequencyOracle
    reason: str


def choose(epsilon: float, domain: int, *, absent: bool = False) -> Choice:
    """Return the oracle with the least error for values that are rare, and among equals the cheapest to run.

    Randomized response below 3e^ε + 2 values; above, unary encoding up to 1024 values, whose reports are small enough,
    then local hashing with the same error, and for more than a million values the Hadamard response, which decodes
    them all at once.
    """
    size, border = checks.count(domain=domain) + absent, 3 * math.exp(min(checks.positive(epsilon=epsilon), 700.0)) + 2
    if size < border:
        why = f"below 3e^ε + 2 = {border:.1f} no other oracle has a smaller variance"
        return Choice(KaryResponse(epsilon, domain, absent), f"randomized response among {size} values: {why}")
    why = f"with {size} values, 3e^ε + 2 = {border:.1f} or more, its variance does not grow with the domain"
    if size <= MOST_BITS:
        return Choice(OptimizedUnary(epsilon, domain, absent), f"optimised unary encoding: {why}")
    if size <= MOST_HASHED:
        why += f", and a report has 20 bytes instead of {size // 8}"
        return Choice(LocalHashing(epsilon, domain, absent), f"optimised local hashing: {why}")
    why += ", and decoding does not compare every report with every value"
    return Choice(HadamardResponse(epsilon, domain, absent), f"Hadamard response: {why}")
