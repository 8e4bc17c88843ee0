"""Optimizer settings, and factors of the learning rate by the number of the step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dpfed.errors import InvalidArgument
from dpfed.training.optimizing import Constant, Cosine, OptimizerSettings, Recipe, Step


def by_torch(scheduler, steps, **options):
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    schedule = scheduler(optimizer, **options)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_constant_is_one_throughout():
    assert [Constant().factor(step, 5) for step in range(5)] == [1.0] * 5


@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_cosine_is_that_of_torch(floor):
    expected = by_torch(torch.optim.lr_scheduler.CosineAnnealingLR, 9, T_max=9, eta_min=floor)
    assert [Cosine(floor).factor(step, 9) for step in range(9)] == pytest.approx(expected)


def test_step_is_that_of_torch():
    expected = by_torch(torch.optim.lr_scheduler.StepLR, 9, step_size=4, gamma=0.3)
    assert [Step(4, by=0.3).factor(step, 9) for step in range(9)] == pytest.approx(expected)


@pytest.mark.parametrize("make", [lambda: Cosine(1.0), lambda: Cosine(-0.1), lambda: Step(0), lambda: Step(2, by=0.0)])
def test_numbers_out_of_range_are_refused(make):
    with pytest.raises(InvalidArgument):
        make()


def test_schedules_are_values():
    assert Cosine(0.1) == Cosine(0.1)
    assert Step(3) != Step(4)
    assert all(math.isfinite(schedule.factor(10**6, 10**6 + 1)) for schedule in (Constant(), Cosine(), Step(10)))


def test_the_name_of_earlier_releases_goes_on_working():
    assert Recipe is OptimizerSettings
