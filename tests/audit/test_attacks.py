"""Each attack finds members where there is something to find, and is right where it can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from dpfed.audit import attacks
from dpfed.audit.roc import measure
from dpfed.errors import InvalidArgument


class World:
    """Confidences of models that are higher by 2 for what they trained on, around a mean of the record's own."""

    def __init__(self, models=24, records=200):
        draws = np.random.default_rng(7)
        hardness = draws.normal(0, 3, records)
        half = np.array([draws.permutation(records) < records // 2 for _ in range(models // 2)])
        self.is_in = np.concatenate([half, ~half])
        self.table = hardness + 2.0 * self.is_in + draws.normal(size=(models, records))
        self.members = np.arange(records) < records // 2
        self.own = hardness + 2.0 * self.members + draws.normal(size=records)
        self.labels = draws.integers(0, 2, records)
        self.fresh = draws.normal(0, 3, 100)
        self.fresh_table = self.fresh + draws.normal(size=(models, 100))

    def auc(self, scores):
        return measure("", scores[self.members], scores[~self.members]).auc


@pytest.fixture
def world():
    return World()


def test_attacks_that_know_each_record_beat_those_that_do_not(world):
    blind = world.auc(attacks.loss_threshold(-world.own))
    shadow = world.auc(attacks.shadow(world.own, world.labels, world.table, world.is_in))
    online = world.auc(attacks.lira_online(world.own, world.table, world.is_in))
    offline = world.auc(attacks.lira_offline(world.own, world.table, world.is_in))
    # Φ(2/√2) = 0.921 is the best possible; a blind attack gets Φ(2/√20) = 0.673. Standard errors are about 0.03.
    assert 0.52 < blind < 0.82
    assert 0.52 < shadow < 0.82
    assert online > 0.80
    assert offline > 0.80


def test_rmia_with_reference_models_beats_the_loss(world):
    scores = attacks.rmia(world.own, world.table, world.is_in, world.fresh, world.fresh_table)
    assert world.auc(scores) > world.auc(attacks.loss_threshold(-world.own))
    assert ((scores >= 0) & (scores <= 1)).all()


def test_lira_is_the_ratio_of_two_normal_densities():
    table = np.array([[1.0], [3.0], [-1.0], [-3.0]])
    is_in = np.array([[True], [True], [False], [False]])
    found = attacks.lira_online(np.array([0.5]), table, is_in)
    assert found[0] == pytest.approx(norm.logpdf(0.5, 2, 1) - norm.logpdf(0.5, -2, 1))
    assert attacks.lira_offline(np.array([0.5]), table, is_in)[0] == pytest.approx(-norm.logsf(0.5, -2, 1))


def test_population_counts_larger_losses_of_the_same_class():
    found = attacks.population(
        np.array([0.5, 0.5]), np.array([0, 1]), np.array([0.1, 0.6, 0.7, 0.2]), np.array([0, 0, 0, 1])
    )
    assert found == pytest.approx([2 / 3, 0.0])


def test_reference_is_the_loss_that_training_took_away():
    assert attacks.reference(np.array([0.1]), np.array([[0.5], [0.7]])).tolist() == pytest.approx([0.5])
    with pytest.raises(InvalidArgument, match="train at least one shadow model"):
        attacks.reference(np.array([0.1]), np.zeros((0, 1)))


def test_a_hidden_attribute_is_guessed_by_the_least_loss():
    members = np.array([[0.1, 0.9, 0.1], [0.9, 0.1, 0.9]])
    others = np.array([[0.1, 0.1], [0.9, 0.9]])
    found = attacks.attribute(members, np.array([0, 1, 0]), others, np.array([0, 1]))
    assert (found.members, found.others, found.advantage) == (1.0, 0.5, 0.5)
    assert found.members_interval[0] < 1.0 == found.members_interval[1]


# --- known answers: normal confidences, a mean of its own for each record, further apart by `shift` where it was in ---


class Normal:
    """Twice a thousand records and 128 models; the standard error of an AUC is about 0.013."""

    error = 0.013

    def __init__(self, shift, models=128, records=2000):
        draws = np.random.default_rng(21)
        hardness = draws.normal(0, 2, records)
        half = np.array([draws.permutation(records) < records // 2 for _ in range(models // 2)])
        self.is_in, self.labels = np.concatenate([half, ~half]), draws.integers(0, 2, records)
        self.table = hardness + shift * self.is_in + draws.normal(size=(models, records))
        self.own = hardness + shift * (np.arange(records) < records // 2) + draws.normal(size=records)
        self.fresh = draws.normal(0, 2, 500)
        self.fresh_own, self.fresh_table = (self.fresh + draws.normal(size=shape) for shape in (500, (models, 500)))

    def list_scores(self):
        unseen = np.nanmean(np.where(self.is_in, np.nan, -self.table), axis=0, keepdims=True)
        return {
            "loss threshold": attacks.loss_threshold(-self.own),
            "population": attacks.population(-self.own, self.labels, -self.fresh_own, self.labels[:500]),
            "reference": attacks.reference(-self.own, unseen),
            "shadow": attacks.shadow(self.own, self.labels, self.table, self.is_in),
            "online": attacks.lira_online(self.own, self.table, self.is_in),
            "offline": attacks.lira_offline(self.own, self.table, self.is_in),
            "RMIA": attacks.rmia(self.own, self.table, self.is_in, self.fresh_own, self.fresh_table),
        }

    def find_areas(self):
        found = {name: (scores[:1000], scores[1000:]) for name, scores in self.list_scores().items()}
        return {name: measure(name, *scores).auc for name, scores in found.items()}


def test_where_nothing_leaks_no_attack_finds_anything():
    """Five standard errors: false alarm below 1e-6 for each."""
    for name, area in Normal(shift=0.0).find_areas().items():
        assert area == pytest.approx(0.5, abs=5 * Normal.error), name


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
def test_attacks_that_know_each_record_come_to_the_best_possible_area(shift):
    """Two normal laws that are `shift` apart: Φ(shift/√2); without a record's own mean, whose variance is 4, less."""
    found = Normal(shift).find_areas()
    best, blind = norm.cdf(shift / 2**0.5), norm.cdf(shift / 10**0.5)
    for name in ("online", "offline", "reference"):
        assert found[name] == pytest.approx(best, abs=5 * Normal.error), name
    for name in ("loss threshold", "population", "shadow"):
        assert found[name] == pytest.approx(blind, abs=5 * Normal.error), name
    assert blind - 5 * Normal.error < found["RMIA"] < best + 5 * Normal.error


def test_attributes_are_guessed_as_often_as_two_normal_laws_say():
    """The loss of the wrong value is higher by 1 for members, and by nothing for others; 4,000 records of each."""
    draws = np.random.default_rng(22)
    values = draws.integers(0, 2, (2, 4000))
    losses = [draws.normal(size=(2, 4000)) for _ in range(2)]
    losses[0][1 - values[0], np.arange(4000)] += 1.0
    found = attacks.attribute(losses[0], values[0], losses[1], values[1])
    assert found.members == pytest.approx(norm.cdf(2**-0.5), abs=5 * 0.5 / 4000**0.5)
    assert found.others == pytest.approx(0.5, abs=5 * 0.5 / 4000**0.5)


@pytest.mark.parametrize(
    ("losses", "failure"),
    [
        (np.full((2, 3), np.nan), "a loss is not a number"),
        (np.ones((2, 3)), "does not depend on the attribute"),
        (np.ones((2, 0)), "there are no members, or no others"),
    ],
)
def test_an_attribute_that_cannot_be_guessed_is_a_failure_without_figures(losses, failure):
    found = attacks.attribute(losses, np.zeros(3, int), losses, np.zeros(3, int))
    assert failure in found.failure
    assert (found.members, found.others, found.advantage) == (None, None, None)


def test_attacks_by_rank_refuse_what_is_not_a_number_and_do_not_rank_it():
    known, broken, is_in = np.zeros(4), np.array([0.0, 1.0, 2.0, np.nan]), np.eye(4, dtype=bool)
    labels, table = np.array([0, 1, 0, 1]), np.zeros((4, 4))
    for attack in (
        lambda: attacks.population(broken, labels, known, labels),
        lambda: attacks.population(known, labels, broken, labels),
        lambda: attacks.rmia(broken, table, is_in, known, table),
        lambda: attacks.rmia(known, table, is_in, broken, table),
        lambda: attacks.rmia(known, table, is_in, known, table + broken),
        lambda: attacks.shadow(broken, labels, table, is_in),
        lambda: attacks.lira_online(known, table + broken, is_in),
    ):
        with pytest.raises(InvalidArgument, match="the attack has failed"):
            attack()
