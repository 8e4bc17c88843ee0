"""How the privacy loss of a whole run is distributed: the curve of which ε and δ are one point.

The loss of an output is by how much it speaks for one data set against its neighbour. It is positive or negative, most
of it lies near zero, and δ is owed to what lies beyond ε.

>>> from dpfed.events import Gaussian
>>> (loss,) = read_losses(Gaussian(noise_multiplier=1.0), delta=1e-5)
>>> round(float(loss.losses @ loss.masses), 3)  # of one Gaussian it is normal, with mean ½ and variance 1
0.5
"""

from __future__ import annotations

from dataclasses import dataclass

from dpfed import checks
from dpfed.accounting.atoms import atoms
from dpfed.accounting.exact import lattice, pairs
from dpfed.accounting.exact.privacy_loss import Array
from dpfed.checks import ADD_REMOVE
from dpfed.errors import UnsupportedEvent
from dpfed.events import Event


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """The losses of one direction on a lattice, how likely each is, and the mass of an infinite one."""

    losses: Array
    masses: Array
    at_infinity: float


def read_losses(event: Event, delta: float, *, adjacency: str = ADD_REMOVE) -> tuple[LossDistribution, ...]:
    """Return the distribution of the loss in each direction that differs: the unit is removed, or added.

    Computed on the lattice that bounds ε at δ, each step rounded up.
    """
    bag = atoms(event)
    found = {atom: pairs.pairs(atom, checks.adjacency(adjacency)) for atom in bag}
    for atom, known in found.items():
        if not known:
            raise UnsupportedEvent(f"the loss of {atom!r} is not known, only its Rényi divergence: leave the plot out")
    sides = range(max(map(len, found.values())))
    return tuple(
        _read_side([(found[atom][side % len(found[atom])].law, count) for atom, count in bag.items()], delta)
        for side in sides
    )


def _read_side(counted: lattice.Counted, delta: float) -> LossDistribution:
    try:
        return LossDistribution(*lattice.read_distribution(counted, checks.positive_probability(delta=delta)))
    except lattice.TooLarge:
        raise UnsupportedEvent("the loss of this run is spread too far for a lattice: leave the plot out") from None
