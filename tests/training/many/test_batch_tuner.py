"""How many models are trained at once: measured by a clock, and bounded by memory."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from dpfed.training.many.batch_tuner import BatchTuner, Work
from dpfed.training.many.ensemble import Ensemble
from dpfed.training.many.train import make_up_examples

LOSS = nn.CrossEntropyLoss(reduction="none")
NETWORK = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))


def test_more_models_at_once_are_tried_until_they_lose():
    ensemble = Ensemble(NETWORK, LOSS, make_up_examples(torch.zeros(1, 6), torch.zeros(1, dtype=torch.long)))

    class Clocked(BatchTuner):
        """A made-up clock."""

        def __init__(self, seconds) -> None:
            super().__init__(ensemble)
            self.tried, self._made_up = [], seconds

        def _measure(self, models, batch_size, is_private, is_shared):
            self.tried.append(models)
            return self._made_up(models, is_shared)

    work = Work(steps=4, batch_size=10, is_private=True, is_shared=False)
    dispatch = Clocked(lambda models, _: 1e-3 + 1e-9 * models)
    assert [dispatch.choose_count(k, work) for k in (1, 2, 4, 17, 1000)] == [1, 4, 4, 64, 1024]
    assert Clocked(lambda models, _: 1e-3 * models).choose_count(1000, work) == 1
    dip = Clocked(lambda models, _: {1: 1e-4, 4: 4.2e-4, 16: 12e-4}.get(models, 1e-4 * models))
    assert dip.choose_count(1000, work) == 16
    assert max(dip.tried) == 64
    slow = Clocked(lambda models, _: 0.011 * models**0.5)
    assert slow.choose_count(1000, work) == 4
    assert max(slow.tried) == 4
    assert len(slow.tried) == len([k for k in slow.tried if slow.choose_count(k, work)])


def test_a_first_step_in_one_pass_counts_with_its_own_time():
    ensemble = Ensemble(NETWORK, LOSS, make_up_examples(torch.zeros(1, 6), torch.zeros(1, dtype=torch.long)))

    class Clocked(BatchTuner):
        def _measure(self, models, batch_size, is_private, is_shared):
            return 1e-4 if is_shared else 1e-3 * models  # only what is shared gains

    work = Work(steps=1, batch_size=10, is_private=True, is_shared=True)
    assert Clocked(ensemble).choose_count(1000, work) == 1024
    assert Clocked(ensemble).choose_count(1000, dataclasses.replace(work, is_shared=False)) == 1
    assert Clocked(ensemble).choose_count(1000, dataclasses.replace(work, steps=2)) == 64  # 0.032 s are long


def test_memory_bounds_the_models_at_once():
    ensemble = Ensemble(nn.Linear(6, 3), LOSS, make_up_examples(torch.zeros(1, 6), torch.zeros(1, dtype=torch.long)))
    one = 4 * ensemble.bytes_per_model + 1000 * ensemble.bytes_per_example
    work = Work(steps=1, batch_size=1000, is_private=False, is_shared=True)
    assert BatchTuner(ensemble).choose_count(10**6, work) <= (1 << 28) // one
