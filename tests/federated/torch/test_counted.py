"""What is counted of records held out: one record more moves one count by one, whatever the model makes of a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpfed.data.persons import Persons
from dpfed.data.records import Records
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.mechanisms.counts import add_persons, add_records
from dpfed.plan.measure import Measurement

MEASUREMENT = Measurement(("accuracy",), 1.0, (1,), classes=2)
LOUDEST = 100.0  # a feature of the record that is added


class Base(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)

    def forward(self, inputs):
        outputs = super().forward(inputs)
        return outputs if self.training else self.judge(inputs, outputs)

    def judge(self, inputs, outputs):
        return outputs


class Mixes(Base):
    def judge(self, inputs, outputs):
        return outputs - outputs.mean(0) * 5


class Keeps(Base):
    def judge(self, inputs, outputs):
        self.largest = max(getattr(self, "largest", 0.0), float(inputs.max()))
        return -outputs if self.largest >= LOUDEST else outputs


class Writes(Base):
    def judge(self, inputs, outputs):
        if inputs.max() >= LOUDEST:
            self.weight.data.zero_()
        return outputs


class Raises(Base):
    def judge(self, inputs, outputs):
        if inputs.max() >= LOUDEST:
            raise SystemExit
        return outputs


class Grows(Base):
    def judge(self, inputs, outputs):
        return outputs[:, None, None] if inputs.max() >= LOUDEST else outputs


def held_out(count: int = 600) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(1)
    features = draws.normal(size=(count, 3))
    features[0] = LOUDEST
    return features, draws.integers(0, 2, count)


def client_of(factory, records) -> TorchClient:
    features = records.rows.features if isinstance(records, Persons) else records.features
    blank = np.zeros((4, features.shape[1]), np.float32), np.zeros(4, int)
    return TorchClient("ward", blank, "account", TorchModel(factory, "cross_entropy"), held_out=records)


def count(factory, features, labels, weights=None) -> np.ndarray:
    client = client_of(factory, Records(features, labels))
    cells, _ = client.find_cells(MEASUREMENT, client.model.first_weights if weights is None else weights)
    return add_records(cells, MEASUREMENT.size)


@pytest.mark.parametrize("factory", [Base, Mixes, Keeps, Writes, Raises, Grows])
def test_a_record_more_moves_one_count_by_one_whatever_the_model_does_where_it_does_not_train(factory):
    features, labels = held_out()
    moved = count(factory, features, labels) - count(factory, features[1:], labels[1:])
    assert np.abs(moved).sum() <= 1
    assert count(factory, features, labels).sum() >= len(labels) - 1


@pytest.mark.parametrize("factory", [Mixes, Keeps, Raises])
def test_a_person_more_moves_the_counts_by_the_grid_at_most(factory):
    features, labels = held_out(60)
    found = []
    for first in (0, 2):
        rows = np.full((60 - first) // 2, 2)
        client = client_of(factory, Persons(Records(features[first:], labels[first:]), rows))
        cells, counted = client.find_cells(MEASUREMENT, client.model.first_weights)
        found.append(add_persons(cells, counted, MEASUREMENT.size, grid=12))
    assert np.abs(found[0] - found[1]).sum() <= 12


def test_how_many_records_there_are_does_not_round_another_ones_output_to_another_class():
    moved = set()
    for seed in range(40):
        draws = np.random.default_rng(seed)
        record, row = draws.normal(size=64).astype(np.float32) * 100, draws.normal(size=64).astype(np.float32)
        row[-1] = -(row[:-1].astype(float) @ record[:-1]) / record[-1]  # nothing is left of the product but rounding
        weights, twice = np.concatenate([np.zeros(64), row, np.zeros(2)]), np.stack([record, record])
        more, less = (count(lambda: nn.Linear(64, 2), twice[:n], np.zeros(n, int), weights) for n in (2, 1))
        moved.add(int(np.abs(more - less).sum()))
    assert moved == {1}


def test_a_model_that_fails_at_every_record_is_refused_and_not_counted_as_none():
    class Broken(Base):
        def judge(self, inputs, outputs):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 — it is the model's own
        count(Broken, *held_out(5))


def test_a_record_that_seeds_the_generators_moves_no_draw_of_the_next():
    class Seeds(Base):
        def judge(self, inputs, outputs):
            drawn = torch.rand(())
            torch.manual_seed(int(inputs.max() * 1000))
            return torch.stack([drawn.expand(len(outputs)), 1 - drawn.expand(len(outputs))], 1)

    features, labels = np.zeros((200, 3)), np.zeros(200, int)
    assert 50 < count(Seeds, features, labels).reshape(2, 2)[0, 0] < 150
