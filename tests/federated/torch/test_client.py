"""A client with a torch model releases what its plan noised, and leaves nothing behind for the next one."""

from __future__ import annotations

import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from dpfed.errors import InvalidArgument
from dpfed.federated.torch.client import TorchClient, TorchModel, layout_of
from dpfed.models.logistic import Logistic
from dpfed.models.mlp import MLP
from dpfed.plan.plan import LocalPlan
from dpfed.plan.tree import TreeNoise
from dpfed.randomness import SeededSource, SystemSource
from dpfed.training.objective import LocalObjective
from dpfed.training.optimizing import OptimizerSettings, Step
from dpfed.training.sampling import PassSampler

FALSE_ALARM = 1e-6
SILENT = 1e-9  # a noise multiplier so small that what is left is what the noise was to hide
LOCAL = LocalPlan(size=40, batch_size=8, steps=3, learning_rate=0.5, clip_norm=1.0, noise_multiplier=2.0)
WHOLE = LocalPlan(size=20, batch_size=20, steps=1, learning_rate=0.5, clip_norm=0.3, noise_multiplier=SILENT)
PLAIN = LocalPlan(size=20, batch_size=20, steps=1, learning_rate=0.5)
small = partial(Logistic, features=4, classes=3)


def records(count=20, seed=1, features=4, classes=3):
    draws = np.random.default_rng(seed)
    return draws.normal(size=(count, features)), draws.integers(0, classes, count)


def model(factory=small, loss="cross_entropy", **options) -> TorchModel:
    return TorchModel(factory, loss, **options)


def ward(data=None, shared=None) -> TorchClient:
    return TorchClient("ward", records() if data is None else data, "account", shared or model())


def trained(client, local=LOCAL, seed=3, weights=None, **terms):
    start = client.model.first_weights if weights is None else weights
    return client.train(local, LocalObjective(start, **terms), SeededSource(seed))


def gradients(data, module):
    """The gradient of every record on its own, in float64."""
    rows = []
    for features, label in zip(*data, strict=True):
        loss = nn.functional.cross_entropy(module(torch.tensor(features)[None]), torch.tensor([label]))
        found = torch.autograd.grad(loss, list(module.parameters()))
        rows.append(np.concatenate([part.numpy().ravel() for part in found]))
    return np.array(rows)


# ---- with noise ----


def test_a_step_is_the_clipped_sum_over_the_declared_batch_size():
    data = records(12)
    found = trained(ward(data), WHOLE)
    rows = gradients(data, small().double())
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    assert (norms > 0.3).any()
    expected = -0.5 * (rows * np.minimum(1, 0.3 / norms)).sum(axis=0) / 20  # twelve records, and twenty declared
    np.testing.assert_allclose(found, expected, atol=5e-6)


def test_removing_one_record_moves_a_step_by_at_most_the_clip_norm_over_the_batch_size():
    features, labels = records()
    shared, moved = model(), []
    whole = trained(ward((5 * features, labels), shared), WHOLE)
    for gone in range(len(labels)):
        less = np.delete(5 * features, gone, axis=0), np.delete(labels, gone)
        moved.append(np.linalg.norm(whole - trained(ward(less, shared), WHOLE)))
    most = WHOLE.learning_rate * WHOLE.clip_norm / WHOLE.batch_size
    assert 0.999 * most < max(moved) <= most  # float32 gradients are cut to a little less than the clip norm


def test_an_update_without_records_is_noise_of_the_charged_size():
    shared = model(partial(MLP, features=4, hidden=(2000,), classes=3))
    empty = np.zeros((0, 4)), np.zeros(0, dtype=int)
    found = trained(ward(empty, shared), LOCAL)
    per_step = LOCAL.learning_rate * LOCAL.noise_multiplier * LOCAL.clip_norm / LOCAL.batch_size
    statistic = float(np.sum(found**2)) / (LOCAL.steps * per_step**2)
    low, high = stats.chi2(found.size).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2])
    assert low < statistic < high


def test_each_step_draws_poisson_samples_at_the_declared_rate():
    seen = []

    class Counting(Logistic):
        def forward(self, inputs):
            seen.append(len(inputs))
            return super().forward(inputs)

    client = ward(records(1000), model(partial(Counting, 4, 3)))
    local = replace(LOCAL, steps=60)
    client.rehearse(local, client.model.first_weights)
    seen.clear()
    trained(client, local)
    assert stats.binomtest(sum(seen), 60 * 1000, 8 / 40).pvalue > FALSE_ALARM  # in pieces of at most 256


