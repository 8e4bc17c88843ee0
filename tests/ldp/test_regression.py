from __future__ import annotations

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.ldp.regression import Fit

DESIGN = np.array([[[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], [[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]])
NAMES = ("a", "b", "c")


def fit(frequencies, users=(4000, 1000), own=0.75, other=0.25, design=DESIGN, names=NAMES):
    counts = np.array(users)
    shares = design @ np.asarray(frequencies, dtype=float)
    ones = np.rint(counts[:, None] * (other + (own - other) * shares)).astype(np.int64)
    return Fit(names[: design.shape[2]], design, ones, counts, own, other)


def test_counts_without_noise_give_the_frequencies_back():
    assert fit([0.5, 0.3, 0.2]).solve_all().frequencies == pytest.approx([0.5, 0.3, 0.2], abs=1e-9)
    assert fit([0.5, 0.3, 0.2]).decode(0.05).frequencies == pytest.approx([0.5, 0.3, 0.2], abs=1e-9)


def test_cohorts_without_reports_are_left_out():
    design = np.concatenate([DESIGN, DESIGN[:1]])
    assert fit([0.5, 0.3, 0.2], (4000, 1000, 0), design=design).solve_all().users == 5000


def test_a_candidate_below_zero_is_left_at_zero_by_the_non_negative_fit_alone():
    found = fit([0.6, 0.4, -0.1])
    assert found.solve_all().frequencies[2] == pytest.approx(-0.1, abs=1e-9)
    decoded = found.decode(0.05)
    assert decoded.frequencies.min() == 0.0
    assert decoded.p_values[2] == 1.0
    assert decoded.significant == ("a", "b")


def test_candidates_that_cannot_be_told_apart_have_no_unbiased_estimate():
    twice = DESIGN[:, :, [0, 0]]
    with pytest.raises(InvalidArgument, match="cannot be told apart"):
        fit([0.5, 0.3], design=twice).solve_all()
    assert np.isfinite(fit([0.5, 0.3], design=twice).decode(0.05).frequencies).all()


def test_a_significance_level_is_shared_by_all_candidates():
    decoded = fit([0.9, 0.05, 0.05], users=(400, 400)).decode(0.05)
    level = 0.05 / 3
    expected = tuple(name for name, p in zip(NAMES, decoded.p_values, strict=True) if p <= level)
    assert decoded.significant == expected
    assert "b" not in expected
    assert decoded.p_values[1] > level


def test_a_fit_without_the_texts_that_are_there_shows_it():
    complete = fit([0.2, 0.1, 0.7], users=(40_000, 40_000))
    partial = Fit(NAMES[:2], DESIGN[:, :, :2], complete.ones, complete.users, 0.75, 0.25)
    assert complete.decode(0.05).residual < 0.1
    assert partial.decode(0.05).residual > 100
