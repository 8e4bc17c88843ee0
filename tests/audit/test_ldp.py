"""The auditor: no mechanism of ours is refuted, faults are. False-alarm probability 1e-6 per audit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from dpfed.audit.ldp import audit
from dpfed.errors import InvalidArgument
from dpfed.ldp import (
    ABSENT,
    BinaryResponse,
    CountMeanSketch,
    DuchiMean,
    HadamardResponse,
    HadamardSketch,
    HybridMean,
    KaryResponse,
    LocalHashing,
    OptimizedUnary,
    PiecewiseMean,
    PrefixExtension,
    Rappor,
    SubsetSelection,
    SymmetricUnary,
    VectorMean,
    packed,
)
from dpfed.randomness import SeededSource, or_system

TRIALS, SURE = 60_000, 1 - 1e-6
MECHANISMS = {
    "binary": (BinaryResponse.from_epsilon(1.0), 0, 1),
    "lying binary": (BinaryResponse(0.3), 0, 1),
    "kary": (KaryResponse(2.0, 10), 0, 9),
    "symmetric unary": (SymmetricUnary(1.0, 10), 3, 4),
    "optimized unary": (OptimizedUnary(2.0, 10), 3, 4),
    "subset": (SubsetSelection(1.0, 10), 3, 4),
    "hashing": (LocalHashing(1.0, 100), 3, 98),
    "Hadamard": (HadamardResponse(1.0, 10), 0, 1),
    "sketch": (CountMeanSketch(1.0, 10, buckets=32, functions=8), 0, 1),
    "Hadamard sketch": (HadamardSketch(1.0, 10, buckets=32, functions=8), 0, 1),
    "RAPPOR for ever": (Rappor(0.5, 0.0, 1.0, bits=16, cohorts=4), "a", "b"),
    "absent": (KaryResponse(1.0, 3, absent=True), ABSENT, 1),
    "absent unary": (OptimizedUnary(1.0, 3, absent=True), ABSENT, 1),
    "absent subset": (SubsetSelection(1.0, 5, absent=True), ABSENT, 1),
    "absent hashing": (LocalHashing(1.0, 3, absent=True), ABSENT, 1),
}


@pytest.fixture(params=MECHANISMS.values(), ids=MECHANISMS)
def audited(request):
    return request.param


def run(mechanism, first, second, **settings):
    return audit(mechanism, first, second, trials=TRIALS, confidence=SURE, source=SeededSource(7), **settings)


def test_no_mechanism_of_ours_is_refuted_and_the_bound_comes_near_its_epsilon(audited):
    mechanism, first, second = audited
    found = run(mechanism, first, second)
    assert not found.is_refuted
    assert found.lower > 0.75 * mechanism.epsilon


def test_an_epsilon_claimed_too_low_is_refuted(audited):
    mechanism, first, second = audited
    assert run(mechanism, first, second, claimed=0.7 * mechanism.epsilon).is_refuted


class Rows10(VectorMean):
    """Vectors of ten equal numbers, so that a value to audit is one number."""

    def randomize(self, values, source=None):
        return super().randomize(np.repeat(np.asarray(values)[:, None], 10, axis=1), source)


def coarse(mechanism):
    """Return a view of a mean's reports: the first decoded number in steps of 1/20."""
    if isinstance(mechanism, VectorMean):
        return lambda reports: coarse(mechanism._part)(np.ascontiguousarray(reports["report"][:, 0]))
    return lambda reports: np.rint(mechanism.decode(reports) * 20).astype(np.int64)


@pytest.mark.parametrize("mechanism", [DuchiMean(1.0), PiecewiseMean(1.0), HybridMean(2.0), Rows10(1.0, 10)])
def test_no_mechanism_of_a_mean_is_refuted_and_the_bound_comes_near_its_epsilon(mechanism):
    found = run(mechanism, -1.0, 1.0, view=coarse(mechanism))
    assert not found.is_refuted
    assert found.lower > 0.75 * mechanism.epsilon
    assert run(mechanism, -1.0, 1.0, view=coarse(mechanism), claimed=0.7 * mechanism.epsilon).is_refuted


def test_a_report_on_a_prefix_is_not_refuted_and_one_group_comes_near_its_epsilon():
    finder = PrefixExtension(1.0, bits=8, first=8)
    oracle = finder._oracle

    def look(reports):
        return 2 * oracle.supports(reports["report"], 3) + oracle.supports(reports["report"], 200)

    found = run(finder, 3, 200, view=look)
    assert 0.75 * finder.epsilon < found.lower <= finder.epsilon
    assert run(finder, 3, 200, view=look, claimed=0.7).is_refuted