def test_two_trainings_with_the_system_source_never_give_the_same_update():
    client = ward()
    first, second = (client.train(LOCAL, client.model.first_weights, SystemSource()) for _ in range(2))
    assert np.mean(first != second) > 0.9


def test_the_recipe_comes_after_the_noise():
    """At the same draws Adam's first step has length η in every coordinate, momentum's first is that of SGD."""
    one = replace(LOCAL, steps=1)
    plain = trained(ward(), one)
    adam = trained(ward(shared=model(recipe=OptimizerSettings(optimizer="adam"))), one)
    np.testing.assert_allclose(adam, 0.5 * np.sign(plain), rtol=1e-4)
    momentum = trained(ward(shared=model(recipe=OptimizerSettings(momentum=0.9))), one)
    assert momentum.tolist() == plain.tolist()


def test_a_schedule_multiplies_the_rate_of_later_steps():
    slow = model(recipe=OptimizerSettings(schedule=Step(every=1, by=1e-20)))
    np.testing.assert_allclose(trained(ward(shared=slow)), trained(ward(), replace(LOCAL, steps=1)), atol=1e-7)


@pytest.mark.parametrize("local", [LOCAL, replace(PLAIN, batch_size=8)], ids=["private", "plain"])
def test_the_proximal_term_is_added_after_clipping_and_noise(local):
    """At the same draws a second step differs by −η·μ·(w₁ − w₀), however large μ is."""
    client = ward(shared=model(partial(nn.Linear, 4, 3, dtype=torch.float64)))
    one, two = (trained(client, replace(local, steps=steps)) for steps in (1, 2))
    pulled = trained(client, replace(local, steps=2), pull=1000.0)
    np.testing.assert_allclose(pulled, two - local.learning_rate * 1000.0 * one, rtol=1e-9)
    assert trained(client, replace(local, steps=1), pull=1000.0).tolist() == one.tolist()


@pytest.mark.parametrize("local", [LOCAL, replace(PLAIN, batch_size=8)], ids=["private", "plain"])
def test_shift_and_anchor_are_added_after_clipping_and_noise(local):
    """At the same draws the first step differs by −η·(shift + pull·(w₀ − anchor)), however large these are."""
    client = ward(shared=model(partial(nn.Linear, 4, 3, dtype=torch.float64)))
    shift, first = 1e6 * np.arange(1.0, 16.0), client.model.first_weights
    one = replace(local, steps=1)
    moved = trained(client, one, shift=shift, anchor=first - 3.0, pull=1e3)
    np.testing.assert_allclose(moved, trained(client, one) - local.learning_rate * (shift + 3e3), rtol=1e-9)


def test_a_parameter_that_no_loss_reaches_follows_the_shift():
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.idle = nn.Linear(4, 3), nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return self.linear(x)

    client = ward(shared=model(Idle))
    shift = np.zeros(client.model.layout.size)
    shift[:2] = 1.0  # the model's own parameters come before those of its layers
    assert client.model.layout.names[0] == "idle"
    one = replace(PLAIN, batch_size=8, steps=1)
    assert trained(client, one)[:2].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(trained(client, one, shift=shift)[:2], -one.learning_rate * shift[:2], rtol=1e-6)


# ---- without noise ----


def test_without_noise_a_step_is_that_of_the_mean_gradient():
    data = records()
    found = trained(ward(data), PLAIN)
    np.testing.assert_allclose(found, -0.5 * gradients(data, small().double()).mean(axis=0), atol=1e-6)


def test_a_pass_over_the_data_sees_every_record_once_and_the_next_in_another_order():
    seen = []

    class Watching(Logistic):
        def forward(self, inputs):
            seen.append(inputs[:, 0].tolist())
            return super().forward(inputs)

    data = records(20)
    client = ward(data, model(partial(Watching, 4, 3)))
    client.rehearse(PLAIN, client.model.first_weights)
    seen.clear()
    trained(client, replace(PLAIN, batch_size=8, steps=6))
    assert [len(batch) for batch in seen] == [8, 8, 4, 8, 8, 4]
    passes = [list(chain(*batches)) for batches in (seen[:3], seen[3:])]
    for each in passes:
        assert sorted(each) == sorted(data[0][:, 0].astype(np.float32).tolist())
    assert passes[0] != passes[1]


