"""Rényi differential privacy: curves of events, their sums, and what they promise as (ε, δ).

>>> from dpfed.events import Gaussian
>>> round(float(rdp(Gaussian(noise_multiplier=2.0), orders=[8])[0]), 12)
1.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from dpfed import checks
from dpfed import events as ev
from dpfed.accounting.atoms import atoms
from dpfed.accounting.exact import pairs
from dpfed.accounting.exact.privacy_loss import Array
from dpfed.checks import ADD_REMOVE
from dpfed.errors import InvalidArgument

# Fine where the best order usually lies, and far enough for tiny and for huge budgets.
DEFAULT_ORDERS = np.concatenate(
    (1 + np.geomspace(1e-2, 1, 40)[:-1], np.arange(2.0, 12, 0.125), np.geomspace(12, 1024, 110))
)


def rdp(event: ev.Event, orders: ArrayLike, *, adjacency: str = ADD_REMOVE) -> Array:
    """Return upper bounds on the Rényi divergence of the event at each order above 1."""
    alphas = np.atleast_1d(np.asarray(orders, dtype=float))
    if alphas.ndim != 1 or not alphas.size or not np.all(np.isfinite(alphas) & (alphas > 1)):
        raise InvalidArgument("orders", f"orders must be one or more finite numbers above 1, got {orders!r}")
    return total(atoms(event), alphas, checks.adjacency(adjacency))


def total(bag: Mapping[ev.Event, int], orders: Array, adjacency: str) -> Array:
    """Bound the divergence of a bag of atoms from above; each direction is summed apart and the larger one counts."""
    sides = np.zeros((2, len(orders)))
    for atom, count in bag.items():
        curves = _curves(atom, tuple(orders), adjacency)
        for side in (0, 1):
            sides[side] += count * curves[side % len(curves)]
    return np.asarray(sides.max(axis=0) * (1 + 2.0**-50))


def epsilon_from_rdp(orders: ArrayLike, divergences: ArrayLike, delta: float) -> float:
    """Return the smallest ε at δ that the divergences promise (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    alphas, values = np.asarray(orders, dtype=float), np.asarray(divergences, dtype=float)
    if delta <= 0:
        return math.inf
    epsilons = values + np.log1p(-1 / alphas) - (math.log(delta) + np.log(alphas)) / (alphas - 1)
    # Pinsker and Bretagnolle–Huber: a divergence that small is covered by δ alone.
    if np.any(-np.expm1(-values) < delta**2):
        return 0.0
    # Rounded up by the size of the terms, which may cancel.
    sizes = np.abs(values) + (abs(math.log(delta)) + np.log(alphas)) / (alphas - 1) + 1
    return max(0.0, float(np.min(epsilons + 2.0**-50 * sizes)))


def delta_from_rdp(orders: ArrayLike, divergences: ArrayLike, epsilon: float) -> float:
    """Return the smallest δ at ε that the divergences promise (the same proposition, solved for δ)."""
    alphas, values = np.asarray(orders, dtype=float), np.asarray(divergences, dtype=float)
    logs = (alphas - 1) * (values - epsilon + np.log1p(-1 / alphas)) - np.log(alphas)
    # Pinsker and Bretagnolle–Huber again: δ at ε = 0, which is no less than at any other.
    distance = math.sqrt(-math.expm1(-float(np.min(values))))
    return min(1.0, distance * (1 + 2.0**-40), math.exp(min(0.0, float(np.min(logs)))) * (1 + 2.0**-40))


@lru_cache(maxsize=1024)
def _curves(atom: ev.Event, orders: tuple[float, ...], adjacency: str) -> tuple[Array, ...]:
    return tuple(curve(np.array(orders)) for curve in pairs.curve(atom, adjacency))
