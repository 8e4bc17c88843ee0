"""DP-SGD as a whole: what is released is the clipped sum with the planned noise, and it was charged before."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

import dpfed
from dpfed.accounting import epsilon
from dpfed.errors import BudgetExceeded, InvalidArgument, LeaseLost, NotReserved, PrivacyError
from dpfed.events import Repeated
from dpfed.guarantee import Guarantee
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import SeededSource
from dpfed.training.engine.clip import TOLERANCE
from dpfed.training.noise import NoiseSource
from dpfed.training.optimizing import Constant, Cosine, Step
from dpfed.training.private import make_private
from private_runs import LOSS, SIZE, a_model, a_plan, flat, made, own_loop, per_example, some_data, train

FALSE_ALARM = 1e-6


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
        private._gradients._programs.capture.take()  # what the forward passes above recorded
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
    def weights(drive, **own):
        private = made(source=SeededSource(3), **own)
        for batch in private.loader:
            drive(private, batch)
        return flat(private.model)

    def by_hand(private, batch):
        for inputs, targets in batch:
            private.backward(per_example(private.model(inputs), targets))
        private.optimizer.step()

    assert torch.allclose(weights(lambda private, batch: private.step(batch)), weights(by_hand, loss=None))


class Words(Dataset):
    """Records of a dict of tensors and a label, as loaders of text have them."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return {"x": torch.full((3,), index / SIZE), "mask": torch.ones(3, dtype=torch.long)}, torch.tensor(0.5)


class OfDicts(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs["x"] * inputs["mask"])


BAD_LOSSES = {
    "mean": lambda outputs, targets: per_example(outputs, targets).mean(),
    "sum": lambda outputs, targets: per_example(outputs, targets).sum(),
    "one column": lambda outputs, targets: LOSS(outputs, targets[:, None]),
    "no axis for a batch of one": lambda outputs, targets: LOSS(outputs, targets[:, None]).squeeze(),
    "no tensor": lambda outputs, targets: per_example(outputs, targets).tolist(),
}


@pytest.mark.parametrize("kind", ["tensors", "records", "dicts", "loader"])
@pytest.mark.parametrize("loss", BAD_LOSSES.values(), ids=BAD_LOSSES)
def test_a_loss_of_another_shape_is_refused_by_make_private_and_nothing_is_reserved(ledger, kind, loss):
    data = {"tensors": some_data(), "records": Records(some_data().tensors), "dicts": Words()}
    data["loader"] = DataLoader(data["records"], batch_size=4, collate_fn=lambda rows: default_collate(rows))
    model = OfDicts(3, 1) if kind == "dicts" else a_model()
    source = SeededSource(1)
    with pytest.raises(InvalidArgument, match=r'one number per example.*reduction="none"'):
        made(data=data[kind], model=model, loss=loss, account=ledger.account("icu"), run="r", source=source)
    assert not ledger.reservations(open_only=False)
    assert "training samples" not in source._streams  # nobody was sampled


def test_records_of_dicts_are_trained_on():
    private = made(data=Words(), model=OfDicts(3, 1))
    train(private)
    assert private.steps_taken == 4


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (Endless(), "drawn by number"),
        (iter([]), "drawn by number"),
        (DataLoader(some_data(), batch_size=None), "its own batches"),
        (DataLoader(Words(), batch_size=None), "its own batches"),
    ],
)
def test_data_that_cannot_be_drawn_are_refused_for_that_reason(data, match):
    with pytest.raises(InvalidArgument, match=match):
        made(data=data)


def test_records_that_are_no_pairs_are_refused_by_make_private_if_there_is_a_loss(ledger):
    data = TensorDataset(*some_data().tensors, torch.zeros(SIZE))
    for given in (data, Records(data.tensors)):
        with pytest.raises(InvalidArgument, match="pairs of inputs and target"):
            made(data=given, account=ledger.account("icu"), run="r")
        made(data=given, loss=None)
    assert not ledger.reservations(open_only=False)


