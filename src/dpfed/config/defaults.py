"""First values for a table of that size: δ, batch, steps, rounds and learning rate of a linear model.

They follow from what is public alone: the declared sizes, the promised ε and whether a class or a quantity is
predicted. `benchmarks/defaults.py` holds them against a grid on five real tables; what yours needs may differ.

>>> choose([569], epsilon=4.0)
Defaults(delta=1e-05, rounds=10, steps=10, batch_size=142, learning_rate=2.0)
>>> choose([4500] * 10, epsilon=3.0)
Defaults(delta=1e-06, rounds=50, steps=10, batch_size=1000, learning_rate=4.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpfed import checks
from dpfed.errors import InvalidArgument

LARGEST_DELTA = 1e-5  # what people expect of a small table too
STEPS_A_ROUND = 10
FEWEST_STEPS, MOST_STEPS = 100, 500
RECORDS_A_STEP = 80  # one step more for so many records: a large table drowns the noise of more steps
SHARE = 4  # a batch is a quarter of a site: nearly as good as all of it, at a quarter of the time
LEAST_BATCH, LARGEST_BATCH = 32, 1000
CALM, BOLD, QUANTITY = 2.0, 4.0, 0.25  # learning rates for a clip norm of 1
BOLD_FROM = 20_000  # ε times records from which noise no longer limits the rate


@dataclass(frozen=True)
class Defaults:
    """Settings of a first run with a clip norm of 1."""

    delta: float
    rounds: int
    steps: int
    batch_size: int
    learning_rate: float


def choose(sizes: Sequence[int], epsilon: float, *, is_quantity: bool = False) -> Defaults:
    """Choose first values for sites that declare these many records (or persons) each.

    Privacy:
        Reads declared sizes only, never a record. δ is a power of ten below 1/(10·n): a mechanism that published each
        record with probability δ would publish none of a table of that size nine times in ten.
    """
    if not sizes:
        raise InvalidArgument("sizes", "sizes must have the declared size of at least one site, got none")
    declared = [checks.count(sizes=size) for size in sizes]
    total = sum(declared)
    checks.positive(epsilon=epsilon)
    wanted = min(max(total // RECORDS_A_STEP, FEWEST_STEPS), MOST_STEPS)
    return Defaults(
        delta=choose_delta(total),
        rounds=wanted // STEPS_A_ROUND,
        steps=STEPS_A_ROUND,
        batch_size=min(max(total // len(declared) // SHARE, LEAST_BATCH), min(declared), LARGEST_BATCH),
        learning_rate=QUANTITY if is_quantity else BOLD if epsilon * total >= BOLD_FROM else CALM,
    )


def choose_delta(units: int) -> float:
    """Return the largest power of ten below 1/(10·n), for n declared units; never above 1e-5."""
    return min(LARGEST_DELTA, float(f"1e-{len(str(10 * checks.count(units=units)))}"))
