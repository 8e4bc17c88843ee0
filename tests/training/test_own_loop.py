from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.data import Dataset, TensorDataset

from dpfed import LocalPlan, make_private
from dpfed.errors import InvalidArgument
from dpfed.plan.tree import TreeNoise
from dpfed.randomness import SeededSource
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.own_loop import OwnLoop
from dpfed.training.reading import MicroBatch


def piece():
    return torch.randn(6, 3), torch.randn(6)


LOOPS = {
    "each output with each target": lambda model, x, y: (model(x) - y).square().mean(1),
    "another's target": lambda model, x, y: (model(x).squeeze(1) - y.flip(0)).square(),
    "sorted inputs": lambda model, x, y: (model(x[x[:, 0].argsort()]).squeeze(1) - y).square(),
    "mixed up": lambda model, x, y: (model(0.7 * x + 0.3 * x.roll(1, 0)).squeeze(1) - y).square(),
    "the largest as measure": lambda model, x, y: (model(x).squeeze(1) - y).square() / y.abs().max(),
    "weighted by the place": lambda model, x, y: (model(x).squeeze(1) - y).square() * torch.arange(6),
    "the mean left out": lambda model, x, y: (model(x).squeeze(1) - y).square() - y.mean().item(),
    "by numpy": lambda model, x, y: (model(torch.from_numpy(x.numpy()[::-1].copy())).squeeze(1) - y).square(),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_mixes_examples_is_refused(name):
    model = nn.Linear(3, 1)
    loop = OwnLoop(model)
    x, y = piece()
    loop.begin(MicroBatch((x, y), 6))
    losses = LOOPS[name](model, x, y)
    with pytest.raises(InvalidArgument, match=r"examples apart|lets Python decide"):
        loop.require_apart(losses)
    loop.close()


def test_a_tidy_loop_is_left_alone_and_what_comes_after_it_is_not_watched():
    model = nn.Linear(3, 1)
    loop = OwnLoop(model)
    for _ in range(2):
        x, y = piece()
        loop.begin(MicroBatch((x, y), 5))
        losses = nn.functional.binary_cross_entropy_with_logits(
            model(x * 2).squeeze(1), (y > 0).float(), reduction="none"
        )
        assert loop.current == (0, 5, True)
        loop.require_apart(losses)
        with pytest.raises(InvalidArgument, match="a second time"):
            assert loop.current
        assert losses.mean().item() > 0
    loop.close()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def released(size, loop):
    """What one step over so many records releases, in clip norms, and the sizes of the batches seen."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    before = torch.cat([value.detach().flatten() for value in model.parameters()])
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(9, 3, generator=generator), torch.randn(9, generator=generator)
    plan = LocalPlan(size=9, batch_size=9, steps=2, clip_norm=0.01, noise_multiplier=1e-9)
    optimizer = torch.optim.SGD(model.parameters(), lr=9 / 0.01)
    private = make_private(model, optimizer, TensorDataset(x[:size], y[:size]), plan)
    sizes = []
    for batch in private.loader:
        for inputs, targets in batch:
            sizes.append(len(inputs))
            private.backward(loop(model, inputs, targets))
        optimizer.step()
        break
    private.close()
    return before - torch.cat([value.detach().flatten() for value in model.parameters()]), sizes


def by_size(model, x, y):
    return 1e-3 * (model(x).squeeze(1) - y).square() / len(x)


def test_a_loop_cannot_follow_from_how_many_were_drawn():
    """Every micro-batch has the same number of rows, so that a loss divided by it is divided by a constant."""
    found = {size: released(size, by_size) for size in (1, 2, 8, 9)}
    assert len({tuple(sizes) for _, sizes in found.values()}) == 1
    assert (found[9][0] - found[8][0]).norm() <= 1 + 1e-5
    rows, alone = found[9][1][0], released(1, lambda *given: by_size(*given) / 2)[0]
    assert rows == 9
    assert torch.allclose(2 * alone, found[1][0], rtol=1e-3, atol=1e-6)


def test_an_empty_draw_looks_like_any_other():
    model = nn.Linear(3, 1)
    plan = LocalPlan(size=9, batch_size=2, steps=40, clip_norm=0.01, noise_multiplier=1e-9)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(9, 3), torch.randn(9))
    # Without a seed one run in a hundred would have no empty draw.
    private = make_private(model, optimizer, data, plan, source=SeededSource(1))
    seen = set()
    for batch in private.loader:
        before = model.weight.detach().clone()
        for inputs, targets in batch:
            seen.add((batch.is_empty, len(inputs)))
            private.backward((model(inputs).squeeze(1) - targets).square())
        optimizer.step()
        assert torch.allclose(model.weight, before, rtol=0, atol=1e-9) == batch.is_empty
    assert seen == {(True, 7), (False, 7)}
    private.close()


def test_batches_of_a_pass_look_alike_however_many_records_are_in_them():
    model, data = nn.Linear(3, 1), TensorDataset(torch.randn(200, 3), torch.randn(200))
    plan = LocalPlan(size=200, batch_size=10, steps=20, clip_norm=1.0, noise_multiplier=1.0, tree=TreeNoise())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    private = make_private(model, optimizer, data, plan, source=SeededSource(1))
    drawn, seen = set(), set()
    for batch in private.loader:
        parts = list(batch)
        drawn.add(len(batch.indices))
        seen.add((len(parts), len(parts[0][0])))
        for inputs, targets in batch:
            private.backward((model(inputs).squeeze(1) - targets).square())
        optimizer.step()
    assert min(drawn) < 10 < max(drawn)
    assert len(seen) == 1
    private.close()


@pytest.mark.parametrize("size", [1, 2, 9])
def test_a_loop_that_mixes_is_refused_whoever_was_drawn(size):
    with pytest.raises(InvalidArgument, match="examples apart"):
        released(size, LOOPS["another's target"])


def test_a_part_of_a_draw_counts_once_and_none_is_left_out():
    model = nn.Linear(3, 1)
    plan = LocalPlan(size=9, batch_size=9, steps=1, clip_norm=0.01, noise_multiplier=1e-9)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = TensorDataset(torch.randn(9, 3), torch.randn(9))
    private = make_private(model, optimizer, data, plan, max_physical_batch=5)
    draws = private.loader
    batch = next(draws)
    x, y = next(iter(batch))
    private.backward((model(x).squeeze(1) - y).square())
    with pytest.raises(InvalidArgument, match="a micro-batch of this batch was left out"):
        optimizer.step()
    x, y = next(iter(batch))
    losses = (model(x).squeeze(1) - y).square()
    with pytest.raises(InvalidArgument, match="a second time"):
        private.backward(losses)
    assert private.steps_taken == 0
    draws.close()
    private.close()


def test_a_model_may_not_be_told_the_place_of_a_row():
    class Told(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x, scale):
            return self.layer(x).squeeze(1) * scale

    model = Told()
    loop = OwnLoop(model)
    x, y = piece()
    loop.begin(MicroBatch((x, y), 6))
    losses = (model(x, torch.linspace(-1, 1, 6)) - y).square()
    with pytest.raises(InvalidArgument, match="examples apart"):
        loop.require_apart(losses)
    loop.begin(MicroBatch((x, y), 6))
    loop.require_apart((model(x, torch.ones(6)) - y).square())
    loop.close()


def test_a_micro_batch_that_nobody_can_watch_is_refused():
    loop = OwnLoop(nn.Linear(3, 1))
    with pytest.raises(InvalidArgument, match="mixing cannot be seen"):
        loop.begin(MicroBatch(object(), 1))
    loop.close()


def test_a_record_without_a_finite_gradient_stops_nobody_who_looks_for_anomalies():
    def roots(model, x, y):
        """Of what is zero for the first record, where a root has no slope."""
        return ((x[:, 0] - first) * model(x).squeeze(1)).abs().sqrt()

    first = torch.randn(9, 3, generator=torch.Generator().manual_seed(1))[0, 0]
    with torch.autograd.set_detect_anomaly(True):
        try:
            moved, _ = released(9, roots)
        except RuntimeError as error:
            pytest.fail(f"one record stops the step: {error}")
        assert torch.is_anomaly_enabled()
    assert torch.isfinite(moved).all()
    assert 0 < float(moved.norm()) < 8 + 1e-3


def test_a_parameter_that_a_loop_uses_beside_the_model_is_not_lost_in_silence():
    """The model's own call can be run again; a penalty that the loop adds cannot, and would vanish."""
    with pytest.raises(InvalidArgument, match="use weight outside of the model's call"):
        released(9, lambda model, x, y: (model(x).squeeze(1) - y).square() + model.weight.square().sum())


def test_what_is_left_of_an_earlier_micro_batch_is_refused_where_it_is_used():
    """A queue of earlier outputs, as contrastive losses have it: one record would act on those after it."""
    model = nn.Linear(3, 2)
    loop = OwnLoop(model)
    queue, total = [], torch.zeros(())
    for turn in range(2):
        x, y = piece()
        loop.begin(MicroBatch((x, y), 6))
        outputs = model(x)
        losses = outputs.square().sum(1)
        total = total + losses.detach().sum()  # for one's own eyes
        if turn:
            losses = losses + (outputs @ queue[0].t()).logsumexp(1)
        queue.append(outputs.detach())
        if turn:
            with pytest.raises(InvalidArgument, match="not known to keep examples apart"):
                loop.require_apart(losses)
        else:
            loop.require_apart(losses)
    loop.close()


class Taught(nn.Module):
    """A model that centres what it teaches by the mean of the batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)

    def forward(self, x, *, is_teacher=False):
        found = self.layer(x)
        return found - 50 * found.mean(0) if is_teacher else found


def by_no_grad(model, x, *, is_teacher):
    with torch.no_grad():
        return model(x, is_teacher=is_teacher)


def by_detach(model, x, *, is_teacher):
    return model(x, is_teacher=is_teacher).detach()


@pytest.mark.parametrize("taught", [by_no_grad, by_detach])
def test_a_call_of_the_model_without_a_part_in_the_gradient_may_not_mix(taught):
    """The engine looks at what is to learn: a target by another call of the model would be out of everybody's sight."""
    model = Taught()
    loop = OwnLoop(model)
    x, y = piece()
    loop.begin(MicroBatch((x, y), 6))
    losses = (model(x) - taught(model, x, is_teacher=True)).square().sum(1)
    with pytest.raises(InvalidArgument, match=r"not known to keep examples apart|where mixing is not checked"):
        loop.require_apart(losses)
    loop.begin(MicroBatch((x, y), 6))
    loop.require_apart((model(x) - by_no_grad(model, x, is_teacher=False)).square().sum(1))
    loop.close()


def queued(kept, outputs):
    queue = kept.setdefault("queue", [])
    queue.append(outputs.detach())
    return sum(queue[:-1], torch.zeros(())).sum()


def in_a_bank(kept, outputs):
    """Write a row into one place of a table, whose other places are read as well."""
    bank = kept.setdefault("bank", torch.zeros(4, 2))
    before = bank.sum()
    bank[1] = outputs.detach()[0]
    return before


def behind_its_back(kept, outputs):
    bank = kept.setdefault("bank", torch.zeros(2))
    before = bank.sum()
    bank.data.copy_(outputs.detach()[0])
    return before


def under_another_name(kept, outputs):
    """Keep another tensor on the same memory, made where nobody watches."""
    before = kept["late"]().sum() if "late" in kept else torch.zeros(())
    kept["late"] = outputs.detach
    return before


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("keep", [queued, in_a_bank, behind_its_back, under_another_name])
def test_what_is_left_of_an_earlier_micro_batch_is_found_wherever_it_lies(keep, rows):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    loop, kept = OwnLoop(model), {}
    for turn in range(2):
        x = torch.randn(rows, 3)
        loop.begin(MicroBatch((x,), rows))
        outputs = model(x)
        losses = (outputs * (1 + keep(kept, outputs))).square().sum(1)
        if turn:
            with pytest.raises(InvalidArgument, match=r"not known to keep examples apart|lets Python decide"):
                loop.require_apart(losses)
        else:
            loop.require_apart(losses)
    loop.close()


def test_a_teacher_may_be_a_copy_of_the_model_made_in_the_loop():
    model = Taught()
    loop = OwnLoop(model)
    for turn in range(3):
        x, y = piece()
        loop.begin(MicroBatch((x, y), 6))
        if turn == 1:
            model(x)
        teacher = copy.deepcopy(model)
        losses = (model(x) - by_no_grad(teacher, x, is_teacher=turn == 2)).square().sum(1)
        if not turn:
            loop.require_apart(losses)
        else:
            with pytest.raises(InvalidArgument, match=r"not known to keep examples apart|where mixing is not checked"):
                loop.require_apart(losses)
    loop.close()


def test_losses_that_are_refused_leave_no_watch_behind():
    plan = LocalPlan(size=9, batch_size=9, steps=1, clip_norm=0.01, noise_multiplier=1e-9)
    model = nn.Linear(3, 1)
    data = TensorDataset(torch.randn(9, 3), torch.randn(9))
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), data, plan)
    ((x, y),) = next(private.loader)
    with pytest.raises(InvalidArgument, match="inside `for batch in"):
        private.backward((model(x).squeeze(1) - y).square())
    assert _get_current_dispatch_mode() is None
    private.close()