def test_a_step_that_failed_halfway_may_be_taken_again_and_is_then_whole():
    """At next to no noise: what is released is the sum of the draw, once."""
    ends = []
    for failures in (0, 2):
        private = made(a_plan(batch_size=SIZE, noise_multiplier=1e-9, steps=1), max_physical_batch=10)
        left = [failures] * 3

        def failing(outputs, targets, left=left):
            if outputs.requires_grad and len(left) > 1 and left[0]:
                left.pop()
                raise KeyboardInterrupt
            return per_example(outputs, targets)

        private._loss = failing
        batch = next(private.loader)
        for _ in range(failures):
            with pytest.raises(KeyboardInterrupt):
                private.step(batch)
        assert next(private.loader) is batch
        private.step(batch)
        ends.append(flat(private.model))
    assert torch.allclose(*ends, atol=1e-6)


def test_a_draw_that_the_ledger_refused_to_charge_comes_again(ledger):
    private = made(account=ledger.account("icu"), run="r")
    batch = next(private.loader)
    ledger.freeze("icu", reason="audit")
    with pytest.raises(dpfed.errors.AccountUnavailable):
        private.step(batch)
    ledger.unfreeze("icu", reason="done")
    assert next(private.loader) is batch
    train(private)
    assert private.steps_taken == 4


def test_a_closure_is_refused_because_its_gradients_have_no_noise():
    private = made()
    next(private.loader)
    with pytest.raises(InvalidArgument, match="closure"):
        private.optimizer.step(lambda: torch.zeros(()))


def test_a_closure_by_name_is_refused_too():
    private = made()
    next(private.loader)
    with pytest.raises(InvalidArgument, match="closure"):
        private.optimizer.step(closure=lambda: 0.0)
    assert private.steps_taken == 0


@pytest.mark.parametrize(("clip_norm", "share"), [(1e-6, -0.5), (1e6, 0.5)])
def test_an_example_moves_the_count_of_an_adaptive_clip_by_one_half(clip_norm, share):
    adaptive = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=10.0)
    private = made(a_plan(batch_size=SIZE, clip_norm=clip_norm, adaptive=adaptive), loss=None)
    draws = private.loader
    ((inputs, targets),) = next(draws)
    private.backward(per_example(private.model(inputs), targets))
    assert private._count == share * SIZE


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
        private._paid.take()


def test_an_account_for_another_unit_or_adjacency_is_refused(ledger):
    ledger.open("people", epsilon=20.0, delta=1e-5, unit="person")
    ledger.open("swaps", epsilon=20.0, delta=1e-5, adjacency="replace_one")
    for name in ("people", "swaps"):
        with pytest.raises(InvalidArgument, match=name):
            made(account=ledger.account(name), run="r")
    with pytest.raises(InvalidArgument, match="run"):
        made(run="r")


def test_a_plan_for_persons_is_charged_to_an_account_for_persons(ledger):
    ledger.open("people", epsilon=20.0, delta=1e-5, unit="person")
    private = made(a_plan(unit="person"), account=ledger.account("people"), run="r")
    private.step(next(private.loader))
    assert private.spent(1e-5).unit == "person"
    private.close()


