"""What a step lets out: the sum with the noise planned for the clip in force, and a count from the same draw."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dpfed
from clipped import squares
from dpfed.accounting import epsilon
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.events import Gaussian, PoissonSampled
from dpfed.plan.plan import AdaptiveClip, LocalPlan
from dpfed.randomness import SeededSource
from dpfed.training.engine.clip import LEAST_CLIP_NORM, MOST_CLIP_NORM
from dpfed.training.loop import Private
from dpfed.training.noise import NoiseSource, grid_sensitivity
from dpfed.training.private import make_private
from dpfed.training.release import Release
from one_by_one import gradients as one_by_one

FALSE_ALARM = 1e-6
ADAPTIVE = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=4.0)
PLAN = LocalPlan(size=40, batch_size=40, steps=3, clip_norm=1.0, noise_multiplier=2.0, adaptive=ADAPTIVE)
SILENT = replace(PLAN, noise_multiplier=1e-9, adaptive=replace(ADAPTIVE, count_noise=1e-9))


def a_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def records(count: int = 40) -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(torch.randn(count, 3), torch.randn(count))


def made(plan: LocalPlan, data: TensorDataset, model: nn.Module | None = None, **options) -> Private:
    model = model or a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return make_private(model, optimizer, data, plan, **{"loss": squares, **options})


def norms(model: nn.Module, data: TensorDataset) -> Tensor:
    x, y = data.tensors
    rows = one_by_one(squares(model(x), y), model)
    return torch.cat([value.double().flatten(1) for value in rows.values()], dim=1).norm(dim=1)


def count(lengths: Tensor, clip_norm: float) -> float:
    return float((lengths <= clip_norm).double().sub(0.5).sum())


class Listening(NoiseSource):
    """Noise that tells what it was added to."""

    def add(self, tensors, std, norm="l2"):
        self.heard, self.scale = dict(tensors), std
        return super().add(tensors, std, norm)


@pytest.mark.parametrize("total", [{"weight": torch.tensor([1 + 2.0**-40], dtype=torch.float64)}, {}])
def test_on_the_grid_no_sum_is_rounded_to_float32_before_it_has_noise(total):
    """Rounded on the way to the grid, two neighbouring sums could be further apart than the noise is planned for."""
    noise = Listening(mode="grid")
    plan = replace(PLAN, adaptive=None)
    assert Release(plan, noise, {"weight": torch.zeros(1)}).mean(total)["weight"].dtype == torch.float32
    assert noise.heard["weight"].dtype == torch.float64
    assert noise.heard["weight"].tolist() == [1 + 2.0**-40 if total else 0.0]


def test_the_noise_pays_for_rounding_every_number_of_the_model_to_the_grid():
    noise = Listening(mode="grid")
    plan = replace(PLAN, adaptive=None)
    Release(plan, noise, {"weight": torch.zeros(100, 90), "bias": torch.zeros(1000)}).mean({})
    assert noise.scale >= plan.sum_noise * grid_sensitivity(1.0, 10_000, noise.grid(noise.scale))


@pytest.mark.parametrize("layers", ["together", "each"])
@pytest.mark.parametrize("noise", ["float", "grid"])
@pytest.mark.parametrize("physical", [7, 256])
def test_the_clip_follows_the_count_of_gradients_that_are_short_enough(physical: int, noise: str, layers: str):
    plan = replace(SILENT, layers=layers)
    private = made(plan, records(), max_physical_batch=physical, noise=noise)
    clips = [private.clip_norm]
    for batch in private.loader:
        expected = plan.next_clip(clips[-1], count(norms(private.model, records()), clips[-1]))
        private._gradients._programs.capture.take()  # what the forward pass above recorded
        private.step(batch)
        assert private.clip_norm == pytest.approx(expected, rel=1e-9)
        clips.append(private.clip_norm)
    assert len(set(clips)) == 4


def test_the_clip_follows_from_noised_counts_alone():
    """The same noise again, without any data: what it made of the clip there tells what it added here."""
    noises = []
    empty = made(PLAN, records(0), source=SeededSource(4))
    for batch in empty.loader:
        before = empty.clip_norm
        empty.step(batch)
        noises.append(noise_behind(PLAN, before, empty.clip_norm))
    private = made(PLAN, records(), source=SeededSource(4))
    for noise, batch in zip(noises, private.loader, strict=True):
        before, exact = private.clip_norm, count(norms(private.model, records()), private.clip_norm)
        private._gradients._programs.capture.take()
        private.step(batch)
        assert private.clip_norm == pytest.approx(PLAN.next_clip(before, exact + noise), rel=1e-9)
        assert abs(noise) > 1e-3


def noise_behind(plan: LocalPlan, before: float, after: float) -> float:
    """The noised count that moved the clip, if none of the bounds was met."""
    share = plan.adaptive.quantile - math.log(after / before) / plan.adaptive.learning_rate
    assert 0 < share < 1
    return (share - 0.5) * plan.batch_size


@pytest.mark.parametrize("mode", ["float", "grid"])
def test_the_count_of_an_empty_draw_is_noise_of_the_planned_size(mode: str):
    """χ² on 2,000 counts and Kolmogorov and Smirnov's test, false alarm 1e-6 each."""
    plan = replace(PLAN, size=10**6, batch_size=10**6)
    release = Release(plan, NoiseSource(SeededSource(6), mode), {"w": torch.zeros(1)})
    drawn = []
    for _ in range(2000):
        before = release.clip_norm
        release.mean({})
        drawn.append(noise_behind(plan, before, release.clip_norm) / plan.adaptive.count_noise)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 2000)
    assert low < sum(value * value for value in drawn) < high
    assert stats.kstest(drawn, stats.norm.cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("mode", ["float", "grid"])
def test_the_noise_of_the_sum_is_that_of_the_clip_in_force_and_independent_of_the_counts(mode: str):
    """χ² on 12 × 20,000 draws, while the clip goes from 1 to about 50; false alarm 1e-6."""
    plan = replace(PLAN, adaptive=AdaptiveClip(0.99, 0.7, 1.5))
    release = Release(plan, NoiseSource(SeededSource(7), mode), {"w": torch.zeros(20_000, dtype=torch.float64)})
    total = 0.0
    for _ in range(12):
        clip = release.clip_norm
        noise = release.mean({})["w"] * plan.batch_size
        total += float((noise / (plan.sum_noise * clip)).square().sum())
    assert release.clip_norm > 10
    assert plan.sum_noise > plan.noise
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 12 * 20_000)
    assert low < total < high


