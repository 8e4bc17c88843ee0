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
