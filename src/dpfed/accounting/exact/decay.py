"""How fast a characteristic function must fall: the proof behind the frequencies that a contour leaves out.

φ(w) = E[e^{iwL}] of a loss L = l(x), l monotone. Where the density of L is at least c on an interval of losses of
length R, the law of L holds a uniform one of mass m = cR, whose characteristic function is sin(y)/y at y = wR/2. A
density holds many such slabs on top of each other, and so for every w ≥ Ω

    |φ(w)| ≤ 1 − Σ_k m_k·D(ΩR_k/2),    D(y) = y²/(y² + max(6, y + 1.4)) ≤ min_{t ≥ y} 1 − |sin(t)/t|.

D rises, so D(t) ≤ 1 − |sin(t)/t| is enough. Up to √14 it follows from sin t ≤ t − t³/6 + t⁵/120; from there to 4.6 from
|sin(t)/t| < 0.2173 beyond the first wave and D(4.6) < 0.78; from 4.6 on from D(t) ≤ 1 − 1/t.

*Between the points of a grid* with step h a function whose second derivative is at most B is at least its smaller
neighbour less Bh²/8. The caller proves such a B for the log of the density; nothing else here depends on the grid.

>>> x = np.arange(-5, 5, 1 / 8)
>>> slabs = Slabs.below(loss=x, log_density=-(x**2) / 2 - 0.919, bend=0.0, mode=40)
>>> -2 < slabs.log_decay(omega=2.0) < -0.6  # a Gaussian's log |φ(2)| is −2
True
>>> -0.005 < slabs.log_decay(omega=0.1) < -0.003  # and its log |φ(0.1)| is −0.005
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpfed.accounting.exact.privacy_loss import Array

# How far below its peak, in logs, the density is cut into slabs.
_DEPTHS = np.concatenate((np.arange(0.1, 4, 0.1), np.arange(4, 30, 0.4)))


@dataclass(frozen=True)
class Slabs:
    """Uniform laws that together lie below the law of a loss: their masses and how far each reaches."""

    mass: Array
    reach: Array

    @classmethod
    def below(cls, loss: Array, log_density: Array, bend: float, mode: int, grain: float = 0.0) -> Slabs:
        """Return the slabs below a density of losses that is known at points.

        `bend` is what the log of the density may sag between points, `grain` the rounding of a difference of losses.
        Slabs are piled up around the peak, and around the other peak where the mode of x lies beyond a valley.
        """
        peak = int(log_density.argmax())
        between = log_density[min(peak, mode) : max(peak, mode) + 1]
        valley = float(between.min())
        piles = [_stack(loss, log_density, peak, -math.inf, grain)]
        if valley < float(log_density[mode]) - 0.1:
            # The first pile is nowhere higher than the valley on the far side of it: the second stands on that height.
            piles.append(_stack(loss, log_density, mode, valley, grain))
            reach = np.concatenate([reach for reach, _ in piles])
            height = np.concatenate([height for _, height in piles])
        else:
            ((reach, height),) = piles
        return cls(height * reach * (math.exp(-bend) * (1 - 1e-9)), reach)

    def log_decay(self, omega: float) -> float:
        """Return an upper bound on log |φ(w)| for every w ≥ Ω."""
        y = (omega / 2) * self.reach
        square = y * y
        lost = self.mass.dot(square / (square + np.maximum(y + 1.4, 6.0)))
        return math.log1p(-min(float(lost), 1 - 1e-9))


def _stack(loss: Array, log_density: Array, peak: int, floor: float, grain: float) -> tuple[Array, Array]:
    """Return the reaches and heights of slabs around the peak, from its height down to the floor."""
    # Outwards from the peak only what was not lower before counts, so that each level is reached on one interval.
    left = np.minimum.accumulate(log_density[peak::-1])
    right = np.minimum.accumulate(log_density[peak:])
    # A density beyond the floats is cut off, which only lowers it.
    levels = np.minimum(np.maximum(log_density[peak] - _DEPTHS, floor), 700.0)
    first = peak + 1 - np.searchsorted(-left, -levels, side="right")
    last = peak - 1 + np.searchsorted(-right, -levels, side="right")
    height = np.exp(levels)
    height[:-1] -= height[1:]
    height[-1] -= math.exp(min(floor, 700.0))
    return np.maximum(np.abs(loss[last] - loss[first]) - grain, 0.0), height
