"""DP-FTRL with `make_private`: the noise of all steps together is the tree's, and it was paid for before the first."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfed
from dpfed.accounting.tree_sensitivity import squared_sensitivity
from dpfed.errors import BudgetExceeded, InvalidArgument
from dpfed.events import TreeAggregation
from dpfed.guarantee import Guarantee
from dpfed.mechanisms.tree import PartialSums
from dpfed.plan.local import LocalPlan
from dpfed.plan.tree import TreeNoise
from dpfed.randomness import SeededSource
from dpfed.training.correlated import CorrelatedNoise
from dpfed.training.loop import Private
from dpfed.training.many.train import can_serve, train_many
from dpfed.training.noise import NoiseSource
from dpfed.training.private import make_private

SIZE = 40


def a_plan(**others: object) -> LocalPlan:
    defaults = {"size": SIZE, "batch_size": 10, "steps": 4, "clip_norm": 1.0, "noise_multiplier": 4.0}
    return LocalPlan(**{**defaults, "tree": TreeNoise(), **others})  # type: ignore[arg-type]


def made(plan: LocalPlan, features: int = 3, size: int = SIZE, **others: object) -> Private:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(features, 1), nn.Flatten(0))
    data = TensorDataset(torch.randn(size, features), torch.randn(size))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return make_private(model, optimizer, data, plan, loss=nn.MSELoss(reduction="none"), **others)  # type: ignore[arg-type]


def flat(private: Private) -> torch.Tensor:
    return torch.cat([value.detach().reshape(-1) for value in private.model.parameters()]).clone()


def steps_of(private: Private) -> torch.Tensor:
    """What each step moved the model by, (steps, parameters)."""
    moved = []
    for batch in private.loader:
        before = flat(private)
        private.step(batch)
        moved.append(flat(private) - before)
    return torch.stack(moved)


def covariance(event: TreeAggregation) -> np.ndarray:
    """Of the changes of the noise, if that of a node has variance 1: from one unit vector for every node."""
    units = iter(np.eye(2 * event.steps))
    sums = PartialSums(lambda _: next(units), event)
    weights = np.array([sums.add(0.0) for _ in range(event.steps)])
    return weights @ weights.T


@pytest.mark.parametrize("tree", [TreeNoise(2), TreeNoise(2, restarts=1)])
def test_the_noise_of_all_steps_is_that_of_the_tree(tree: TreeNoise) -> None:
    """Without data only noise moves the model: 8 steps of 20,001 numbers against the tree's covariance.

    An entry's estimate has a standard deviation of √((Sᵢⱼ² + SᵢᵢSⱼⱼ)/20,001); 6 of them, for 64 entries, is a false
    alarm of about 1e-7.
    """
    plan = a_plan(steps=8, tree=tree, noise_multiplier=3.0, clip_norm=2.0)
    moved = steps_of(made(plan, features=20_000, size=1, source=SeededSource(3)))
    private = made(plan, features=20_000, size=1, source=SeededSource(3))
    assert private.plan.event == TreeAggregation(3.0, 8, 2, 4, tree.restarts)
    noise = moved.double().numpy() * plan.batch_size / 6.0
    expected = covariance(TreeAggregation(3.0, 8, 2, 4, tree.restarts))
    found = noise @ noise.T / noise.shape[1]
    width = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / noise.shape[1])
    # One record of one step moves the sum by 2 in all, against noise of 6 on each of 20,001 numbers.
    assert (np.abs(found - expected) < 6 * width + 1e-4).all()


def test_a_step_is_the_clipped_sum_over_its_batch_divided_by_the_planned_batch() -> None:
    plan = a_plan(noise_multiplier=1e-9, steps=8, tree=TreeNoise(2))
    private = made(plan)
    seen = []
    for batch in private.loader:
        before = flat(private)
        weight, bias = (value.detach().clone() for value in private.model.parameters())
        inputs, targets = private_data()[batch.indices]
        seen.append(sorted(batch.indices.tolist()))
        private.step(batch)
        errors = 2 * (inputs @ weight[0] + bias - targets)
        gradients = torch.cat([errors[:, None] * inputs, errors[:, None]], dim=1)
        clipped = gradients * (1 / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)
        assert flat(private) - before == pytest.approx(-clipped.sum(dim=0) / 10, abs=2e-4)
    assert seen[:4] == seen[4:]
    assert sorted(itertools.chain(*seen[:4])) == list(range(SIZE))


def private_data() -> TensorDataset:
    torch.manual_seed(0)
    nn.Linear(3, 1)
    return TensorDataset(torch.randn(SIZE, 3), torch.randn(SIZE))


def test_the_whole_tree_is_charged_before_the_first_noise(tmp_path, monkeypatch) -> None:
    seen = []
    draw = NoiseSource.add
    monkeypatch.setattr(NoiseSource, "add", lambda *args: seen.append(charged(ledger)) or draw(*args))
    with dpfed.Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.open("icu", epsilon=20.0, delta=1e-5)
        private = made(a_plan(), account=ledger.account("icu"), run="r")
        assert charged(ledger) == 0
        steps_of(private)
        private.close()
        assert seen == [1] * 7  # the nodes of four steps
        (entry,) = ledger.reservations(open_only=False)
        assert entry.committed == 1


def charged(ledger: dpfed.Ledger) -> int:
    return sum(found.committed for found in ledger.reservations(open_only=False))


def test_a_tree_that_was_begun_is_paid_for_and_never_resumed(tmp_path) -> None:
    """Its noise is gone with the program: using it again with other data would take it away."""
    with dpfed.Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.open("icu", epsilon=20.0, delta=1e-5)
        private = made(a_plan(), account=ledger.account("icu"), run="r")
        private.step(next(iter(private.loader)))
        with pytest.raises(BudgetExceeded, match="all 4 steps of run 'r' are charged"):
            made(a_plan(), account=ledger.account("icu"), run="r")


def test_a_run_that_took_no_step_may_start_again(tmp_path) -> None:
    with dpfed.Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.open("icu", epsilon=20.0, delta=1e-5)
        made(a_plan(), account=ledger.account("icu"), run="r")
        steps_of(made(a_plan(), account=ledger.account("icu"), run="r"))
        assert charged(ledger) == 1


def test_what_is_spent_is_the_whole_tree_from_the_first_step_on() -> None:
    plan = a_plan(noise_multiplier=None, steps=8, tree=TreeNoise(2)).calibrated(Guarantee(2.0, 1e-5))
    private = made(plan)
    assert private.spent().epsilon == 0.0
    private.step(next(iter(private.loader)))
    assert private.spent().epsilon == plan.epsilon(1e-5) <= 2.0


def test_a_draw_that_failed_comes_again_in_its_place_in_the_tree() -> None:
    private = made(a_plan(steps=8, tree=TreeNoise(2)))
    for number in range(8):
        for batch in private.loader:
            assert batch.number == number
            break
        private.step(next(private.loader))
    assert private.steps_taken == 8


@pytest.mark.parametrize("number", range(1, 8))
def test_a_step_that_was_stopped_while_its_noise_was_drawn_ends_the_tree(monkeypatch, number: int) -> None:
    """Ctrl-C in a notebook: the nodes of later steps would be of other steps than those that were charged."""
    private, draw, calls = made(a_plan(steps=8, tree=TreeNoise(2))), NoiseSource.add, itertools.count(1)

    def stopped(*args: object) -> dict[str, torch.Tensor]:
        if next(calls) == number:
            raise KeyboardInterrupt
        return draw(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(NoiseSource, "add", stopped)
    with pytest.raises(KeyboardInterrupt):
        steps_of(private)
    taken = private.steps_taken
    with pytest.raises(
        InvalidArgument, match="failed or was stopped, so records would take part sooner than the tree allows"
    ):
        steps_of(private)
    assert private.steps_taken == taken


def test_noise_on_the_grid_is_refused_before_anything_is_reserved(tmp_path) -> None:
    with dpfed.Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.open("icu", epsilon=20.0, delta=1e-5)
        with pytest.raises(InvalidArgument, match="is on no grid"):
            made(a_plan(), noise="grid", account=ledger.account("icu"), run="r")
        assert not list(ledger.reservations(open_only=False))


def test_many_models_at_once_are_refused_a_tree() -> None:
    assert not can_serve(a_plan())
    data = [(np.random.randn(SIZE, 3), np.zeros(SIZE, dtype=int))]
    with pytest.raises(InvalidArgument, match="one model at a time"):
        train_many(nn.Linear(3, 2), data, [a_plan()], loss=nn.CrossEntropyLoss(reduction="none"))


def test_tensors_keep_names_shapes_and_precisions() -> None:
    noise = CorrelatedNoise(NoiseSource(), 1e-6, TreeAggregation(1.0, 4))
    given = {"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.float64), "c": torch.ones(1, dtype=torch.bfloat16)}
    for _ in range(4):
        found = noise.add(given)
        assert {name: (value.shape, value.dtype) for name, value in found.items()} == {
            name: (value.shape, value.dtype) for name, value in given.items()
        }
        assert all(float((found[name] - given[name]).abs().max()) < 1e-2 for name in given)
    with pytest.raises(InvalidArgument, match="all 4 steps"):
        noise.add(given)


def test_what_is_not_finite_is_refused() -> None:
    noise = CorrelatedNoise(NoiseSource(), 1.0, TreeAggregation(1.0, 4))
    with pytest.raises(InvalidArgument, match="must be finite"):
        noise.add({"a": torch.tensor([math.nan])})


def test_at_equal_cost_the_model_has_less_noise_than_with_noise_of_its_own_in_each_step() -> None:
    """256 steps of one pass without sampling, both μ = 1: the last model's noise in units of one step's."""
    steps = 256
    tree = squared_sensitivity(TreeAggregation(1.0, steps)) / (2 - 2.0**-8)
    assert tree < steps / 50