class Records(Dataset):
    """The same records, but nobody can look at them all at once."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1], ids=["features", "target"])
def test_during_training_an_example_that_is_not_finite_counts_as_zero_in_silence(bad, place):
    """Step by step the same as without the record, at next to no noise: every draw holds all of the others."""
    plan = a_plan(noise_multiplier=1e-9, batch_size=SIZE)
    ends = []
    for kept in (range(SIZE), [one for one in range(SIZE) if one != 7]):
        tensors = [tensor[list(kept)].clone() for tensor in some_data().tensors]
        if len(kept) == SIZE:
            tensors[place][7] = bad
        private = made(plan, data=Records(tensors), lr=0.1)
        train(private)
        ends.append(flat(private.model))
    assert torch.allclose(*ends, atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize("place", [0, 1], ids=["features", "targets"])
@pytest.mark.parametrize(
    "wrap", [lambda data: data, lambda data: DataLoader(data, batch_size=4)], ids=["set", "loader"]
)
def test_tensors_with_values_that_are_not_finite_are_refused_before_anything_is_reserved(ledger, wrap, place, bad):
    data = some_data()
    data.tensors[place][7] = bad
    source = SeededSource(1)
    with pytest.raises(InvalidArgument, match="not finite"):
        made(data=wrap(data), account=ledger.account("icu"), run="r", source=source)
    assert not ledger.reservations(open_only=False)
    assert not source._streams  # nobody was sampled


def test_a_collate_that_fills_gaps_is_left_to_do_so():
    data = some_data()
    data.tensors[0][7] = math.nan
    train(made(data=DataLoader(data, batch_size=4, collate_fn=lambda r: default_collate(r))))


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(torch.randn(SIZE, 5), torch.randn(SIZE)),
        TensorDataset(torch.randn(SIZE, 3).double(), torch.randn(SIZE)),
        TensorDataset(torch.randn(SIZE, 3), torch.randn(SIZE, 7)),
    ],
    ids=["features", "precision", "targets"],
)
def test_tensors_that_do_not_fit_the_model_are_refused_before_anything_is_reserved(ledger, data):
    with pytest.raises(InvalidArgument, match=r"fails on made-up examples of shape|one number per example"):
        made(data=data, loss=lambda o, t: (o[:, 0] - t).square(), account=ledger.account("icu"), run="r")
    assert not ledger.reservations(open_only=False)


def test_records_of_a_data_set_that_do_not_fit_the_model_are_refused_before_anything_is_reserved(ledger):
    data = Records([torch.randn(SIZE, 5), torch.randn(SIZE)])
    with pytest.raises(InvalidArgument, match="fails on made-up examples of shape"):
        made(a_plan(batch_size=SIZE), data=data, account=ledger.account("icu"), run="r")
    assert not ledger.reservations(open_only=False)


LABELS = nn.CrossEntropyLoss(reduction="none")


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, range(SIZE))], ids=["all", "a part"])
@pytest.mark.parametrize("bad", [-1, 5, 1000, -50])
def test_a_label_out_of_range_is_refused_before_the_first_draw_and_not_shown(ledger, bad, wrap):
    x, labels = torch.randn(SIZE, 3), torch.arange(SIZE) % 5
    labels[17] = -100  # the class that the loss leaves out
    model = nn.Linear(3, 5)
    made(model=model, data=wrap(TensorDataset(x, labels.clone())), loss=LABELS).close()
    labels[31] = bad
    with pytest.raises(InvalidArgument, match="fails on a record") as refusal:
        made(model=model, data=wrap(TensorDataset(x, labels)), loss=LABELS, account=ledger.account("icu"), run="r")
    assert str(bad) not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert not ledger.reservations(open_only=False)


@pytest.mark.parametrize("bad", [-1, 7, 10**9])
def test_a_token_out_of_the_table_is_refused_before_the_first_draw(ledger, bad):
    tokens = torch.randint(0, 7, (SIZE, 4))
    model = nn.Sequential(nn.Embedding(7, 2), nn.Flatten(), nn.Linear(8, 1))
    made(model=model, data=TensorDataset(tokens.clone(), torch.zeros(SIZE))).close()
    tokens[11, 2] = bad
    with pytest.raises(InvalidArgument, match="tokens outside its table"):
        made(model=model, data=TensorDataset(tokens, torch.zeros(SIZE)), account=ledger.account("icu"), run="r")
    assert not ledger.reservations(open_only=False)


def test_columns_whose_extremes_never_meet_in_a_record_are_accepted():
    """No record has both columns high, and together they would leave the table."""
    tokens = torch.tensor([[0, 6], [6, 0]] * (SIZE // 2))
    table = nn.Embedding(7, 1)

    class Added(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = table

        def forward(self, x):
            return self.table(x.sum(1))

    train(made(model=Added(), data=TensorDataset(tokens, torch.zeros(SIZE))))


def test_a_loss_over_the_realised_batch_size_is_refused_before_anything_is_reserved(ledger):
    for loss in (
        lambda o, t: per_example(o, t) / len(t),
        lambda o, t: per_example(o, t) * t.new_ones(t.shape).sum().rsqrt(),
    ):
        with pytest.raises(InvalidArgument, match="removing one example moved"):
            made(loss=loss, account=ledger.account("icu"), run="r")
    assert not ledger.reservations(open_only=False)


def test_a_model_that_is_not_finite_at_the_start_is_refused():
    model = a_model()
    model.bias.data.fill_(math.nan)
    with pytest.raises(InvalidArgument, match="NaN or infinite"):
        made(model=model)


def test_micro_batches_are_added_in_float64():
    private = made()
    for value in (1.0, 2.0**-30, 2.0**-31):
        private._add({"bias": torch.full((1,), value)})
    assert float(private._sum["bias"]) == 1 + 2.0**-30 + 2.0**-31


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_single_number_that_is_no_longer_finite_stops_the_run(bad: float):
    private = made()
    batch = next(iter(private.loader))
    private.model.weight.data[0, 1] = bad
    with pytest.raises(PrivacyError, match="weight is no longer finite after step 1"):
        private.step(batch)


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


# --- optimizers, schedules, devices ---


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.1, weight_decay=0.1, momentum=0.5),
    ],
    ids=["SGD", "AdamW", "Adagrad", "RMSprop"],
)
def test_any_optimizer_makes_of_the_noisy_gradients_what_it_always_does(make, monkeypatch):
    """A plain copy of model and optimizer, given the same gradients, goes the same way, weight decay and all."""
    model, plain = a_model(), a_model()
    given, twin = make(model.parameters()), make(plain.parameters())
    private = make_private(model, given, some_data(), a_plan(), loss=per_example)
    add = NoiseSource.add
    released = []

    def noted(self, *a):
        noisy = add(self, *a)
        released.append({name: value.clone() for name, value in noisy.items()})  # they are divided where they are
        return noisy

    monkeypatch.setattr(NoiseSource, "add", noted)
    train(private)
    for noisy in released:
        for name, parameter in plain.named_parameters():
            parameter.grad = noisy[name] / 10
        twin.step()
    assert len(released) == 4
    assert torch.equal(flat(model), flat(plain))


def test_an_optimizer_that_needs_a_closure_is_refused_before_anything_is_reserved(ledger):
    model = a_model()
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(InvalidArgument, match="LBFGS computes gradients several times"):
        make_private(model, optimizer, some_data(), a_plan(), loss=per_example, account=ledger.account("icu"), run="r")
    assert not ledger.reservations(open_only=False)


def rates_of(private, after=lambda: None):
    found = []
    for batch in private.loader:
        private.optimizer.register_step_post_hook(lambda optimizer, *_: found.append(optimizer.param_groups[0]["lr"]))
        private.step(batch)
        after()
        break
    for batch in private.loader:
        private.step(batch)
        after()
    return found


@pytest.mark.parametrize("schedule", [Constant(), Cosine(0.1), Step(every=2, by=0.5)], ids=repr)
def test_a_schedule_sets_the_rate_of_each_step(schedule):
    found = rates_of(made(a_plan(steps=5), lr=0.4, schedule=schedule))
    assert found == [0.4 * schedule.factor(step, 5) for step in range(5)]


def test_after_a_restart_a_schedule_goes_on_where_the_charges_are(ledger):
    first = made(account=ledger.account("icu"), run="r", schedule=Step(every=1, by=0.5), lr=1.0)
    first.step(next(first.loader))
    second = made(account=ledger.account("icu"), run="r", schedule=Step(every=1, by=0.5), lr=1.0)
    assert rates_of(second) == [0.5, 0.25, 0.125]


def test_a_schedule_that_gives_no_factor_is_refused_before_the_charge(ledger):
    class Broken:
        def factor(self, step, steps):
            return math.nan

    private = made(account=ledger.account("icu"), run="r", schedule=Broken())
    with pytest.raises(InvalidArgument, match="schedule"):
        train(private)
    assert ledger.balance("icu").spent == 0


def test_schedules_of_torch_keep_working():
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = make_private(model, optimizer, some_data(), a_plan(), loss=per_example)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    assert rates_of(private, schedule.step) == [1.0, 0.5, 0.25, 0.125]


def test_a_device_is_where_model_batches_and_noise_are():
    """Only the CPU: what it moves between devices is tested on the loader, and no GPU was ever used."""
    private = made(device="cpu")
    for batch in private.loader:
        private.step(batch)
    assert {value.device.type for value in private.model.parameters()} == {"cpu"}


# --- canaries ---


def moved_by(canaries, clip_norm=2.0, steps=3):
    """Nobody is drawn and there is no noise to speak of: what a step moves is what the canaries add."""
    nobody = TensorDataset(torch.empty(0, 3), torch.empty(0))
    plan = a_plan(noise_multiplier=1e-9, clip_norm=clip_norm, steps=steps)
    private = made(plan, data=nobody, canaries=canaries)
    moves = []
    for batch in private.loader:
        before = flat(private.model)
        private.step(batch)
        moves.append((before - flat(private.model)) * 10)
    return moves


def test_a_canary_shorter_than_the_clip_is_added_as_it_is_at_its_step_only():
    canary = {"weight": torch.tensor([[0.5, -1.0, 1.0]]), "bias": torch.tensor([0.25])}
    moves = moved_by(lambda step: [canary] if step == 1 else ())
    assert torch.allclose(moves[1], torch.tensor([0.5, -1.0, 1.0, 0.25]), atol=1e-5)
    assert float(moves[0].norm()) < 1e-5 > float(moves[2].norm())


@pytest.mark.parametrize("length", [2.0001, 1e30])
def test_a_canary_is_cut_to_the_clip_like_an_example(length):
    canary = {"weight": torch.tensor([[length, 0.0, 0.0]])}
    (move,) = moved_by(lambda step: [canary], steps=1)
    assert float(move.norm()) == pytest.approx(2.0 * (1 - TOLERANCE), abs=1e-5)
    (move,) = moved_by(lambda step: [canary, canary], steps=1)
    assert float(move.norm()) == pytest.approx(4.0 * (1 - TOLERANCE), abs=1e-5)


@pytest.mark.parametrize(
    "canary",
    [{"other": torch.zeros(3)}, {"weight": torch.zeros(3)}, {"weight": [1.0]}, {"bias": torch.tensor([math.nan])}],
    ids=["name", "shape", "type", "nan"],
)
def test_a_canary_that_is_no_gradient_of_the_model_is_refused_before_the_charge(ledger, canary):
    private = made(account=ledger.account("icu"), run="r", canaries=lambda step: [canary])
    with pytest.raises(InvalidArgument):
        train(private)
    assert ledger.balance("icu").spent == 0


def test_a_run_with_canaries_says_so():
    assert "CANARIES" in repr(made(canaries=lambda step: ()))
    assert "CANARIES" not in repr(made())


# --- one record, one loss ---


def test_a_record_adds_one_loss_to_a_step_and_no_more():
    private = made(a_plan(batch_size=SIZE), loss=None)
    draws = private.loader
    ((inputs, targets),) = next(draws)
    private.backward(per_example(private.model(inputs), targets))
    again = per_example(private.model(inputs), targets)
    with pytest.raises(InvalidArgument, match="used a second time"):
        private.backward(again)
    with pytest.raises(InvalidArgument, match="no open batch"):
        private.optimizer.step()
    private = made(a_plan(batch_size=SIZE), loss=None)
    batch = next(private.loader)
    for inputs, targets in batch:
        private.backward(per_example(private.model(inputs), targets))
    inputs, targets = next(iter(batch))
    again = per_example(private.model(inputs), targets)
    with pytest.raises(InvalidArgument, match="a second time"):
        private.backward(again)


def test_losses_of_a_loop_are_refused_where_the_loss_was_given():
    """Such a loop is not watched: its batches have the sizes of the draws."""
    private = made(a_plan(batch_size=SIZE))
    ((inputs, targets),) = next(private.loader)
    with pytest.raises(InvalidArgument, match=r"call step\(batch\), or make_private without a loss"):
        private.backward(per_example(private.model(inputs), targets))


def test_a_draw_of_which_a_part_failed_is_not_released():
    private = made(a_plan(batch_size=SIZE), max_physical_batch=10)
    calls = []

    def failing(outputs, targets):
        calls.append(outputs.requires_grad)
        if sum(calls) == 5:  # the first micro-batch is looked at twice more
            raise KeyboardInterrupt
        return per_example(outputs, targets)

    private._loss = failing
    batch = next(private.loader)
    with pytest.raises(KeyboardInterrupt):
        private.step(batch)
    with pytest.raises(InvalidArgument, match="no open batch"):
        private.optimizer.step()
    assert private.steps_taken == 0
    assert next(private.loader) is batch


# --- examples that mix ---


class Centred(nn.Module):
    """Mixes examples without a gradient between them."""

    def forward(self, x):
        return x - x.detach().mean(0)


def balanced(outputs, targets):
    """A loss weighted by how the others of the batch look: no gradient tells."""
    return per_example(outputs, targets) * targets.abs().mean()


@pytest.mark.parametrize(
    "change",
    [{"model": nn.Sequential(Centred(), nn.Linear(3, 1))}, {"loss": balanced}],
    ids=["model", "loss"],
)
def test_examples_that_mix_without_a_gradient_are_refused_before_anything_is_reserved(ledger, change):
    with pytest.raises(InvalidArgument, match="moved the output of another"):
        made(account=ledger.account("icu"), run="r", **change)
    assert not ledger.reservations(open_only=False)


def test_examples_that_mix_are_refused_in_loops_that_compute_losses_themselves_too(ledger):
    model = nn.Sequential(Centred(), nn.Linear(3, 1))
    private = made(a_plan(batch_size=SIZE), model=model, loss=None, account=ledger.account("icu"), run="r")
    with pytest.raises(InvalidArgument, match="examples may meet in the model"):
        own_loop(private)
    assert ledger.balance("icu").spent == 0


def test_a_loop_of_ones_own_leaves_no_hooks_behind():
    private = made(a_plan(batch_size=SIZE), loss=None)
    own_loop(private)
    private.close()
    assert not private.model._forward_pre_hooks
    assert not private.model._forward_hooks


def test_dropout_in_training_mode_is_not_taken_for_mixing():
    model = nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    private = made(model=model)
    train(private)
    assert model.training
    assert private.slow_reasons == ()


class Branching(nn.Module):
    """A model that sorts long records, which keeps no example in its place, and counts them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if x.shape[1] > 5:
            self.seen += 1
            x = x[x.sum((1, 2)).argsort()]
        return self.layer(x).mean(1)


