"""Adding noise to trees of arrays, on a grid that does not depend on the data.

The gap between neighbouring floats grows with their size, so the low bits of a plain x + noise reveal what x
was (Mironov 2012). The hardened path rounds x to a fixed grid of step g, rounds the noise to the same grid,
and adds:

* the sum of two multiples of g is exact or correctly rounded, so the output is a function of the exact sum;
* rounding the noise is rounding x + noise, because x is on the grid: post-processing, free;
* rounding x may move two neighbours apart, by at most g in each of d coordinates: the sensitivity Δ becomes
  Δ + g√d in L2 and Δ + gd in L1, and the noise is widened by that factor, rounded up.

So the privacy of the hardened path is that of *ideal real-valued* noise of the stated multiplier. What is not
exact is the noise itself: it is computed in float64 from 53 and 64 random bits, is cut at 9.4 standard
deviations (Laplace: 44 scales), and no proof bounds its distance from the ideal law. Where that must be
proved, use the discrete mechanisms.

>>> import numpy as np
>>> from dpfed.randomness import SeededSource
>>> draw = SeededSource(1).normal
>>> noisy = perturb(np.array([0.1, 0.2]), draw, scale=1.0, widening=lambda g, d: 1 + g * d, hardened=True)
>>> bool(np.all(noisy % grid_step(1.0) == 0))
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dpfed import arrays
from dpfed.arrays import Floats

# Fine enough to cost nothing (10⁶ coordinates widen Gaussian noise by 1e-9), coarse enough that in the bulk
# of the law each grid point collects about 2⁷⁵ of the 2¹¹⁷ states of a Gaussian draw.
_GRID_BITS = 40
_ROUNDING = 1 + 2.0**-50  # more than computing the widened scale in floats can lose


def grid_step(scale: float) -> float:
    """Return the grid's step for that noise: a power of two about 2⁻⁴⁰ of the scale, whatever the data."""
    return math.ldexp(1.0, max(math.frexp(scale)[1] - 1 - _GRID_BITS, -1074))


def perturb(
    x: Any,
    draw: Callable[[int], Floats],
    scale: float,
    widening: Callable[[float, int], float],
    hardened: bool,
) -> Any:
    """Return x plus scale × draw(dimension), in x's structure and precision (integers become float64).

    `widening(g, d)` is the factor by which the hardened path enlarges the noise to pay for rounding d
    coordinates.
    """
    parts = arrays.leaves(x, "x")
    vector = np.concatenate([part.ravel() for part in parts])
    with np.errstate(over="ignore"):
        if hardened:
            step = grid_step(scale)
            noise = draw(vector.size) * (scale * widening(step, vector.size) * _ROUNDING)
            noisy = _snap(vector, step) + _snap(noise, step)
        else:
            noisy = vector + draw(vector.size) * scale
    return arrays.rebuild(x, split(noisy, parts))


def _snap(values: Floats, step: float) -> Floats:
    # From 2⁵² steps on every float is a multiple of the step. Adding 0 makes −0 a plain 0, which shows no
    # sign.
    rounded = np.rint(values / step) * step + 0.0
    return np.where(np.abs(values) < 2.0**52 * step, rounded, values)


def split(vector: Floats, parts: list[Floats]) -> list[Floats]:
    """Return the vector cut into the shapes of the parts."""
    ends = np.cumsum([part.size for part in parts])
    return [piece.reshape(part.shape) for piece, part in zip(np.split(vector, ends[:-1]), parts, strict=True)]