def test_adding_one_example_moves_the_count_by_a_half():
    data, found = records(), []
    for size in range(38, 41):
        private = made(PLAN, TensorDataset(*(part[:size] for part in data.tensors)), loss=None)
        for inputs, targets in next(private.loader):
            private.backward(squares(private.model(inputs), targets))
        found.append(private._count)
    assert {abs(one - other) for one, other in pairwise(found)} == {0.5}


def test_sum_and_count_of_a_draw_are_charged_once_and_together(tmp_path, monkeypatch):
    """The charge is on disk when the first noise is drawn, and there is one for both."""
    plan, seen, add = replace(PLAN, batch_size=10), [], NoiseSource.add
    with dpfed.Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        account = ledger.open("icu", epsilon=20.0, delta=1e-5)
        private = made(plan, records(), account=account, run="r", ahead=1)
        monkeypatch.setattr(
            NoiseSource, "add", lambda *a: (seen.append(ledger.reservations()[0].committed), add(*a))[1]
        )
        batch = next(private.loader)
        private.step(batch)
        assert seen == [1, 1]
        with pytest.raises(PrivacyError):
            batch.token.use()
        one = PoissonSampled(Gaussian(plan.noise), plan.sample_rate)
        ledger.open("plain", epsilon=20.0, delta=1e-5).reserve({one: 1}, run="q").commit(one, 1)
        assert ledger.balance("icu").spent == pytest.approx(ledger.balance("plain").spent, rel=1e-6)
        assert private.spent(1e-5).epsilon == pytest.approx(epsilon(one, 1e-5), rel=1e-6)