class Lengths(Dataset):
    """Records of one length, and a long one at the end if `is_odd`."""

    def __init__(self, *, is_odd):
        self.lengths = [5] * 8 + [9] * is_odd

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, number):
        return torch.ones(self.lengths[number], 3), number % 2


def branching(*, is_odd):
    model, plan = Branching(), a_plan(size=9, batch_size=9, steps=1)
    loss = nn.CrossEntropyLoss(reduction="none")
    return make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), Lengths(is_odd=is_odd), plan, loss=loss)


@pytest.mark.parametrize("is_odd", [False, True])
def test_why_a_model_is_slow_tells_nothing_of_the_records_drawn(is_odd):
    private = branching(is_odd=is_odd)
    train(private)
    assert private.slow_reasons == ()
    private.close()


def test_a_run_that_was_closed_looks_at_no_record():
    private = branching(is_odd=True)
    batch = next(private.loader)
    private.close()
    with pytest.raises(InvalidArgument, match="each draw is used once"):
        private.step(batch)
    with pytest.raises(InvalidArgument, match="this run was closed"):
        next(private.loader)
    assert private.model.seen == 0


@pytest.mark.parametrize("loss", [None, per_example])
def test_a_loop_that_adds_up_nothing_is_refused_whether_somebody_was_drawn_or_not(loss):
    nobody = a_plan(batch_size=1, size=10**6)
    private = made(nobody, loss=loss)
    batch = next(private.loader)
    assert batch.is_empty
    with pytest.raises(InvalidArgument, match="no gradient was clipped for this batch"):
        private.optimizer.step()
    assert private.steps_taken == 0
    private.close()
