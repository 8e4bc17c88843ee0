"""A bracketed search whose answer has always been checked: the end it returns was evaluated and passed.

>>> crossing(lambda x: 2.0 - x * x, 0.0, 4.0) >= 2.0**0.5
True
"""

from __future__ import annotations

import math
from collections.abc import Callable


def crossing(
    excess: Callable[[float], float], low: float, high: float, *, tolerance: float = 1e-13, limit: int = 200
) -> float:
    """The smallest x found at which the falling function `excess` is no longer positive; excess(x) ≤ 0 is certain.

    `low` must have a positive excess and `high` must not. Illinois steps with a bisection whenever one end stands
    still for too long, so a function that is flat, steep or slightly rough still ends in a verified bracket.
    """
    at_low, at_high = excess(low), excess(high)
    if at_low <= 0:
        return low
    if at_high > 0:
        raise ArithmeticError(f"no crossing between {low} and {high}")
    side = 0
    for step in range(limit):
        if high - low <= tolerance * max(abs(high), 1e-300):
            break
        middle = _inside(low, high, at_low, at_high, halve=step % 4 == 3)
        if not low < middle < high:
            break
        value = excess(middle)
        if value > 0:
            low, at_low = middle, value
            at_high, side = (at_high / 2, 1) if side == 1 else (at_high, 1)
        else:
            high, at_high = middle, value
            at_low, side = (at_low / 2, -1) if side == -1 else (at_low, -1)
    return high


def log_excess(bound: float, target: float) -> float:
    """log(bound/target); anything that is no number, or below zero, is taken to exceed every target."""
    if bound == 0:
        return -math.inf
    return math.log(bound / target) if bound > 0 else math.inf


def first_passing(excess: Callable[[float], float], most: float = 1e9) -> float:
    """0, 1, 2, 4, … up to the first point at which the falling function `excess` is not positive; ∞ where none is."""
    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
        if high > most:
            return float("inf")
    return high


def _inside(low: float, high: float, at_low: float, at_high: float, *, halve: bool) -> float:
    width = high - low
    if halve or not 0 < at_low - at_high < float("inf"):
        return low + width / 2
    guess = low + width * at_low / (at_low - at_high)
    # A guess on top of one end only shrinks the bracket by a hair; step over the root to close it from both sides.
    margin = 1e-3 * min(guess - low, high - guess) + 1e-14 * abs(high)
    return min(max(guess + (margin if at_low < -at_high else -margin), low), high)