class Ragged(Dataset):
    """Records of three numbers, and one, the second, that has only two."""

    def __init__(self) -> None:
        self._rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number):
        return (self._rows[number][:2] if number == 1 else self._rows[number],)


class OnceUsed(nn.Module):
    """Uses one of its layers for records of the usual form only, and turns the others round if it is told to."""

    def __init__(self, *, turns) -> None:
        super().__init__()
        self.first, self.both = nn.Linear(3, 1), nn.Linear(2, 1)
        self.turns = turns

    def forward(self, x):
        own = self.both(x[:, :2]).squeeze(1)
        if x.shape[1] == 3:
            return own + self.first(x).squeeze(1)
        return own.flip(0) if self.turns else own


def moved_by(wanted, *, turns):
    """What a step of an own loop that has drawn these records moves the model by, in clip norms."""
    plan = LocalPlan(size=5, batch_size=4, steps=1, clip_norm=0.1, noise_multiplier=1e-9)
    for seed in range(10_000):
        torch.manual_seed(0)
        model = OnceUsed(turns=turns)
        before = nn.utils.parameters_to_vector(model.parameters()).detach()
        optimizer = torch.optim.SGD(model.parameters(), lr=40.0)
        private = make_private(model, optimizer, Ragged(), plan, source=SeededSource(seed))
        batch = next(private.loader)
        if batch.indices.tolist() == wanted:
            for (x,) in batch:
                private.backward(model(x).square())
            optimizer.step()
            private.close()
            return before - nn.utils.parameters_to_vector(model.parameters()).detach()
        private.close()
    raise AssertionError(wanted)