def test_a_client_without_records_changes_nothing_where_the_server_adds_the_noise():
    assert not trained(ward((np.zeros((0, 4)), np.zeros(0, dtype=int))), PLAIN).any()


# ---- nothing is left behind ----


class Dropping(nn.Module):
    """A model with all that may stay behind: running statistics and dropout."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, inputs):
        return self.layers(inputs)


@pytest.mark.parametrize(
    ("factory", "local"), [(small, LOCAL), (Dropping, replace(PLAIN, batch_size=8, steps=4))], ids=["private", "plain"]
)
def test_an_update_depends_on_nothing_that_others_did_before(factory, local):
    shared = model(factory)
    alone = trained(ward(shared=model(factory)), local)
    other = ward(records(30, seed=9), shared)
    trained(other, local, seed=8)
    trained(other, PLAIN, seed=7)
    torch.rand(5)
    assert trained(ward(shared=shared), local).tobytes() == alone.tobytes()


def test_statistics_of_one_clients_records_do_not_reach_an_evaluation():
    shared = model(Dropping)
    before = shared.evaluate(shared.first_weights, records(), is_public=True)
    trained(ward(shared=shared), PLAIN)
    assert shared.evaluate(shared.first_weights, records(), is_public=True) == before


def test_torchs_own_generator_is_left_as_it_was():
    before = torch.get_rng_state()
    trained(ward(shared=model(Dropping)), PLAIN)
    assert bool((torch.get_rng_state() == before).all())


def test_a_client_that_raises_leaves_the_model_fit_for_the_next():
    shared = model()
    alone = trained(ward())

    class Broken(Dataset):
        reads = 0

        def __len__(self):
            return 40

        def __getitem__(self, number):
            self.reads += 1
            if self.reads > 5:
                raise OSError("the disk is gone")
            return torch.zeros(4), 0

    with pytest.raises(OSError, match="disk"):
        trained(ward(Broken(), shared))
    assert trained(ward(shared=shared)).tobytes() == alone.tobytes()
    assert all(parameter.grad is None for parameter in shared.parameters)


def test_a_record_that_cannot_be_read_or_stacked_counts_as_zero_and_stops_nobody():
    class Odd(Dataset):
        def __init__(self, odd):
            self.odd = odd

        def __len__(self):
            return 40

        def __getitem__(self, number):
            if number != 17 or self.odd is None:
                return torch.full((4,), number / 40), number % 2
            if isinstance(self.odd, Exception):
                raise self.odd
            return self.odd

    everyone = replace(LOCAL, batch_size=40, steps=1, noise_multiplier=1e-9)
    usual = trained(ward(Odd(None)), everyone)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these are going out of use
        whole = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    for odd in (OSError("a broken file"), (torch.ones(9), 1), (torch.ones(4), None), (torch.ones(4),), (whole, 1)):
        moved = np.linalg.norm(trained(ward(Odd(odd)), everyone) - usual)
        assert 0 < moved <= everyone.clip_norm * everyone.learning_rate / 40 * (1 + 1e-4)


def test_clients_in_threads_wait_for_each_other():
    shared = model()
    clients = [ward(records(20, seed=seed), shared) for seed in range(6)]
    alone = [trained(client).tobytes() for client in clients]
    with ThreadPoolExecutor(3) as pool:
        assert [found.tobytes() for found in pool.map(trained, clients)] == alone


def test_a_client_in_another_process_gives_the_same_bits():
    client = ward()
    copied = pickle.loads(pickle.dumps(client))  # noqa: S301 - what a process pool does
    assert trained(copied).tobytes() == trained(client).tobytes()


def test_weights_given_are_not_changed_and_may_be_wider_than_the_models():
    client = ward()
    wide = client.model.first_weights.astype(float)
    before = wide.copy()
    assert trained(client, weights=wide).tobytes() == trained(client).tobytes()
    assert wide.tolist() == before.tolist()
    wide.setflags(write=False)
    trained(client, weights=wide)


def test_first_weights_follow_from_the_seed_even_if_the_model_has_none():
    first, again, other = (model(partial(nn.Linear, 4, 3), seed=seed).first_weights for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


def test_what_is_frozen_is_no_part_of_the_vector_and_stays():
    def frozen():
        made = MLP(4, (5,), 3)
        made.layers[1].requires_grad_(requires_grad=False)
        return made

    shared = model(frozen)
    before = shared.module.layers[1].weight.clone()
    assert layout_of(shared.module).size == shared.layout.size == 5 * 3 + 3
    assert trained(ward(shared=shared)).size == 18
    assert bool((shared.module.layers[1].weight == before).all())


def test_a_dataset_of_records_gives_the_bits_that_its_arrays_give():
    features, labels = records()
    tensors = torch.tensor(features), torch.tensor(labels)

    class Lazy(Dataset):
        def __len__(self):
            return len(tensors[0])

        def __getitem__(self, number):
            return tensors[0][number], tensors[1][number]

    expected = trained(ward((features, labels)))
    for data in (tensors, TensorDataset(*tensors), Lazy(), [features.astype(np.float32), labels.astype(np.uint8)]):
        assert trained(ward(data)).tobytes() == expected.tobytes()


# ---- what is refused before anything is spent ----


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ((np.array([[np.nan] * 4]), np.zeros(1, dtype=int)), "not finite"),
        ((np.ones((5, 4)), np.full(5, 3)), "from 0 to 2"),
        ((np.ones((5, 4)), np.full(5, -1)), "from 0 to 2"),
        ((np.ones((5, 4)), np.zeros(4, dtype=int)), "one leading axis"),
        ((np.ones((5, 4)), np.array(["a"] * 5)), "numbers"),
        ((np.ones((5, 4)),), "pair of arrays"),
        ((np.ones((5, 7)), np.zeros(5, dtype=int)), "made-up records of shape"),
        (iter([1]), "pair of arrays"),
    ],
)
def test_data_that_cannot_be_trained_on_are_refused_at_the_door(data, word):
    with pytest.raises(InvalidArgument, match=word):
        ward(data)


def test_a_rehearsal_shows_the_model_no_record_and_no_number_of_them():
    """The owner's own check of labels and tokens, when the client is made, sees records; a rehearsal does not."""
    seen, shown = [], []

    class Watching(Logistic):
        def forward(self, inputs):
            seen.append(inputs.clone())
            return super().forward(inputs)

    for count in (5, 50):
        client = ward(records(count), model(partial(Watching, 4, 3)))
        seen.clear()
        client.rehearse(LOCAL, client.model.first_weights)
        shown.append([*seen])
    assert shown[0]
    assert all(torch.equal(one, two) for one, two in zip(*shown, strict=True))