def test_a_single_report_of_rappor_is_within_its_own_epsilon():
    rappor = Rappor(0.5, 0.25, 0.75, bits=16, cohorts=4)
    found = run(rappor, "a", "b", claimed=rappor.epsilon_of_report)
    assert not found.is_refuted
    assert found.lower > 0.75 * rappor.epsilon_of_report


class NeverClears(Rappor):
    """A RAPPOR as a public library has it: permanent bits are set at random, and never cleared."""

    def enroll(self, values, source=None, cohorts=None):
        coin = or_system(source)
        kept = super().enroll(values, coin, cohorts)
        filled = self.filters.fill(np.asarray(values), kept["cohort"].astype(np.int64))
        kept["bits"] |= packed.pack(filled)
        return kept


def test_the_fault_of_a_rappor_that_never_clears_a_bit_is_found():
    found = run(NeverClears(0.5, 0.0, 1.0, bits=16, cohorts=4), "a", "b")
    assert found.is_refuted
    assert found.largest == math.inf


@dataclass(frozen=True)
class Leaky:
    """A mechanism of somebody else's, without `supports`: one report in a hundred is the value itself."""

    epsilon: ClassVar[float] = 1.0

    def randomize(self, values, source=None):
        reports = KaryResponse(1.0, 4).randomize(values, source).astype(np.int64)
        is_leaked = or_system(source).uniform(len(reports)) < 0.01
        return np.where(is_leaked, 100 + np.asarray(values), reports)


def test_a_rare_leak_of_a_foreign_mechanism_is_found():
    found = run(Leaky(), 0, 1)
    assert found.is_refuted
    assert "REFUTED" in str(found)


class Rows(Leaky):
    def randomize(self, values, source=None):
        plain = super().randomize(values, source)
        return np.stack([plain, plain % 2], axis=1)


def test_reports_of_several_numbers_are_told_apart_row_by_row():
    assert run(Rows(), 0, 1).is_refuted


class Wide(Leaky):
    def randomize(self, values, source=None):
        return or_system(source).words(len(values)).astype(np.int64)


class ByType(Leaky):
    def randomize(self, values, source=None):
        return np.zeros(len(values), dtype=np.int8 if values[0] else np.int64)


class ByNumber(Leaky):
    def randomize(self, values, source=None):
        return np.zeros(len(values) - int(values[0]), dtype=np.int64)


class ByShape(Leaky):
    def randomize(self, values, source=None):
        return np.zeros((len(values), 1 + int(values[0])))


@pytest.mark.parametrize("leaky", [ByType(), ByNumber(), ByShape()])
def test_reports_that_differ_in_type_or_number_are_not_audited_as_if_they_were_alike(leaky):
    with pytest.raises(InvalidArgument, match="no ε holds"):
        run(leaky, 0, 1)


def test_too_many_outcomes_ask_for_a_view():
    with pytest.raises(InvalidArgument, match="view must leave at most"):
        run(Wide(), 0, 1)
    assert run(Wide(), 0, 1, view=lambda reports: reports % 2).lower < 0.1


def test_the_bound_holds_as_often_as_it_says(campaign_scale):
    """At confidence 0.9 a bound above the true ε in at most a tenth of audits: 60, binomial at 1e-6."""
    response = BinaryResponse.from_epsilon(0.5)
    audits = 60 * campaign_scale
    source = SeededSource(3)
    wrong = sum(audit(response, 0, 1, trials=2000, confidence=0.9, source=source).is_refuted for _ in range(audits))
    assert wrong <= 0.1 * audits + 5 * math.sqrt(0.09 * audits)


def test_a_mechanism_without_an_epsilon_needs_a_claim():
    class Silent:
        def randomize(self, values, source=None):
            return np.asarray(values)

    with pytest.raises(InvalidArgument, match="claimed must be"):
        audit(Silent(), 0, 1, trials=100)
    assert audit(Silent(), 0, 1, trials=1000, claimed=1.0).is_refuted


@pytest.mark.parametrize("settings", [{"trials": 0}, {"confidence": 1.0}, {"claimed": -1.0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(InvalidArgument):
        audit(BinaryResponse(0.75), 0, 1, **settings)
