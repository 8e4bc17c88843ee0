from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dpfed.errors import InvalidArgument
from dpfed.randomness import SeededSource
from private_runs import SIZE, a_plan, flat, made, own_loop, per_example, some_data, train


def test_each_draw_is_used_once_and_there_are_no_more_than_planned():
    private = made()
    with pytest.raises(InvalidArgument, match="no open batch"):
        private.optimizer.step()
    for batch in private.loader:
        private.step(batch)
        with pytest.raises(InvalidArgument):
            private.step(batch)
        with pytest.raises(InvalidArgument, match="no open batch"):
            private.optimizer.step()
    assert private.steps_taken == 4
    assert private._batches.sampler.remaining == 0


def test_a_draw_that_was_released_elsewhere_is_not_released_again():
    private = made()
    batch = next(private.loader)
    before = flat(private.model)
    batch.token.use()
    with pytest.raises(InvalidArgument, match="was charged already"):
        private.step(batch)
    assert torch.equal(flat(private.model), before)
    assert private.steps_taken == 0


def records_of(batch):
    return [row.tolist() for inputs, _ in batch for row in inputs]


def loaders(workers):
    return DataLoader(some_data(), batch_size=4, num_workers=workers) if workers else some_data()


def test_a_draw_without_a_step_is_refused_because_that_would_tell_of_its_records_and_comes_again():
    private = made()
    draws = private.loader
    first = next(draws)
    with pytest.raises(InvalidArgument, match="no step was taken for a batch"):
        next(draws)
    assert next(private.loader) is first
    train(private)
    assert private.steps_taken == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_leaving_the_loop_is_no_way_to_skip_a_draw(workers):
    """Whether it was read to the end, in part or not at all: the same records come again, and from the first on."""
    private = made(data=loaders(workers), max_physical_batch=3, source=SeededSource(4))
    twin = made(data=loaders(workers), max_physical_batch=3, source=SeededSource(4))
    expected = []
    for batch in twin.loader:
        expected.append(records_of(batch))
        twin.step(batch)
    for number, wanted in enumerate(expected):
        for read in (records_of, lambda batch: next(iter(batch), None), lambda batch: None):
            for batch in private.loader:
                assert batch.number == number
                read(batch)
                break
        batch = next(private.loader)
        assert records_of(batch) == wanted
        private.step(batch)
    assert private.steps_taken == 4
    assert not list(private.loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_draw_during_which_the_loop_failed_comes_again(workers):
    private = made(a_plan(batch_size=SIZE), data=loaders(workers), loss=None, max_physical_batch=10)

    def fail_halfway():
        for batch in private.loader:
            for inputs, targets in batch:
                private.backward(per_example(private.model(inputs), targets))
                raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            fail_halfway()
    assert private.steps_taken == 0
    for batch in private.loader:
        seen = 0
        for inputs, targets in batch:
            private.backward(per_example(private.model(inputs), targets))
            seen += len(inputs)
        private.optimizer.step()
        assert seen == SIZE
    assert private.steps_taken == 4


def test_leaving_the_loop_after_a_step_goes_on_with_the_next_draw():
    private = made()
    for batch in private.loader:
        private.step(batch)
        break
    train(private)
    assert private.steps_taken == 4


@pytest.mark.parametrize("reduce", [torch.mean, torch.sum, None], ids=["mean", "sum", "none at all"])
def test_a_plain_backward_is_refused_with_what_to_type_and_nothing_is_charged(ledger, reduce):
    private = made(a_plan(batch_size=SIZE), loss=None, account=ledger.account("icu"), run="r")
    before = flat(private.model)
    draws = private.loader
    for inputs, targets in next(draws):
        private.optimizer.zero_grad()
        if reduce is not None:
            reduce(per_example(private.model(inputs), targets)).backward()
    with pytest.raises(InvalidArgument, match=r"private\.backward\(losses\).*or private\.step\(batch\)"):
        private.optimizer.step()
    assert torch.equal(flat(private.model), before)
    assert ledger.balance("icu").spent == 0
    assert private.steps_taken == 0
    draws.close()
    own_loop(private)
    assert private.steps_taken == 4


def test_an_empty_draw_takes_its_step_without_losses():
    nobody = TensorDataset(torch.empty(0, 3), torch.empty(0))
    private = made(data=nobody, loss=None)
    own_loop(private)
    assert private.steps_taken == 4


def test_a_loop_leaves_out_records_by_a_loss_of_zero():
    """Rows behind one that is taken out would stand at other places than the records drawn."""
    private = made(a_plan(batch_size=SIZE), loss=None)
    for batch in private.loader:
        for inputs, targets in batch:
            losses = per_example(private.model(inputs), targets)
            private.backward(torch.where(targets > 10, losses, 0.0))
        private.optimizer.step()
    assert private.steps_taken == 4
    private = made(a_plan(batch_size=SIZE), loss=None)
    draws = private.loader
    for inputs, targets in next(draws):
        kept = targets > 0
        with pytest.raises(InvalidArgument, match="lets Python decide by the records"):
            private.backward(per_example(private.model(inputs[kept]), targets[kept]))
    assert private.steps_taken == 0