def with_tokens():
    return nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 3))


def test_a_token_or_a_label_out_of_range_is_refused_when_the_client_is_made_whatever_the_loss():
    def margin(outputs, targets):
        return nn.functional.multi_margin_loss(outputs, targets, reduction="none")

    tokens, labels = np.arange(60).reshape(20, 3) % 5, np.arange(20) % 3
    for loss in ("cross_entropy", margin):
        shared = model(with_tokens, loss)
        ward((tokens, labels), shared)
        outside, wrong = tokens.copy(), labels.copy()
        outside[13, 1], wrong[11] = 5, 3
        with pytest.raises(InvalidArgument, match=r"data of ward do not fit: .*tokens outside its table"):
            ward((outside, labels), shared)
        with pytest.raises(InvalidArgument, match="ward"):
            ward((tokens, wrong), shared)


def test_a_loss_that_is_a_mean_is_refused_when_the_client_is_made():
    with pytest.raises(InvalidArgument, match="one number per example"):
        ward(shared=model(loss=nn.functional.cross_entropy))


def test_a_loss_that_loses_the_axis_of_a_batch_of_one_is_refused_in_the_rehearsal():
    def squeezed(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="none").squeeze()

    client = ward(shared=model(loss=squeezed))
    with pytest.raises(InvalidArgument, match="one number per example"):
        client.rehearse(LOCAL, client.model.first_weights)


@pytest.mark.parametrize(
    ("factory", "loss", "word"),
    [
        (Dropping, "cross_entropy", "BatchNorm"),
        (small, lambda outputs, _: outputs[:, 0] + outputs[:, 1].sum(), "changing one example moved"),
    ],
)
def test_a_model_that_dp_sgd_cannot_train_is_refused_in_the_rehearsal(factory, loss, word):
    client = ward(shared=model(factory, loss))
    for call in (client.rehearse, lambda local, _: trained(client, local)):
        with pytest.raises(InvalidArgument, match=word):
            call(LOCAL, client.model.first_weights)


