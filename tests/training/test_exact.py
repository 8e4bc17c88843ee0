"""On the grid the sensitivity holds as computed: in rational arithmetic, for sums that were rounded and all.

Every draw takes all records (batch_size = size), so that two runs with one seed differ by the record alone.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpfed.errors import InvalidArgument
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import SeededSource
from dpfed.training import private as training
from dpfed.training.loop import Private
from dpfed.training.noise import NoiseSource, grid_sensitivity
from dpfed.training.private import make_private

PLAN = LocalPlan(size=8, batch_size=8, steps=1, clip_norm=0.7, noise_multiplier=1.3)
PLANS = {
    "flat": PLAN,
    "by layer": replace(PLAN, layers="each"),
    "L1": replace(PLAN, norm="l1"),
    "L1 by layer": replace(PLAN, norm="l1", layers="each"),
}


def a_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.PReLU(), nn.Flatten(), nn.Linear(16, 3), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(3, 1), nn.Flatten(0)).to(dtype)


def records(count: int, dtype: torch.dtype = torch.float32, scale: float = 1e3) -> tuple[Tensor, Tensor]:
    """Alike, so that their gradients add up, and most of them too long."""
    torch.manual_seed(1)
    x = torch.randn(1, 2, 6, dtype=dtype) + 0.1 * torch.randn(count, 2, 6, dtype=dtype)
    return x, scale * torch.rand(count, dtype=dtype)


def made(plan: LocalPlan, data: tuple[Tensor, Tensor], physical: int = 1, **options) -> Private:
    model = a_model(data[0].dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options = {"loss": nn.MSELoss(reduction="none"), "noise": "grid", "max_physical_batch": physical, **options}
    return make_private(model, optimizer, TensorDataset(*data), plan, source=SeededSource(5), **options)


def sum_of(plan: LocalPlan, data: tuple[Tensor, Tensor], physical: int = 1) -> list[float]:
    """What the noise is added to."""
    private = made(plan, data, physical, loss=None)
    for inputs, targets in next(private.loader):
        private.backward(nn.functional.mse_loss(private.model(inputs), targets, reduction="none"))
    assert {value.dtype for value in private._sum.values()} == {torch.float64}
    return torch.cat([value.flatten() for value in private._sum.values()]).tolist()


def released(plan: LocalPlan, data: tuple[Tensor, Tensor], physical: int = 1, **options) -> list[Fraction]:
    """The gradient that the optimizer gets, times the batch size, which is a power of two: exact in float64."""
    private = made(plan, data, physical, **options)
    seen: list[Tensor] = []
    private.optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: seen.extend(value.grad for value in private.model.parameters())
    )
    private.step(next(private.loader))
    return [Fraction(value) * plan.batch_size for value in torch.cat([value.flatten() for value in seen]).tolist()]


def without(data: tuple[Tensor, Tensor], place: int) -> tuple[Tensor, Tensor]:
    kept = [row for row in range(len(data[0])) if row != place]
    return data[0][kept], data[1][kept]


def require_within(moved: list[Fraction], bound: float, norm: str) -> None:
    if norm == "l1":
        assert sum(abs(value) for value in moved) <= Fraction(bound)
    else:
        assert sum(value * value for value in moved) <= Fraction(bound) ** 2


def std_and_grid(plan: LocalPlan, dimension: int) -> tuple[float, float]:
    noise = NoiseSource(mode="grid")
    std = noise.std(plan.noise, plan.clip_norm, dimension, plan.norm)
    return std, noise.grid(std)


def on(grid: float, value: float) -> Fraction:
    return round(Fraction(value) / Fraction(grid)) * Fraction(grid)


@pytest.mark.parametrize("name", PLANS)
def test_removing_any_example_moves_the_sum_on_the_grid_by_no_more_than_the_noise_pays_for(name: str):
    plan, data = PLANS[name], records(8)
    total = sum_of(plan, data)
    std, grid = std_and_grid(plan, len(total))
    bound = grid_sensitivity(plan.clip_norm, len(total), grid, plan.norm)
    assert Fraction(std) >= Fraction(plan.noise) * Fraction(bound)
    for place in range(8):
        other = sum_of(plan, without(data, place))
        exact = [Fraction(a) - Fraction(b) for a, b in zip(total, other, strict=True)]
        require_within(exact, plan.clip_norm, plan.norm)
        on_grid = [on(grid, a) - on(grid, b) for a, b in zip(total, other, strict=True)]
        require_within(on_grid, bound, plan.norm)


@pytest.mark.parametrize("name", PLANS)
def test_what_is_released_with_the_same_noise_moves_by_no_more_than_that_either(name: str):
    """With parameters in float64, so that nothing is rounded after the noise."""
    plan, data = PLANS[name], records(8, torch.float64)
    total = released(plan, data)
    _, grid = std_and_grid(plan, len(total))
    assert all(value % Fraction(grid) == 0 for value in total)
    for place in range(0, 8, 3):
        other = released(plan, without(data, place))
        moved = [a - b for a, b in zip(total, other, strict=True)]
        require_within(moved, grid_sensitivity(plan.clip_norm, len(total), grid, plan.norm), plan.norm)
        assert sum(abs(value) for value in moved) > Fraction(plan.clip_norm) / 2


@pytest.mark.parametrize("name", PLANS)
def test_larger_batches_in_float64_move_by_the_clip_norm_and_a_billionth(name: str):
    plan, data = PLANS[name], records(8, torch.float64)
    total = sum_of(plan, data, physical=3)
    for place in range(8):
        other = sum_of(plan, without(data, place), physical=3)
        moved = [Fraction(a) - Fraction(b) for a, b in zip(total, other, strict=True)]
        require_within(moved, plan.clip_norm * (1 + 1e-9), plan.norm)


@pytest.mark.parametrize("physical", [1, 16, 256])
def test_a_sum_is_that_of_the_examples_own_to_the_rounding_of_float64(physical: int):
    """One addition or norm in float32 would be off by 1e-8."""
    data = records(24, torch.float64)
    plan = replace(PLAN, size=24, batch_size=24)
    parts = [sum_of(plan, (data[0][[row]], data[1][[row]])) for row in range(24)]
    exact = [sum(map(Fraction, column)) for column in zip(*parts, strict=True)]
    found = sum_of(plan, data, physical)
    error = [Fraction(a) - b for a, b in zip(found, exact, strict=True)]
    require_within(error, 24 * 32 * 2.0**-53 * plan.clip_norm if physical == 1 else 1e-12, plan.norm)


def test_float32_models_are_added_up_in_float64_too():
    data, plan = records(24), replace(PLAN, size=24, batch_size=24)
    parts = [sum_of(plan, (data[0][[row]], data[1][[row]])) for row in range(24)]
    exact = [sum(map(Fraction, column)) for column in zip(*parts, strict=True)]
    error = [Fraction(a) - b for a, b in zip(sum_of(plan, data), exact, strict=True)]
    require_within(error, 24 * 32 * 2.0**-53 * plan.clip_norm, "l2")


def test_each_example_is_within_the_clip_norm_by_more_than_the_rounding_of_the_largest_draw():
    data = records(8)
    for plan in PLANS.values():
        share = Fraction(plan.clip_norm) * (1 - Fraction(2 * 2**38 + 16 * 2**19, 2**53))
        for row in range(8):
            alone = [Fraction(value) for value in sum_of(plan, (data[0][[row]], data[1][[row]]))]
            require_within(alone, float(share), plan.norm)


def test_gradients_a_million_times_longer_leave_what_is_released_unchanged():
    def longer(outputs: Tensor, targets: Tensor) -> Tensor:
        return 1e6 * nn.functional.mse_loss(outputs, targets, reduction="none")

    for plan in PLANS.values():
        data = records(8, torch.float64)
        once, again = released(plan, data), released(plan, data, loss=longer)
        assert all(abs(a - b) < 1e-9 for a, b in zip(once, again, strict=True))


def test_float32_parameters_get_what_was_noised_on_the_grid_rounded():
    private = made(PLAN, records(8))
    private.step(next(private.loader))
    assert {value.dtype for value in private.model.parameters()} == {torch.float32}
    assert private.arithmetic == "grid"


def test_a_draw_that_is_not_added_up_exactly_is_refused_on_the_grid_only(monkeypatch):
    """And before the first draw: later it would tell how many were drawn."""
    monkeypatch.setattr(training, "MOST_EXACT", 5)
    with pytest.raises(InvalidArgument, match="more than 5 records"):
        made(PLAN, records(8))
    made(PLAN, records(5)).close()
    private = made(PLAN, records(8), noise="float")
    private.step(next(private.loader))