@pytest.mark.parametrize("turns", [False, True])
def test_a_record_of_another_form_is_neither_refused_nor_counted_otherwise_when_it_comes_first(turns):
    """Where rows may have been moved (turns) it counts as zero, first or later; else as any other."""
    usual, both = moved_by([0, 2, 3, 4], turns=turns), moved_by([0, 1, 2, 3, 4], turns=turns)
    rest, first = moved_by([2, 3, 4], turns=turns), moved_by([1, 2, 3, 4], turns=turns)
    for without, found in ((usual, both), (rest, first)):
        assert float((found - without).norm()) == pytest.approx(0.0 if turns else 1.0, abs=1e-3)
    assert float((both - first).norm()) <= 1 + 1e-3


def test_reasons_of_an_earlier_run_do_not_show_in_a_later_one():
    model = OnceUsed(turns=True)
    data = TensorDataset(torch.randn(4, 3), torch.randn(4))
    plan = LocalPlan(size=4, batch_size=4, steps=2, clip_norm=0.1, noise_multiplier=1.0)
    with ClippedGradients(model, clip_norm=1.0, is_tried=True) as engine:
        engine.clipped(make_forward(model, lambda output, _: output.square(), torch.randn(4, 2), torch.zeros(4)))
        assert engine.slow_reasons
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = make_private(model, optimizer, data, plan, loss=lambda output, y: (output - y).square())
    assert private.slow_reasons == ()
    private.close()