def test_a_run_that_is_resumed_starts_from_the_plans_clip_or_the_one_that_was_reached():
    private = made(SILENT, records())
    private.step(next(private.loader))
    reached = private.clip_norm
    assert reached != SILENT.clip_norm
    assert made(SILENT, records()).clip_norm == SILENT.clip_norm
    assert made(replace(SILENT, clip_norm=reached), records()).clip_norm == reached


def test_a_run_goes_on_from_the_clip_that_was_reached_with_the_steps_that_are_left(tmp_path):
    with dpfed.Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        account = ledger.open("icu", epsilon=20.0, delta=1e-5)
        first = made(PLAN, records(), account=account, run="r", ahead=1)
        first.step(next(first.loader))  # and then it crashes
        again = made(replace(PLAN, clip_norm=first.clip_norm), records(), account=account, run="r", ahead=1)
        assert again.steps_taken == 1
        assert again.clip_norm == first.clip_norm != PLAN.clip_norm


def test_a_draw_that_failed_leaves_no_count_behind():
    private = made(SILENT, records(), loss=None)
    draws = private.loader
    for inputs, targets in next(draws):
        private.backward(squares(private.model(inputs), targets))
    assert private._count
    with pytest.raises(InvalidArgument, match="a second time"):
        private.backward(squares(private.model(inputs), targets))
    assert not private._count
    assert private.clip_norm == SILENT.clip_norm


@pytest.mark.parametrize(("start", "bound"), [(2 * LEAST_CLIP_NORM, LEAST_CLIP_NORM), (5e17, MOST_CLIP_NORM)])
def test_a_clip_never_leaves_the_numbers_that_sums_can_have(start: float, bound: float):
    is_low = bound == LEAST_CLIP_NORM
    adaptive = AdaptiveClip(1e-6 if is_low else 0.999, 50.0, 1e-9)
    plan = replace(SILENT, clip_norm=start, adaptive=adaptive)
    release = Release(plan, NoiseSource(), {"w": torch.zeros(2)})
    for _ in range(3):
        release.mean({}, count=20.0 if is_low else -20.0)
    assert release.clip_norm == bound


def test_a_fixed_clip_stays_where_it_is_whatever_the_count():
    release = Release(replace(PLAN, adaptive=None), NoiseSource(), {"w": torch.zeros(2)})
    release.mean({"w": torch.ones(2)}, count=20.0)
    assert release.clip_norm == 1.0


def test_the_sum_is_divided_by_the_planned_batch_and_parameters_without_one_are_zero():
    plan = replace(SILENT, adaptive=None)
    for mode in ("float", "grid"):
        parameters = {"a": torch.zeros(2), "b": torch.zeros(1, 2, dtype=torch.float64)}
        found = Release(plan, NoiseSource(mode=mode), parameters).mean({"a": torch.tensor([4.0, 8.0])})
        assert found["a"].tolist() == pytest.approx([0.1, 0.2])
        assert found["b"].tolist() == [pytest.approx([0.0, 0.0], abs=1e-6)]
        assert {name: value.dtype for name, value in found.items()} == {"a": torch.float32, "b": torch.float64}


@pytest.mark.parametrize("mode", ["float", "grid"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_an_empty_draw_is_rounded_like_a_draw_whose_gradients_are_zero(norm: str, mode: str):
    """Otherwise the last bits after the noise would tell that nobody was drawn."""
    plan = replace(PLAN, adaptive=None, norm=norm, batch_size=7)
    empty, zero = (
        Release(plan, NoiseSource(SeededSource(9), mode), {"w": torch.zeros(1000)}).mean(total)["w"]
        for total in ({}, {"w": torch.zeros(1000, dtype=torch.float64)})
    )
    assert torch.equal(empty, zero)


def test_laplace_noise_has_the_planned_scale():
    """−log of the tail of 20,000 draws is exponential: χ² of 40,000 degrees of freedom; false alarm 1e-6."""
    plan = replace(PLAN, adaptive=None, norm="l1", clip_norm=3.0)
    for mode in ("float", "grid"):
        release = Release(plan, NoiseSource(SeededSource(8), mode), {"w": torch.zeros(20_000)})
        noise = release.mean({})["w"].double() * plan.batch_size / (2.0 * 3.0)
        low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 40_000)
        assert low < 2 * float(noise.abs().sum()) < high
