"""What releases on disjoint parts of the data cost one record together: not their sum, and not always the largest.

A record is in one part, chosen by the record itself, so adding or removing it changes one release: the largest ε
counts. Replacing it may keep it in its part, or take it out of one part and put another record into a second one. Then
two releases change, each by an addition or a removal, and both are charged.

>>> from dpfed.events import Gaussian
>>> wards = [Gaussian(noise_multiplier=2.0), Gaussian(noise_multiplier=4.0)]
>>> round(parallel(wards, delta=1e-5), 4)
1.9931
>>> round(parallel(wards, delta=1e-5, adjacency="replace_one"), 4)  # the record stays where there is less noise
4.3772
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations_with_replacement

from dpfed import checks, events
from dpfed.accounting import renyi
from dpfed.accounting.atoms import atoms
from dpfed.accounting.composed import Composition
from dpfed.accounting.dominance import find_worst
from dpfed.accounting.exact import pairs
from dpfed.accounting.exact.direction import Direction
from dpfed.accounting.exact.privacy_loss import Array
from dpfed.accounting.queries import epsilon
from dpfed.checks import ADD_REMOVE
from dpfed.errors import AdjacencyMismatch, InvalidArgument
from dpfed.events import Event


def parallel(parts: Iterable[Event], delta: float, *, adjacency: str = ADD_REMOVE) -> float:
    """Return the ε, for one record, of releases on disjoint parts of the data, an event for each part.

    Privacy: in which part a record is depends on nothing but that record, and how many parts there are on no record
    (McSherry 2009, Theorem 4). Under replace_one the worst is searched for among one part under replace_one and two
    parts that change by a removal and an addition, each of them asked of the accountant.
    """
    kinds = Counter(events.require_event(part) for part in parts)
    delta, adjacency = checks.probability(delta=delta), checks.adjacency(adjacency)
    if not kinds:
        raise InvalidArgument("parts", "parts must hold the event of one part or more, got none")
    largest = find_worst(kinds, lambda event: epsilon(event, delta, adjacency=adjacency))[1]
    if adjacency == ADD_REMOVE:
        return largest
    return max([largest, *(_moved_epsilon(*two, delta) for two in _list_twos(kinds))])


def _list_twos(kinds: Counter[Event]) -> Iterator[tuple[Event, Event]]:
    for first, second in combinations_with_replacement(kinds, 2):
        if first != second or kinds[first] > 1:
            yield first, second


def _moved_epsilon(first: Event, second: Event, delta: float) -> float:
    """Return the ε of a record that leaves one part while another one comes into the other part.

    The two changes have opposite directions, which a composition under add/remove does not look at; the larger of both
    is taken.
    """
    both = Composition(ADD_REMOVE)
    try:
        both.add(first)
        both.add(second)
    except AdjacencyMismatch as error:
        message = "a record that is replaced may change its part, which is an addition and a removal"
        raise AdjacencyMismatch(f"{message}, and of these nothing is known: {error}") from None
    return max(both.epsilon(delta), _cross(first, second, delta), _cross(second, first, delta))


def _cross(left: Event, joined: Event, delta: float) -> float:
    """Return the ε of the first event as a removal and the second as an addition."""
    direction, is_exact = Direction(), True
    for side, event in enumerate((left, joined)):
        for atom, count in atoms(event).items():
            found = pairs.pairs(atom, ADD_REMOVE)
            is_exact &= bool(found)
            if found:
                direction.add(found[side % len(found)], count)
    if is_exact:
        return direction.epsilon(delta) if delta > 0 else direction.largest_loss()
    total = _divergence(left, 0) + _divergence(joined, 1)
    return renyi.epsilon_from_rdp(renyi.DEFAULT_ORDERS, total * (1 + 2.0**-50), delta)


def _divergence(event: Event, side: int) -> Array:
    bags = [(pairs.curve(atom, ADD_REMOVE), count) for atom, count in atoms(event).items()]
    zero: Array = 0 * renyi.DEFAULT_ORDERS
    return sum((count * curve[side % len(curve)](renyi.DEFAULT_ORDERS) for curve, count in bags), start=zero)
