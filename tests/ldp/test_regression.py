from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.ldp.rappor import Rappor
from dpfed.ldp.regression import Fit
from dpfed.randomness import SeededSource

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


def make_reports(candidates=120, users=60_000):
    """Reports of four texts, and many candidates that nobody has, in filters with collisions."""
    rappor = Rappor(f=0.25, p=0.25, q=0.75, bits=32, hashes=2, cohorts=8)
    texts = np.repeat(["t0", "t1", "t2", "t3"], np.array([4, 3, 2, 1]) * (users // 10))
    return rappor, rappor.randomize(texts, SeededSource(3)), [f"t{place}" for place in range(candidates)]


def test_the_lasso_finds_what_is_there_and_leaves_most_others_at_zero():
    rappor, reports, names = make_reports()
    plain, sparse = (rappor.decode(reports, names, select=select) for select in ("nnls", "lasso"))
    assert set(sparse.significant) == {"t0", "t1", "t2", "t3"}
    assert sparse.frequencies[:4] == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.03)
    assert np.count_nonzero(sparse.frequencies) < np.count_nonzero(plain.frequencies) / 2
    assert set(np.flatnonzero(sparse.p_values == 1)) == set(range(120)) - set(np.flatnonzero(sparse.p_values < 1))


def test_the_lasso_is_at_a_minimum():
    """Where a candidate is chosen its score is the penalty, elsewhere below it (Karush, Kuhn and Tucker)."""
    rappor, reports, names = make_reports(40, 8_000)
    fitted = rappor._fit(reports, names)
    chosen = fitted.select_sparse()
    gram, penalty = fitted._gram(), np.sqrt(2 * np.log(40) * fitted._score_variances())
    part = np.linalg.solve(gram[np.ix_(chosen, chosen)], (fitted._right() - penalty)[chosen])
    assert (part > 0).all()
    left = fitted._right() - gram[:, chosen] @ part - penalty
    assert np.delete(left, chosen).max() <= 1e-6 * fitted.users.sum()


def test_another_selection_is_refused():
    rappor, reports, names = make_reports(5, 100)
    with pytest.raises(InvalidArgument, match="select must be 'nnls' or 'lasso'"):
        rappor.decode(reports, names, select="ridge")


def test_candidates_that_nobody_has_are_significant_no_oftener_than_the_level_says_where_they_share_no_bit():
    """300 fits of 20 candidates at 0.05 together: at most 5 % have a false one; a binomial test at 1e-6."""
    design = np.eye(21)[None]
    source, found = np.random.default_rng(5), 0
    for _ in range(300):
        chances = np.r_[0.75, np.full(20, 0.25)]
        ones = source.binomial(400, chances)[None]
        fitted = Fit(tuple(map(str, range(21))), design, ones, np.array([400]), 0.75, 0.25)
        found += len(set(fitted.decode(0.05).significant) - {"0"}) > 0
    assert stats.binomtest(found, 300, 0.05, alternative="greater").pvalue > 1e-6
