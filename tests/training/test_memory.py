"""How many examples go through a model at a time follows from shapes, and from nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpfed.plan.plan import LocalPlan
from dpfed.training import memory
from dpfed.training.engine.forward import Forward, make_forward
from dpfed.training.private import make_private


def summed(output: Tensor, target: Tensor) -> Tensor:
    return output.flatten(1).sum(1) * target


def a_pass(model: nn.Module, *shape: int, value: float = 1.0, count: int = 3) -> Forward:
    return make_forward(model, summed, torch.full((count, *shape), value), torch.ones(count))


def test_a_small_model_takes_as_many_examples_as_sums_are_precise_for():
    model = nn.Linear(4, 2)
    assert memory.count_rows(model, a_pass(model, 4)) == memory.MOST == 1024


def test_activations_count_and_parameters_that_all_examples_share_do_not():
    model = nn.Sequential(nn.Linear(1000, 500), nn.Tanh(), nn.Linear(500, 2))
    assert 4 * 4 * 1500 <= memory.estimate_bytes(model, a_pass(model, 1000)) < 4 * 4 * 1500 * 1.1


def test_gradients_that_are_written_out_count():
    model = nn.Linear(3000, 400)
    for shape, extra in [((3000,), 0), ((2, 3000), 4 * (3000 * 400 + 400)), ((900, 3000), 0)]:
        usual, written = (
            memory.estimate_bytes(model, a_pass(model, *shape), is_written=each) for each in (False, True)
        )
        assert written - usual == extra
    table = nn.Embedding(10_000, 20)
    assert (
        memory.estimate_bytes(table, make_forward(table, summed, torch.zeros(3, 5).long(), torch.ones(3))) < 4 * 10_000
    )


def test_neither_values_nor_the_number_of_examples_decide():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(8 * 36, 2))
    found = {
        memory.estimate_bytes(model, a_pass(model, 1, 8, 8, value=value, count=count))
        for value in (0.0, -7.0)
        for count in (2, 4)
    }
    assert len(found) == 1


def test_measuring_leaves_no_hook_and_moves_no_random_number():
    model = nn.Sequential(nn.Linear(4, 2), nn.Dropout())
    before = torch.get_rng_state()
    memory.count_rows(model, a_pass(model, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module._forward_hooks for module in model.modules())


def test_make_private_takes_what_was_measured_unless_it_is_told(monkeypatch):
    model, data = nn.Conv1d(1, 2, 3), TensorDataset(torch.zeros(40, 1, 9), torch.ones(40))
    plan = LocalPlan(size=40, batch_size=39, steps=2, clip_norm=1.0, noise_multiplier=1.0)

    def sizes(**options: object) -> set[int]:
        private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, plan, loss=summed, **options)
        found = {len(inputs) for inputs, _ in next(iter(private.loader))}
        private.close()
        return found

    assert max(sizes()) > 20
    monkeypatch.setattr(memory, "BUDGET", 7 * memory.estimate_bytes(model, a_pass(model, 1, 9)))
    assert max(sizes()) == 7
    assert max(sizes(max_physical_batch=11)) == 11


def test_counting_leaves_nothing_of_the_pass_behind():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.LogSoftmax(1))
    memory.count_rows(model, a_pass(model, 4))
    held = [torch._C._storage_Use_Count(value.untyped_storage()._cdata) for value in model.parameters()]
    assert held == [2] * 4  # itself and the question: nobody's graph has one of them


class OwnConvolution(nn.Conv2d):
    def forward(self, x):
        return super().forward(x)


@pytest.mark.parametrize(
    ("kind", "is_written", "is_counted"),
    [(nn.Conv2d, False, False), (nn.Conv2d, True, True), (OwnConvolution, False, True)],
)
def test_gradients_of_a_convolution_of_few_positions_count_where_they_are_written_out(kind, is_written, is_counted):
    model = nn.Sequential(kind(64, 64, 3, padding=1), nn.Flatten(), nn.Linear(256, 1))
    found = memory.estimate_bytes(model, a_pass(model, 64, 2, 2), is_written=is_written)
    assert (found > 4 * 64 * 64 * 9) == is_counted
