"""The best guess that one release allows: how much likelier it is if a canary was in than if it was not.

No attacker beats the likelihood ratio (Neyman and Pearson 1933). A canary that is in takes part in a step only with the
sampling rate, so that its release is a mixture. Shifts are in clip norms, noise in noise multipliers.

>>> compute_ratios(np.array([0.0, 0.5, 1.0]), rate=1.0, noise=1.0).tolist()
[-0.5, 0.0, 0.5]
"""

from __future__ import annotations

import numpy as np

from dpfed.arrays import Floats


def compute_ratios(
    shifts: Floats, *, rate: float, noise: float, level: float = 1.0, norm: str = "l2", replaces: bool = False
) -> Floats:
    """Return log-likelihood ratios of noised shifts: `level` with probability `rate`, against no shift at all.

    Where a canary that is not in `replaces` itself by its opposite, against that.
    """
    ratios = _compare(shifts, rate, noise, level, norm)
    return ratios - _compare(-shifts, rate, noise, level, norm) if replaces else ratios


def _compare(shifts: Floats, rate: float, noise: float, level: float, norm: str) -> Floats:
    if norm == "l1":
        ratios = (np.abs(shifts) - np.abs(shifts - level)) / noise
    else:
        ratios = level * (shifts - level / 2) / noise**2
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(np.log1p(-rate), np.log(rate) + ratios))
