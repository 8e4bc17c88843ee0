"""The score of a release is its likelihood ratio."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import laplace, norm

from dpfed.audit.likelihood import compute_ratios

SHIFTS = np.linspace(-3, 4, 15)


@pytest.mark.parametrize(("norm_of", "law"), [("l2", norm), ("l1", laplace)])
@pytest.mark.parametrize("rate", [0.1, 1.0])
@pytest.mark.parametrize("replaces", [True, False])
def test_ratios_are_those_of_the_densities(norm_of, law, rate, replaces):
    level, noise = 0.7, 1.3
    found = compute_ratios(SHIFTS, rate=rate, noise=noise, level=level, norm=norm_of, replaces=replaces)

    def density(centre):
        return (1 - rate) * law.pdf(SHIFTS, scale=noise) + rate * law.pdf(SHIFTS, loc=centre, scale=noise)

    other = density(-level) if replaces else law.pdf(SHIFTS, scale=noise)
    assert found == pytest.approx(np.log(density(level) / other), rel=1e-9, abs=1e-12)


def test_no_noise_at_all_to_speak_of_gives_finite_order():
    found = compute_ratios(np.array([0.0, 1.0]), rate=0.5, noise=1e-9)
    assert found[0] < found[1]
    assert not np.isnan(found).any()
