"""A client takes nothing from its data but what the plan noised: not even how many records there are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.federated.client import Client
from dpfed.plan import LocalPlan
from dpfed.randomness import SeededSource

FALSE_ALARM = 1e-6
LOCAL = LocalPlan(size=40, batch_size=8, steps=3, learning_rate=0.5, clip_norm=1.0, noise_multiplier=2.0)


class Pull:
    """Every record's gradient is the same short vector; notes how many records each step saw."""

    def __init__(self) -> None:
        self.seen = []

    def gradients(self, weights, values):
        self.seen.append(len(values))
        return np.full((len(values), 2), 0.25)


def ward(records: int) -> Client:
    return Client("ward", (np.ones((records, 2)),), "account")


@pytest.mark.parametrize("records", [0, 3, 40, 400])
def test_steps_and_denominator_are_the_plans_whatever_the_number_of_records(records, silent):
    model = Pull()
    update = ward(records).train(LOCAL, model, np.zeros(2), silent)
    assert len(model.seen) == LOCAL.steps
    # The silent source draws everyone: the sum grows with the records, what it is divided by does not.
    np.testing.assert_allclose(update, np.full(2, -0.5 * LOCAL.steps * records * 0.25 / 8))


def test_removing_one_record_moves_one_step_by_at_most_the_clip_norm_over_the_batch_size(silent):
    class Far:
        def gradients(self, weights, values):
            return 1e6 * values

    values = np.random.default_rng(1).normal(size=(30, 4))
    one_step = replace(LOCAL, steps=1)
    whole = Client("ward", (values,), "a").train(one_step, Far(), np.zeros(4), silent)
    for gone in range(len(values)):
        less = Client("ward", (np.delete(values, gone, axis=0),), "a").train(one_step, Far(), np.zeros(4), silent)
        moved = np.linalg.norm(whole - less) / LOCAL.learning_rate * LOCAL.batch_size
        assert moved <= LOCAL.clip_norm * (1 + 1e-9)
        assert moved > 0.999 * LOCAL.clip_norm  # nothing is clipped shorter than it must be


def test_each_step_draws_a_new_sample_at_the_declared_rate():
    model, local = Pull(), replace(LOCAL, steps=400)
    ward(1000).train(local, model, np.zeros(2), SeededSource(2))
    assert stats.binomtest(sum(model.seen), 400 * 1000, 8 / 40).pvalue > FALSE_ALARM
    # Equal samples in all steps would have no variance between steps; Poisson samples have np(1 − p).
    statistic = float(np.var(model.seen, ddof=1)) * 399 / (1000 * 0.2 * 0.8)
    low, high = stats.chi2(399).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2])
    assert low < statistic < high


def test_an_update_without_records_is_noise_of_the_charged_size():
    class Nothing:
        def gradients(self, weights, values):
            return np.zeros((len(values), weights.size))

    update = ward(0).train(LOCAL, Nothing(), np.zeros(30_000), SeededSource(4))
    per_step = LOCAL.learning_rate * LOCAL.noise_multiplier * LOCAL.clip_norm / LOCAL.batch_size
    statistic = float(np.sum(update**2)) / (LOCAL.steps * per_step**2)
    low, high = stats.chi2(update.size).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2])
    assert low < statistic < high


def test_two_trainings_with_the_system_source_never_give_the_same_update():
    from dpfed.randomness import SystemSource

    first, second = (ward(5).train(LOCAL, Pull(), np.zeros(2), SystemSource()) for _ in range(2))
    assert np.all(first != second)


def test_a_record_that_overflows_the_model_does_not_stop_the_client(silent):
    class Overflowing:
        def gradients(self, weights, values):
            return np.exp(values) - np.exp(values)

    client = Client("ward", (np.array([[1.0, 1.0], [1e6, 0.0]]),), "account")
    assert client.train(LOCAL, Overflowing(), np.zeros(2), silent).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("rows", [np.zeros(2), np.zeros((1, 2)), np.zeros((5, 3)), np.zeros((5, 2, 1))])
def test_a_model_that_does_not_answer_record_by_record_is_refused(rows, silent):
    class Wrong:
        def gradients(self, weights, values):
            return rows

    with pytest.raises(InvalidArgument, match="one row of 2 numbers per record"):
        ward(5).train(LOCAL, Wrong(), np.zeros(2), silent)
    with pytest.raises(InvalidArgument, match="per record"):
        ward(5).rehearse(Wrong(), np.zeros(2))


def test_a_rehearsal_shows_the_model_no_record():
    model = Pull()
    ward(5).rehearse(model, np.zeros(2))
    assert model.seen == [0]


def test_records_are_not_shown_by_repr():
    assert repr(ward(5)) == "Client(name='ward', account='account')"


@pytest.mark.parametrize("data", [(), (np.ones(3), np.ones(4)), (np.float64(1.0),), (np.ones((2**20 + 1, 0)),)])
def test_data_without_one_axis_of_records_is_refused(data):
    with pytest.raises(InvalidArgument, match="one leading axis"):
        Client("ward", data, "account")
