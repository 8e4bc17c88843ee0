"""Many models at once: each with its own data, plan and noise, and the same as one after the other."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

import dpfed
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.local import LocalPlan
from dpfed.randomness import SeededSource, SystemSource
from dpfed.training.many.batch_tuner import BatchTuner
from dpfed.training.many.ensemble import Ensemble, Unsupported
from dpfed.training.many.train import Member, train_many, train_together
from dpfed.training.optimizing import OptimizerSettings
from dpfed.training.private import make_private

FALSE_ALARM = 1e-6
LOSS = nn.CrossEntropyLoss(reduction="none")
PLAN = LocalPlan(size=20, batch_size=10, steps=4, clip_norm=0.5, noise_multiplier=0.7, learning_rate=0.3)
PLAIN = LocalPlan(size=20, batch_size=10, steps=4, learning_rate=0.3)


def data(*sizes: int, features: int = 6) -> list[tuple[np.ndarray, np.ndarray]]:
    draws = np.random.default_rng(3)
    return [(draws.normal(size=(size, features)), draws.integers(0, 3, size)) for size in sizes]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))


def flat(parameters) -> torch.Tensor:
    return torch.cat([value.flatten() for value in parameters.values()]).double()


def test_it_is_there_for_everybody():
    assert dpfed.train_many is train_many
    assert "train_many" in dir(dpfed)


@pytest.mark.parametrize("one_pass", [None, False])
@pytest.mark.parametrize("chunk", [None, 1, 2, 7])
def test_private_models_are_those_of_make_private(chunk, one_pass):
    datasets = data(20, 13, 31, 0, 1)
    plans = [dataclasses.replace(PLAN, size=40, batch_size=5 + n, clip_norm=0.2 + n, steps=3 + n % 2) for n in range(5)]
    found = train_many(network(), datasets, plans, loss=LOSS, source=SeededSource(4), chunk=chunk, one_pass=one_pass)
    for number in (0, 1, 2, 4):  # make_private refuses a data set without records
        model = network()
        inputs, targets = map(torch.as_tensor, datasets[number])
        private = make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.3),
            TensorDataset(inputs.float(), targets),
            plans[number],
            source=SeededSource(4).once(f"model {number}"),
        )
        for batch in private.loader:
            for x, y in batch:
                private.backward(LOSS(model(x), y))
            private.optimizer.step()
        wanted = dict(model.named_parameters())
        assert torch.allclose(flat(found[number]), flat(wanted).detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("one_pass", [True, False])
@pytest.mark.parametrize(
    "recipe",
    [OptimizerSettings(), OptimizerSettings(momentum=0.9, weight_decay=0.1), OptimizerSettings(optimizer="adamw")],
)
def test_plain_models_are_those_of_a_loop(recipe, one_pass):
    datasets, model = data(20, 20), network()
    plan = dataclasses.replace(PLAIN, batch_size=20, steps=3)  # whole passes, so the order does not matter
    for trained, (inputs, targets) in zip(
        train_many(model, datasets, [plan] * 2, loss=LOSS, recipe=recipe, one_pass=one_pass), datasets, strict=True
    ):
        own = network()
        optimizer = recipe.optimizer_of(own.parameters(), 0.3)
        for _ in range(3):
            optimizer.zero_grad()
            LOSS(own(torch.as_tensor(inputs).float()), torch.as_tensor(targets)).mean().backward()
            optimizer.step()
        assert torch.allclose(flat(trained), flat(dict(own.named_parameters())).detach(), atol=1e-5)


def test_the_model_itself_stays_as_it_is():
    model = network()
    before = flat(dict(model.named_parameters())).detach().clone()
    train_many(model, data(20, 20), [PLAN] * 2, loss=LOSS)
    assert torch.equal(before, flat(dict(model.named_parameters())).detach())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_other_data_of_one_model_leave_all_others_bit_for_bit():
    first_step = [dataclasses.replace(plan, steps=1) for plan in (PLAN, PLAIN)]
    for plan, chunk, one_pass in itertools.product((PLAN, PLAIN, *first_step), (None, 4), (True, False)):
        before = data(20, 20, 20, 20)
        after = [*before[:2], (before[2][0] * 1e6, before[2][1]), before[3]]
        one, other = (
            train_many(network(), sets, [plan] * 4, loss=LOSS, source=SeededSource(1), chunk=chunk, one_pass=one_pass)
            for sets in (before, after)
        )
        assert not torch.equal(flat(one[2]), flat(other[2]))
        assert all(torch.equal(flat(one[k]), flat(other[k])) for k in (0, 1, 3))


def noise_of(source, steps: int = 1, dtype=torch.float64) -> list[np.ndarray]:
    """The noise on three models without data, in units of what their plans ask for."""
    model = nn.Linear(100, 40, dtype=dtype)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    plans = [
        LocalPlan(size=9, batch_size=3, steps=steps, clip_norm=clip, noise_multiplier=noise, learning_rate=1.0)
        for clip, noise in ((1.0, 1.0), (0.5, 3.0), (1.0, 1.0))
    ]
    found = train_many(model, data(0, 0, 0, features=100), plans, loss=LOSS, source=source)
    return [
        (flat(part) * 3 / (plan.clip_norm * plan.noise * steps**0.5)).numpy()
        for part, plan in zip(found, plans, strict=True)
    ]


@pytest.mark.parametrize("source", [SystemSource, lambda: SeededSource(2)])
@pytest.mark.parametrize(("steps", "dtype"), [(1, torch.float32), (5, torch.float32), (1, torch.float64)])
def test_every_model_has_noise_of_its_own_plan_also_when_nobody_is_drawn(source, steps, dtype):
    noises = noise_of(source(), steps, dtype)
    for noise in noises:
        assert stats.kstest(noise, "norm").pvalue > FALSE_ALARM
        spread = (noise**2).sum()
        assert min(stats.chi2.cdf(spread, noise.size), stats.chi2.sf(spread, noise.size)) > FALSE_ALARM / 2
    for one, other in itertools.combinations(noises, 2):
        assert dtype == torch.float32 or not np.isin(one, other).any()  # float32 has few numbers, some come twice
        assert stats.pearsonr(one, other).pvalue > FALSE_ALARM


def test_noise_never_comes_twice():
    first, second = noise_of(None), noise_of(None)
    assert not np.isin(np.concatenate(first), np.concatenate(second)).any()


@pytest.mark.parametrize("source", [SystemSource, lambda: SeededSource(2)])
def test_no_model_has_the_noise_of_another(source):
    """Correlations of 4,040 numbers each; false alarm 2e-6."""
    noises = noise_of(source())
    correlations = np.corrcoef(noises)[np.triu_indices(len(noises), 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(len(noises[0]))


def test_one_record_moves_the_mean_of_a_step_by_the_clip_norm_over_the_batch_size():
    # The noise is far below what a record may do, and everybody is drawn.
    plan = LocalPlan(size=5, batch_size=5, steps=1, clip_norm=0.5, noise_multiplier=1e-6, learning_rate=1.0)
    inputs, targets = data(5)[0]
    fewer, longer = (inputs[:4], targets[:4]), (inputs * [[1], [1], [1], [1], [1e6]], targets)
    one, two, three = train_many(network(), [(inputs, targets), fewer, longer], [plan] * 3, loss=LOSS)
    assert 0.099 < float((flat(one) - flat(two)).norm()) < 0.1 + 1e-5
    assert float((flat(three) - flat(two)).norm()) < 0.1 + 1e-5


def first_of(count: int, plan: LocalPlan, chunk: int, counts: list[int]) -> torch.Tensor:
    """The first of so many models, and in `counts` how many there were in each pass."""

    class Counting(Ensemble):
        def stacked(self, count, weights=None):
            counts.append(count)
            return super().stacked(count, weights)

    model, found = network(), {}
    pairs = [(torch.tensor(inputs).float(), torch.tensor(labels)) for inputs, labels in data(*[7] * count)]
    tuner = BatchTuner(Counting(model, LOSS, pairs[0]))
    counts.clear()
    members = [Member(*pair, plan, SeededSource(number), width=15) for number, pair in enumerate(pairs)]
    first = {name: value.detach() for name, value in model.named_parameters()}
    for places, parameters in train_together(tuner, members, first, OptimizerSettings(), chunk=chunk):
        found |= {place: {name: value[row] for name, value in parameters.items()} for row, place in enumerate(places)}
    assert sorted(found) == list(range(count))
    return flat(found[0])


@pytest.mark.parametrize("plan", [PLAN, PLAIN])
def test_a_model_that_is_left_over_is_trained_beside_a_twin_and_no_other_model_is(plan):
    counts: list[int] = []
    one, two = (first_of(count, plan, 16, counts) for count in (1, 2))
    assert torch.equal(one, two)
    for count, chunk, passes in ((1, 16, [2]), (2, 16, [2]), (3, 2, [2, 2]), (5, 16, [5]), (2, 1, [1, 1])):
        first_of(count, plan, chunk, counts)
        assert counts == passes


def test_a_plain_model_without_records_stays_as_it_is():
    model = network()
    found = train_many(model, data(0, 20), [PLAIN] * 2, loss=LOSS, recipe=OptimizerSettings(weight_decay=0.5))
    assert torch.equal(flat(found[0]), flat(dict(model.named_parameters())).detach())
    assert not torch.equal(flat(found[0]), flat(found[1]))


def test_a_model_that_has_no_gradient_at_zeros_may_have_fewer_records_than_another():
    class Directions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.last = nn.Linear(6, 3)

        def forward(self, x):
            hidden = self.linear(x) * x
            return self.last(hidden / hidden.norm(dim=1, keepdim=True))

    for plan in (PLAIN, PLAN):
        found = train_many(Directions(), data(3, 20), [plan] * 2, loss=LOSS, chunk=2)
        assert all(flat(part).isfinite().all() for part in found)


def refused(match: str, *, error=InvalidArgument, model=None, datasets=None, plans=None, loss=LOSS, **options):
    datasets = data(20, 20) if datasets is None else datasets
    plans = [PLAN] * len(datasets) if plans is None else plans
    with pytest.raises(error, match=match) as caught:
        train_many(network() if model is None else model, datasets, plans, loss=loss, **options)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_trained_is_refused_in_a_sentence():
    good = data(20)[0]
    refused("one LocalPlan for each data set", plans=[PLAN])
    refused("one LocalPlan for each data set", datasets=[], plans=[])
    refused("one LocalPlan for each data set", plans=[PLAN, None])
    refused("pair of arrays", datasets=[good, good[0]])
    refused("equally many rows, one for each record", datasets=[good, (good[0], good[1][:5])])
    refused("one shape and type", datasets=[good, (good[0][:, :5], good[1])])
    refused("one shape and type", datasets=[good, (good[0], good[1].astype(float))])
    refused("data set 1 has values that are not finite", datasets=[good, (good[0] * np.nan, good[1])])
    refused("fails on", model=nn.Linear(7, 3))
    refused("all be float32 or all float64 to stack, got none", model=network().requires_grad_(False))
    refused("all be float32 or all float64", model=network().half())
    refused("one number per example", loss=nn.CrossEntropyLoss())
    refused("removing one example", loss=lambda outputs, targets: LOSS(outputs, targets) / len(outputs))
    refused("mixes|moved", loss=lambda outputs, targets: LOSS(outputs, targets) / len(outputs) * outputs.sum().detach())
    refused("BatchNorm", model=nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    refused("cannot be trained at once", error=Unsupported, model=nn.Sequential(network(), nn.Dropout(0.1)))
    refused("chunk", chunk=0)
    refused("fails on a record", datasets=[good, (good[0], np.where(np.arange(20) == 7, 3, good[1]))])
    broken = network()
    nn.init.constant_(broken[0].weight, torch.nan)
    refused("NaN or infinite", model=broken)


@pytest.mark.parametrize(
    "change",
    [{"norm": "l1"}, {"layers": "each"}, {"adaptive": AdaptiveClip(0.5, 0.2, 8.0)}, {"batch_size": 2000}],
)
def test_plans_of_other_kinds_are_refused(change):
    plan = dataclasses.replace(PLAN, size=4000, **change)
    refused("one model at a time", plans=[PLAN, plan])


@pytest.mark.parametrize("change", [{"clip_norm": 1e-12}, {"clip_norm": 1e-8, "noise_multiplier": 1e-25}])
def test_noise_that_float32_would_lose_is_refused(change):
    refused("clip_norm|std", plans=[PLAN, dataclasses.replace(PLAN, **change)])


def test_a_model_that_runs_away_is_refused():
    refused("no longer finite", error=PrivacyError, plans=[dataclasses.replace(PLAIN, learning_rate=1e30)] * 2)


def test_a_token_outside_the_table_is_refused_whosever_it_is():
    """Under vmap it would be looked up in the table of the next model."""
    model = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2))
    tokens, labels = np.arange(60).reshape(20, 3) % 5, np.arange(20) % 2
    outside = tokens.copy()
    outside[13, 1] = 5
    assert len(train_many(model, [(tokens, labels)] * 2, [PLAN] * 2, loss=LOSS)) == 2
    for place in (0, 1, 2):
        datasets = [(outside if number == place else tokens, labels) for number in range(3)]
        refused("tokens outside its table", model=model, datasets=datasets)


def test_models_are_grouped_by_their_plans_alone():
    """A model without records stays with the others, so that nobody trains in another company because of it."""
    kinds = {Member(torch.zeros(size, 6), torch.zeros(size).long(), PLAIN, SystemSource()).kind for size in (0, 1, 40)}
    assert len(kinds) == 1


def test_isolated_models_are_those_of_a_plain_training_up_to_rounding():
    datasets = data(20, 13, 31)
    options = {"loss": LOSS, "chunk": 2, "one_pass": False}
    apart = train_many(network(), datasets, [PLAIN] * 3, source=SeededSource(4), isolated=True, **options)
    plain = train_many(network(), datasets, [PLAIN] * 3, source=SeededSource(4), **options)
    for one, two in zip(apart, plain, strict=True):
        assert torch.allclose(flat(one), flat(two), rtol=0, atol=1e-5)


def test_an_isolated_model_that_diverges_is_returned_and_the_others_are_as_without_it():
    datasets = data(20, 20, 20)
    broken = [datasets[0], (datasets[1][0] * 1e37, datasets[1][1]), datasets[2]]
    found, wanted = (
        train_many(
            network(), some, [PLAIN] * 3, loss=LOSS, source=SeededSource(4), chunk=3, one_pass=False, isolated=True
        )
        for some in (broken, datasets)
    )
    assert not flat(found[1]).isfinite().all()
    assert torch.equal(flat(found[0]), flat(wanted[0]))
    assert torch.equal(flat(found[2]), flat(wanted[2]))


@pytest.mark.parametrize(
    ("plan", "pinned"), [(PLAIN, {}), (PLAIN, {"chunk": 2}), (PLAN, {"chunk": 2, "one_pass": False})]
)
def test_isolated_models_need_pinned_shapes_and_no_noise(plan, pinned):
    with pytest.raises(InvalidArgument, match="chunk and one_pass"):
        train_many(network(), data(20), [plan], loss=LOSS, isolated=True, **pinned)
