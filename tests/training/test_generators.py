"""What a private step draws besides its sample and its noise is private too, and public generators come back."""

from __future__ import annotations

import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from dpfed.errors import InvalidArgument
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import SeededSource, SystemSource
from dpfed.training.generators import Generators, WorkerSeeds, pinned, restored
from dpfed.training.many.train import train_many
from dpfed.training.private import make_private

# ruff: noqa: S311
SIZE = 12
# Everybody is drawn and there is next to no noise: two runs differ by what else they drew.
PLAN = LocalPlan(size=SIZE, batch_size=SIZE, steps=3, clip_norm=1.0, noise_multiplier=1e-12, learning_rate=1.0)
LOSS = nn.MSELoss(reduction="none")


def seed_everything(seed=42):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def numbers():
    """What the public generators give next, also the second of a pair of normal numbers."""
    drawn = np.random.standard_normal(1), np.random.standard_normal(1), np.random.rand(3)
    return torch.rand(3).tolist(), [part.tolist() for part in drawn], random.random(), random.gauss(0, 1)


def outside():
    """As if nobody had trained: one normal number of numpy is taken, so that the second of the pair waits."""
    seed_everything()
    np.random.standard_normal(1)


class Noisy(nn.Module):
    """Adds noise that follows from the named generator."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return (self.layer(x + noise_like(x, self.kind))).squeeze(1)


def noise_like(x, kind):
    if kind == "torch":
        return nn.functional.dropout(torch.ones_like(x), 0.5)
    if kind == "numpy":
        return torch.from_numpy(np.random.standard_normal(x.shape)).to(x)
    return torch.tensor([[random.random()] for _ in range(len(x))]).to(x)


class Augmented(Dataset):
    """Records that are moved a little, each time otherwise."""

    def __init__(self, kind: str, seeds: bool = False) -> None:
        self.kind, self.seeds = kind, seeds
        self.x, self.y = records()

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        if self.seeds:
            seed_everything(index)
        return self.x[index] + noise_like(self.x[:1], self.kind)[0], self.y[index]


def records():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SIZE, 3, generator=generator), torch.randn(SIZE, generator=generator)


def public_init(worker: int) -> None:
    seed_everything()


def private_run(model, data, source=None, loss=LOSS, **others):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return make_private(model, optimizer, data, PLAN, loss=loss, source=source, max_physical_batch=5, **others)


def first(model):
    """The model with weights that are always the same."""
    for number, value in enumerate(model.parameters()):
        nn.init.constant_(value, 0.1 * (number + 1))
    return model


def weights(model):
    return torch.cat([value.detach().flatten() for value in model.parameters()]).clone()


def by_step(private, seed):
    for batch in private.loader:
        seed()
        private.step(batch)
        seed()


def by_hand(private, seed):
    for batch in private.loader:
        for inputs, targets in batch:
            private.backward(LOSS(private.model(inputs), targets))
        private.optimizer.step()
        seed()


KINDS = ["torch", "numpy", "random"]


def trained(kind, drive, data=None, source=None, loss=LOSS):
    model = first(Noisy(kind))
    seed_everything()
    own = None if drive is by_hand else loss
    drive(private_run(model, TensorDataset(*records()) if data is None else data, source, own), seed_everything)
    return weights(model)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drive", [by_step, by_hand])
def test_masks_do_not_follow_from_a_public_seed_before_or_inside_the_loop(kind, drive):
    if drive is by_hand and kind != "torch":  # a constant to torch, which differs by the place in the batch
        with pytest.raises(InvalidArgument, match="examples may meet in the model"):
            trained(kind, drive)
        return
    assert not torch.allclose(trained(kind, drive), trained(kind, drive), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_does_not_follow_from_a_public_seed_of_the_script_or_of_a_worker(kind, workers):
    ends = []
    for _ in range(2):
        seed_everything()
        generator = torch.Generator().manual_seed(42)
        loader = DataLoader(
            Augmented(kind),
            4,
            num_workers=workers,
            worker_init_fn=public_init if workers else None,
            generator=generator,
        )
        model = first(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)))
        by_step(private_run(model, loader), seed_everything)
        ends.append(weights(model))
    assert not torch.allclose(*ends, atol=1e-4)


def test_a_data_set_that_seeds_by_its_index_does_not_make_masks_public():
    ends = [trained("torch", by_step, data=Augmented("torch", seeds=True)) for _ in range(2)]
    assert not torch.allclose(*ends, atol=1e-4)


@pytest.mark.parametrize("drive", [by_step, by_hand])
def test_public_generators_give_afterwards_what_they_would_have_given_without_training(drive):
    outside()
    expected = numbers()
    for kind in KINDS:
        model, data = first(Noisy(kind if drive is by_step else "torch")), Augmented(kind)
        outside()
        drive(private_run(model, data, loss=LOSS if drive is by_step else None), lambda: None)
        assert numbers() == expected


def test_they_come_back_after_a_break_and_after_an_error_in_the_loop():
    outside()
    expected = numbers()
    private = private_run(first(Noisy("torch")), Augmented("torch"))
    outside()
    for batch in private.loader:
        private.step(batch)
        break
    with pytest.raises(ZeroDivisionError):
        by_step(private, lambda: 1 / 0)
    assert numbers() == expected


def test_loops_that_overlap_give_the_public_states_back_when_the_last_one_ends():
    outside()
    expected = numbers()
    one, two = (private_run(first(Noisy("torch")), Augmented("torch")) for _ in range(2))
    outside()
    for batches in zip(one.loader, two.loader, strict=True):
        one.step(batches[0])
        two.step(batches[1])
    assert numbers() == expected


def test_losses_made_by_a_seed_inside_the_loop_are_refused_and_nothing_is_released():
    private = private_run(first(Noisy("torch")), TensorDataset(*records()), loss=None)
    for batch in private.loader:
        for inputs, targets in batch:
            torch.manual_seed(42)
            losses = LOSS(nn.functional.dropout(private.model(inputs)), targets)
            with pytest.raises(InvalidArgument, match="call no manual_seed there"):
                private.backward(losses)
            break
        with pytest.raises(InvalidArgument):
            private.optimizer.step()
        break
    assert private.steps_taken == 0


def test_losses_made_after_the_loop_are_refused():
    private = private_run(first(Noisy("torch")), TensorDataset(*records()), loss=None)
    pieces = list(next(private.loader))
    losses = LOSS(private.model(pieces[0][0]), pieces[0][1])
    with pytest.raises(InvalidArgument, match="inside `for batch in"):
        private.backward(losses)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seeded_source_can_be_repeated_and_is_stamped(kind):
    ends = [trained(kind, by_step, Augmented(kind), SeededSource(5)) for _ in range(2)]
    assert torch.equal(*ends)
    assert "NOT PRIVATE" in repr(private_run(Noisy(kind), Augmented(kind), SeededSource(5)))
    assert not torch.allclose(ends[0], trained(kind, by_step, Augmented(kind), SeededSource(6)), atol=1e-4)


def test_a_seeded_source_can_be_repeated_with_workers():
    ends = []
    for _ in range(2):
        loader = DataLoader(Augmented("numpy"), 4, num_workers=2)
        model = first(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)))
        by_step(private_run(model, loader, SeededSource(5)), lambda: None)
        ends.append(weights(model))
    assert torch.equal(*ends)


@pytest.mark.parametrize("plan", [PLAN, LocalPlan(size=SIZE, batch_size=SIZE, steps=2, learning_rate=1.0)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_a_federation_draws_privately_and_gives_the_public_states_back(kind, plan):
    model = TorchModel(lambda: first(Noisy(kind)), LOSS)
    client = TorchClient("ward", Augmented(kind), "account", model)
    ends = []
    for source in (SystemSource(), SystemSource(), SeededSource(1), SeededSource(1)):
        outside()
        ends.append(client.train(plan, model.first_weights, source))
        after = numbers()
        outside()
        assert after == numbers()
    assert not np.allclose(ends[0], ends[1], atol=1e-4)
    np.testing.assert_array_equal(ends[2], ends[3])


def test_many_models_leave_the_public_generators_as_they_were():
    outside()
    expected = numbers()
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    outside()
    train_many(model, [records()] * 3, [PLAN] * 3, loss=LOSS)
    assert numbers() == expected


def test_all_of_torchs_state_is_filled_and_not_the_32_bits_that_its_own_seeding_uses():
    """Two states with the same seed differ, and no word of one follows from the seed."""
    generators = Generators(SystemSource())
    with generators.scope():
        state = torch.get_rng_state().numpy().view(np.uint64)[3:627]
        torch.manual_seed(torch.initial_seed())
        assert (state != torch.get_rng_state().numpy().view(np.uint64)[3:627]).sum() > 600


@pytest.mark.parametrize(
    "seed",
    [
        lambda: torch.manual_seed(1),
        lambda: torch.set_rng_state(torch.Generator().manual_seed(1).get_state()),
        lambda: np.random.seed(1),
        lambda: np.random.set_state(np.random.RandomState(1).get_state()),
        lambda: np.random.set_bit_generator(np.random.PCG64(1)),
        lambda: random.seed(1),
        lambda: random.setstate(random.Random(1).getstate()),
    ],
)
def test_a_refresh_undoes_whatever_was_seeded(seed):
    def drawn():
        return torch.rand(1).item(), np.random.rand(), random.random()

    generators, found = Generators(SystemSource()), []
    with generators.scope():
        for _ in range(2):
            seed()
            generators.refresh()
            found.append(drawn())
    assert all(one != two for one, two in zip(*found, strict=True))


def test_another_bit_generator_of_numpy_comes_back_as_it_was():
    before, own = np.random.get_bit_generator(), np.random.PCG64(3)
    try:
        np.random.set_bit_generator(own)
        np.random.standard_normal()
        expected = np.random.RandomState(np.random.PCG64(3)).standard_normal(4)[1:]
        with Generators(SystemSource()).scope(), pinned():
            np.random.rand()
        assert np.random.get_bit_generator() is own
        np.testing.assert_array_equal(np.random.standard_normal(3), expected)
    finally:
        np.random.set_bit_generator(before)


def test_a_trial_draws_the_same_each_time_and_leaves_a_private_scope_private():
    generators, found = Generators(SystemSource()), []
    with generators.scope():
        before = torch.get_rng_state()
        for _ in range(2):
            with pinned():
                found.append((torch.rand(1).item(), np.random.rand(), random.random()))
        assert generators.are_private
        assert torch.equal(torch.get_rng_state(), before)
    assert found[0] == found[1]


def test_what_seeds_a_worker_can_be_sent_to_it():
    assert "public_init" in repr(pickle.loads(pickle.dumps(WorkerSeeds(public_init, b"secret"))))  # noqa: S301


def test_scopes_in_several_threads_end_with_the_public_states():
    def use(_):
        generators = Generators(SystemSource())
        for _ in range(50):
            with generators.scope():
                generators.refresh()
                random.random()

    outside()
    expected = numbers()
    outside()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(8)))
    assert numbers() == expected


@pytest.mark.parametrize("drawn", [1, 2])  # of one, the second of a pair of normal numbers is still to come
def test_what_is_drawn_while_a_program_is_looked_at_changes_no_later_number(drawn):
    ends = []
    for is_looked_at in (False, True):
        generators = Generators(SeededSource(3))
        with generators.scope():
            np.random.standard_normal(drawn)
            if is_looked_at:
                with restored():
                    np.random.standard_normal(7), torch.rand(3), random.random()
            ends.append(numbers())
            generators.refresh()
            ends.append(numbers())
    assert ends[:2] == ends[2:]
