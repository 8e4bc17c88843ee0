"""DP-SGD as a whole: what is released is the clipped sum with the planned noise, and it was charged before."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpfed
from dpfed.accounting import epsilon
from dpfed.errors import BudgetExceeded, InvalidArgument, LeaseLost, NotReserved, PrivacyError
from dpfed.events import Repeated
from dpfed.guarantee import Guarantee
from dpfed.plan import LocalPlan
from dpfed.randomness import SeededSource
from dpfed.training.noise import NoiseSource
from dpfed.training.private import make_private

FALSE_ALARM = 1e-6
LOSS = nn.MSELoss(reduction="none")
SIZE = 40


def per_example(outputs, targets):
    return LOSS(outputs[:, 0], targets)


def a_model(features=3):
    torch.manual_seed(0)
    return nn.Linear(features, 1)


def some_data(size=SIZE, features=3):
    torch.manual_seed(1)
    return TensorDataset(torch.randn(size, features), torch.randn(size))


def a_plan(**others):
    defaults = {"size": SIZE, "batch_size": 10, "steps": 4, "clip_norm": 1.0, "noise_multiplier": 2.0}
    return LocalPlan(**{**defaults, **others})


def made(plan=None, *, data=None, model=None, lr=1.0, **others):
    model = model or a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    arguments = {"loss": per_example, **others}
    return make_private(model, optimizer, some_data() if data is None else data, plan or a_plan(), **arguments)


def train(private):
    for batch in private.loader:
        private.step(batch)


def flat(model):
    return torch.cat([value.detach().reshape(-1) for value in model.parameters()]).clone()


def test_a_step_is_the_clipped_sum_over_the_draw_divided_by_the_planned_batch():
    """At next to no noise, for draws of every size; the divisor is 10 whatever was drawn."""
    private = made(a_plan(noise_multiplier=1e-9, steps=30), max_physical_batch=4)
    data = some_data()
    sizes = set()
    for batch in private.loader:
        before = flat(private.model)
        inputs, targets = data[batch.indices]
        total = torch.zeros(4)
        for one in range(len(targets)):
            private.model.zero_grad()
            gradients = torch.autograd.grad(
                per_example(private.model(inputs[one : one + 1]), targets[one : one + 1])[0],
                list(private.model.parameters()),
            )
            vector = torch.cat([gradient.reshape(-1) for gradient in gradients])
            total += vector * min(1.0, 1.0 / float(vector.norm()))
        sizes.add(len(targets))
        private._gradients._capture.taken()  # what the forward passes above recorded
        private.step(batch)
        assert torch.allclose(before - flat(private.model), total / 10, atol=2e-4)
    assert len(sizes) > 3


def test_the_noise_has_the_planned_size_and_empty_draws_get_it_too():
    """χ² on 20 × 10,001 draws of noise without any data; both tails, false alarm 1e-6."""
    model = a_model(10_000)
    data = TensorDataset(torch.empty(0, 10_000), torch.empty(0))
    private = made(a_plan(steps=20, clip_norm=3.0), data=data, model=model)
    total, count = 0.0, 0
    for batch in private.loader:
        assert batch.is_empty
        before = flat(model)
        private.step(batch)
        noise = (before - flat(model)) * 10 / (2.0 * 3.0)
        total += float((noise.double() ** 2).sum())
        count += len(noise)
    assert private.steps_taken == 20
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], count)
    assert low * 0.9999 < total < high * 1.0001


def test_backward_and_the_optimizer_do_the_same_as_step():
    def weights(drive):
        private = made(source=SeededSource(3))
        for batch in private.loader:
            drive(private, batch)
        return flat(private.model)

    def by_hand(private, batch):
        for inputs, targets in batch:
            private.backward(per_example(private.model(inputs), targets))
        private.optimizer.step()

    assert torch.equal(weights(lambda private, batch: private.step(batch)), weights(by_hand))


def test_a_loss_that_is_one_number_is_refused_with_the_remedy_and_nothing_is_charged(ledger):
    account = ledger.account("icu")
    private = made(loss=lambda outputs, targets: per_example(outputs, targets).mean(), account=account, run="r")
    with pytest.raises(InvalidArgument, match='reduction="none"'):
        train(private)
    assert ledger.balance("icu").spent == 0


def test_each_draw_is_used_once_and_there_are_no_more_than_planned():
    private = made()
    with pytest.raises(InvalidArgument, match="no draw"):
        private.optimizer.step()
    for batch in private.loader:
        private.step(batch)
        with pytest.raises(InvalidArgument):
            private.step(batch)
        with pytest.raises(InvalidArgument, match="no draw"):
            private.optimizer.step()
    assert private.steps_taken == 4
    assert private._batches.sampler.remaining == 0


def test_a_closure_is_refused_because_its_gradients_have_no_noise():
    private = made()
    next(private.loader)
    with pytest.raises(InvalidArgument, match="closure"):
        private.optimizer.step(lambda: torch.zeros(()))


def test_gradients_of_parameters_that_came_later_never_reach_the_model():
    private = made()
    stray = nn.Parameter(torch.zeros(2))
    private.optimizer.add_param_group({"params": [stray]})
    for batch in private.loader:
        stray.grad = torch.ones(2)
        private.step(batch)
    assert torch.equal(stray, torch.zeros(2))


def test_spent_is_exact_and_ends_at_the_guarantee():
    plan = LocalPlan(size=SIZE, batch_size=10, steps=4, clip_norm=1.0).calibrated(Guarantee(3.0, 1e-5))
    private = made(plan)
    assert private.spent().epsilon == 0
    for number, batch in enumerate(private.loader, start=1):
        private.step(batch)
        assert private.spent().epsilon == epsilon(Repeated(plan.step_event, number), 1e-5)
    assert 2.99 < private.spent().epsilon <= 3.0
    with pytest.raises(InvalidArgument, match="delta"):
        made().spent()


@pytest.fixture
def ledger(tmp_path):
    with dpfed.Ledger(f"sqlite:///{tmp_path}/ledger.db") as opened:
        opened.open("icu", epsilon=20.0, delta=1e-5)
        yield opened


def test_a_step_is_on_disk_before_its_noise_is_drawn(ledger, monkeypatch):
    private, seen = made(account=ledger.account("icu"), run="r"), []
    add = NoiseSource.add
    monkeypatch.setattr(
        NoiseSource, "add", lambda self, *a: (seen.append(ledger.reservations()[0].committed), add(self, *a))[1]
    )
    for batch in private.loader:
        private.step(batch)
        if len(seen) == 3:
            break
    assert seen == [1, 2, 3]


def test_no_noise_is_drawn_and_nothing_moves_when_the_ledger_refuses(ledger, monkeypatch):
    private = made(account=ledger.account("icu"), run="r")
    ledger.freeze("icu", reason="audit")
    before = flat(private.model)
    monkeypatch.setattr(NoiseSource, "add", lambda *a: pytest.fail("noise without a charge"))
    with pytest.raises(dpfed.errors.AccountUnavailable):
        private.step(next(private.loader))
    assert torch.equal(before, flat(private.model))
    assert private.steps_taken == 0


def test_a_restart_goes_on_with_the_draws_that_were_never_charged(ledger):
    first = made(account=ledger.account("icu"), run="r")
    batches = first.loader
    for _ in range(3):
        first.step(next(batches))
    second = made(account=ledger.account("icu"), run="r")
    assert (second.steps_taken, len(second._batches)) == (3, 1)
    with pytest.raises(LeaseLost):
        first.step(next(batches))
    train(second)
    with pytest.raises(BudgetExceeded, match="all 4 steps"):
        made(account=ledger.account("icu"), run="r")


def test_what_was_not_used_is_returned(ledger):
    private = made(account=ledger.account("icu"), run="r")
    private.step(next(private.loader))
    private.close()
    assert not ledger.reservations()
    with pytest.raises(NotReserved):
        private._held.commit(private.plan.step_event)


def test_an_account_for_another_unit_or_adjacency_is_refused(ledger):
    ledger.open("people", epsilon=20.0, delta=1e-5, unit="person")
    ledger.open("swaps", epsilon=20.0, delta=1e-5, adjacency="replace_one")
    for name in ("people", "swaps"):
        with pytest.raises(InvalidArgument, match=name):
            made(account=ledger.account(name), run="r")
    with pytest.raises(InvalidArgument, match="run"):
        made(run="r")


def test_an_example_that_is_not_a_number_counts_as_zero():
    data = some_data()
    data.tensors[0][7] = math.nan
    private = made(data=data)
    train(private)
    assert torch.isfinite(flat(private.model)).all()


def test_parameters_that_are_no_longer_finite_stop_the_run_and_the_charge_stays(ledger):
    private = made(a_plan(noise_multiplier=100.0), account=ledger.account("icu"), run="r", lr=1e38)
    with pytest.raises(PrivacyError, match="no longer finite"):
        train(private)
    assert ledger.reservations()[0].committed == private.steps_taken > 0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model": nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))}, "BatchNorm"),
        ({"max_physical_batch": 5000}, "at most 1024"),
        ({"data": DataLoader(some_data(), batch_size=4, drop_last=True)}, "drop_last"),
        ({"noise": "loud"}, "mode"),
    ],
)
def test_what_cannot_be_sound_is_refused_before_anything_is_reserved(ledger, change, match):
    with pytest.raises(InvalidArgument, match=match):
        made(account=ledger.account("icu"), run="r", **change)
    assert not ledger.reservations(open_only=False)


def test_an_optimizer_of_other_parameters_is_refused():
    model, other = a_model(), a_model()
    for parameters in (other.parameters(), [*model.parameters(), *other.parameters()], [model.weight]):
        with pytest.raises(InvalidArgument, match="optimizer"):
            make_private(model, torch.optim.SGD(parameters, lr=0.1), some_data(), a_plan(), loss=per_example)
    for value in model.parameters():
        value.requires_grad_(False)
    with pytest.raises(InvalidArgument, match="trainable"):
        make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), some_data(), a_plan(), loss=per_example)


def test_a_plan_without_noise_is_refused():
    with pytest.raises(InvalidArgument, match="noise"):
        made(a_plan(noise_multiplier=None))


def test_a_seeded_run_is_reproducible_and_stamped():
    ends = []
    for _ in range(2):
        private = made(source=SeededSource(5))
        train(private)
        ends.append(flat(private.model))
    assert torch.equal(*ends)
    assert "NOT PRIVATE" in repr(private)
    assert not private.is_private
    assert made().is_private


def test_two_runs_never_share_noise():
    ends = []
    for _ in range(2):
        private = made()
        train(private)
        ends.append(flat(private.model))
    assert not torch.equal(*ends)


def test_grid_mode_says_so():
    private = made(noise="grid")
    train(private)
    assert private.arithmetic == "grid"
    assert made().arithmetic == "ideal arithmetic"