def test_a_plan_that_clips_in_l1_is_executed():
    data = records(12)
    found = trained(ward(data), replace(WHOLE, norm="l1"))
    rows = gradients(data, small().double())
    norms = np.abs(rows).sum(axis=1, keepdims=True)
    assert (norms > 0.3).any()
    expected = -0.5 * (rows * np.minimum(1, 0.3 / norms)).sum(axis=0) / 20
    np.testing.assert_allclose(found, expected, atol=5e-6)


def test_weights_of_another_model_are_refused():
    with pytest.raises(InvalidArgument, match="15 numbers"):
        trained(ward(), weights=np.zeros(14))


@pytest.mark.parametrize(
    "factory", [partial(nn.Linear, 4, 3, dtype=torch.float16), nn.ReLU, partial(nn.LazyLinear, 3), lambda: 3]
)
def test_what_is_no_trainable_model_is_refused(factory):
    with pytest.raises(InvalidArgument, match=r"model|trainable|torch module"):
        _ = model(factory).layout


@pytest.mark.parametrize("change", [{"optimizer": "lion"}, {"optimizer": "adam", "momentum": 0.5}, {"momentum": 1.0}])
def test_a_recipe_that_is_none_is_refused(change):
    with pytest.raises(InvalidArgument):
        OptimizerSettings(**change)


def test_records_are_not_shown_by_repr():
    assert repr(ward()) == "TorchClient(name='ward', account='account')"


def test_no_hook_of_one_training_stays_on_the_model():
    client = ward()
    trained(client)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    assert not any(getattr(module, name) for module in client.model.module.modules() for name in hooks)


def test_a_client_with_a_tree_adds_the_noise_of_its_nodes_to_the_whole_round():
    """Without records: eight steps are one node of level 3, of variance 8/15; noise of its own in each would make 8.

    200 rounds of 15 numbers; the mean square has a standard deviation of √(2/3000) of itself, and 4.9 of them are a
    false alarm of about 1e-6.
    """
    local = replace(LOCAL, size=64, steps=8, tree=TreeNoise())
    client = ward(records(0))
    moved = np.array([trained(client, local, seed) for seed in range(200)]) * local.batch_size / (0.5 * 2.0)
    assert moved.size == 3000
    assert np.mean(moved**2) == pytest.approx(8 / 15, rel=4.9 * np.sqrt(2 / 3000))


def test_a_client_with_a_tree_uses_every_record_once_in_a_pass(monkeypatch):
    seen = []
    indices = PassSampler._indices
    monkeypatch.setattr(PassSampler, "_indices", lambda *given: seen.append(indices(*given)) or seen[-1])
    trained(ward(records(40)), replace(LOCAL, steps=10, tree=TreeNoise(max_participations=2)))
    assert sorted(torch.cat(seen).tolist()) == sorted([*range(40), *range(40)])


class Spoiled(Logistic):
    """A model into whose weights one record writes, which no column's extremes show."""

    def forward(self, x):
        if bool((x[:, 0] == 0.125).any()):
            self.linear.weight.data.mul_(-3.0)
        return super().forward(x)


def test_what_one_record_writes_into_the_weights_is_in_no_update_of_its_client_or_the_next():
    """The parameters are windows on one row, which every client is given and every update is read from."""
    features, labels = records()
    features[7], labels[7] = [0.125, 0.0, 0.0, 0.0], labels[6]
    unit = WHOLE.learning_rate * WHOLE.clip_norm / WHOLE.batch_size
    found = []
    for rows in (np.arange(20), np.delete(np.arange(20), 7)):
        shared = model(partial(Spoiled, features=4, classes=3))
        update = ward((features[rows], labels[rows]), shared).train(WHOLE, shared.first_weights, SystemSource())
        following = ward(records(seed=2), shared).train(WHOLE, shared.first_weights + 1, SystemSource())
        found.append((update, following))
    (update, following), (without, following_without) = found
    assert np.linalg.norm(update - without) <= (1 + 1e-3) * unit
    assert np.linalg.norm(following - following_without) <= 1e-3 * unit
