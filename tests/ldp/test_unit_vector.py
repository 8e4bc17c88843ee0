"""Private unit vectors: the side of the cap that the coin says, no bias, the formula's error, refusals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from dpfed import events as ev
from dpfed.audit.ldp import audit
from dpfed.errors import InvalidArgument
from dpfed.ldp.coins import ONE
from dpfed.ldp.unit_vector import NormalVectorMean, UnitVectorMean, lift
from dpfed.randomness import SeededSource

KINDS = [UnitVectorMean, NormalVectorMean]
FALSE_ALARM = 1e-6


def make_row(dimensions, seed=1):
    row = SeededSource(seed).normal(dimensions)
    return row / np.linalg.norm(row)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("epsilon", "dimensions"), [(1.0, 5), (4.0, 20), (7.0, 3)])
def test_reports_are_in_the_cap_as_often_as_the_coin_says_and_estimates_are_unbiased(kind, epsilon, dimensions):
    """A binomial test of 20,000 reports, and t tests along the vector and across it."""
    mechanism, row = kind(epsilon, dimensions), make_row(dimensions)
    reports = mechanism.randomize(np.tile(row, (20_000, 1)), SeededSource(2))
    hits = int(mechanism.supports(reports, row).sum())
    assert stats.binomtest(hits, 20_000, mechanism.cap.keep / ONE).pvalue > FALSE_ALARM
    decoded = mechanism.decode(reports)
    across = np.roll(row, 1) - row * (np.roll(row, 1) @ row)
    assert stats.ttest_1samp(decoded @ row, 1.0).pvalue > FALSE_ALARM
    assert stats.ttest_1samp(decoded @ across, 0.0).pvalue > FALSE_ALARM


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_is_that_of_the_formula(kind):
    """A t test of 20,000 squared distances."""
    mechanism, row = kind(2.0, 6), make_row(6)
    reports = mechanism.randomize(np.tile(row, (20_000, 1)), SeededSource(5))
    squares = ((mechanism.decode(reports) - row) ** 2).sum(axis=1)
    assert stats.ttest_1samp(squares, mechanism.variance(1)).pvalue > FALSE_ALARM
    found = mechanism.estimate([reports[:7_000], reports[7_000:]])
    assert (found.standard_errors**2).sum() == pytest.approx(mechanism.variance(20_000), rel=0.1)
    assert found.users == 20_000


@dataclass(frozen=True)
class Turned(UnitVectorMean):
    """Randomizes 1 and −1 as a vector and its opposite."""

    def randomize(self, values, source=None):
        return super().randomize(np.asarray(values, dtype=float)[:, None] * make_row(self.dimensions), source)

    def supports(self, reports, value):
        return super().supports(reports, float(value) * make_row(self.dimensions))


@dataclass(frozen=True)
class Leaning(Turned):
    """Takes the vector that was drawn last and not the first that fits: the coin is forgotten."""

    def _draw(self, rows, source):
        drawn = super()._draw(rows, source)
        return np.where((drawn @ rows[0])[:, None] >= 0, drawn, -drawn)


def test_the_auditor_does_not_refute_a_cap_comes_near_its_epsilon_and_finds_one_that_leans():
    options = {"trials": 20_000, "confidence": 1 - 1e-6, "source": SeededSource(1)}
    found = audit(Turned(2.0, 4), 1, -1, **options)
    assert not found.is_refuted
    assert found.lower > 1.0
    assert audit(Leaning(2.0, 4), 1, -1, **options).is_refuted


@pytest.mark.parametrize("kind", KINDS)
def test_reports_are_the_same_from_the_same_source_and_the_event_is_pure(kind):
    mechanism, rows = kind(3.0, 7), np.tile(make_row(7), (50, 1))
    ours, theirs = (mechanism.randomize(rows, SeededSource(9)) for _ in range(2))
    assert np.array_equal(ours, theirs)
    assert mechanism.event == ev.PureDP(mechanism.epsilon, adjacency="replace_one")
    assert mechanism.epsilon <= 3.0


def test_the_vectors_that_are_tried_do_not_depend_on_the_users_vector():
    """What is sent is one of them as it was drawn: no digit of it was computed from the user's."""
    mechanism, row = UnitVectorMean(1.0, 3), make_row(3)
    tried = {vector.tobytes() for vector in mechanism.cap.shape.draw(SeededSource(4), 500)}

    class Given(SeededSource):
        def normal(self, shape=()):
            return np.resize(SeededSource(4).normal((500, 3)), shape)

    reports = mechanism.randomize(row[None], Given(1))
    assert all(vector.tobytes() in tried for vector in reports["vector"])


def test_shorter_vectors_are_lifted_and_longer_ones_refused():
    rows = np.array([[0.3, 0.4], [0.0, 0.0], [1.0, 0.0]])
    assert np.linalg.norm(lift(rows), axis=1) == pytest.approx(1)
    assert lift(rows)[:, :2].tolist() == rows.tolist()
    UnitVectorMean(1.0, 3).randomize(lift(rows))
    with pytest.raises(InvalidArgument, match="length up to 1"):
        lift([[1.0, 0.1]])
    with pytest.raises(InvalidArgument, match="length up to 1"):
        lift([[np.nan, 0.1]])


@pytest.mark.parametrize(
    "values", [np.zeros((2, 3)), np.ones((2, 3)), np.full((1, 3), np.nan), np.eye(4), np.zeros(3), np.zeros((0, 3))]
)
def test_values_that_are_no_unit_vectors_are_refused(values):
    with pytest.raises(InvalidArgument, match=r"^values must"):
        UnitVectorMean(1.0, 3).randomize(values)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"dimensions": 1}, "use DuchiMean"),
        ({"dimensions": 1 << 21}, "projection"),
        ({"epsilon": 20.0}, "draws of a vector"),
        ({"epsilon": 0.0}, "epsilon"),
    ],
)
def test_impossible_settings_are_refused(settings, why):
    with pytest.raises(InvalidArgument, match=why):
        UnitVectorMean(**{"epsilon": 1.0, "dimensions": 5, **settings})


@pytest.mark.parametrize("kind", KINDS)
def test_reports_that_nobody_can_have_sent_are_refused(kind):
    mechanism = kind(1.0, 5)
    reports = mechanism.randomize(make_row(5)[None])
    reports["vector"] *= 1e4
    with pytest.raises(InvalidArgument, match="of a length that none has"):
        mechanism.estimate(reports)
    reports["vector"] = np.nan
    with pytest.raises(InvalidArgument, match="of a length that none has"):
        mechanism.estimate(reports)
