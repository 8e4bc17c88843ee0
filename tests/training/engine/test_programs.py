from __future__ import annotations

import copy
import gc
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from dpfed.errors import InvalidArgument
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from one_by_one import clipped, gradients

from clipped import distance, flat  # isort: skip


class Changing(nn.Module):
    """A model that is told what to do with its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.move = lambda x: x

    def forward(self, x):
        return self.head(self.move(self.body(x).tanh()))


def squares(output, targets):
    return (output - targets.unsqueeze(1)).square().sum(1)


def data(size=6):
    torch.manual_seed(3)
    return torch.randn(size, 3), torch.randn(size)


def alone(model, loss, x, y, clip_norm):
    """The clipped sum of a loop over single records."""
    rows = [gradients(loss(model(x[n : n + 1]), y[n : n + 1]), model) for n in range(len(x))]
    return clipped({name: torch.cat([row[name] for row in rows]) for name in rows[0]}, clip_norm)


def test_a_program_that_changes_is_looked_at_again():
    model, (x, y) = Changing(), data()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        forward = make_forward(model, squares, x, y)
        engine.clipped(forward)
        assert engine.slow_reasons == ()
        model.move = lambda hidden: hidden.flip(0)
        found, _ = engine.clipped(forward)
        assert engine.slow_reasons == ("flip is not known to keep examples apart",)
        assert distance(found, alone(model, squares, x, y, 0.5)) < 1e-5
        model.move = lambda hidden: hidden
        assert distance(engine.clipped(forward)[0], alone(model, squares, x, y, 0.5)) < 1e-5


@pytest.mark.parametrize("place", range(6))
def test_one_unusual_record_that_changes_the_order_moves_the_sum_by_at_most_the_clip(place):
    """A2: where rows are sorted, a layer saw them at other places than the layer before it."""
    model, (x, y) = Changing(), data()
    x[2] *= 30
    model.move = lambda hidden: hidden[hidden[:, 0].argsort()][hidden[:, 0].argsort().argsort()]
    kept = [row for row in range(6) if row != place]
    with ClippedGradients(model, clip_norm=0.5) as engine:
        for _ in range(3):  # at every step, not now and then
            whole, _ = engine.clipped(make_forward(model, squares, x, y))
            fewer, _ = engine.clipped(make_forward(model, squares, x[kept], y[kept]))
            assert float((flat(whole) - flat(fewer)).norm()) <= 0.5


def test_a_number_that_follows_from_the_batch_size_goes_the_slow_way():
    model, (x, y) = Changing(), data()
    for loss in (
        lambda output, targets: squares(output, targets) / len(targets),
        lambda output, targets: squares(output, targets) * torch.tensor(1.0 / len(targets)),
    ):
        with ClippedGradients(model, clip_norm=100.0) as engine:
            found, _ = engine.clipped(make_forward(model, loss, x, y))
            assert (
                engine.way(make_forward(model, loss, x, y)).why == "what is computed depends on the number of examples"
            )
        assert distance(found, alone(model, loss, x, y, 100.0)) < 1e-5


def test_a_branch_that_the_examples_decide_goes_the_slow_way():
    model, (x, y) = Changing(), data()
    model.move = lambda hidden: hidden if hidden.sum() > 0 else -hidden
    with ClippedGradients(model, clip_norm=0.5) as engine:
        found, _ = engine.clipped(make_forward(model, squares, x, y))
        assert "lets the examples decide" in engine.slow_reasons[0]
    assert distance(found, alone(model, squares, x, y, 0.5)) < 1e-5


def test_two_losses_with_one_graph_are_two_programs():
    """Whose target is taken leaves no trace in the graph."""
    model, (x, y) = Changing(), data()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        engine.clipped(make_forward(model, squares, x, y))
        assert engine.slow_reasons == ()
        engine.clipped(make_forward(model, lambda output, targets: squares(output, targets.flip(0)), x, y))
        assert engine.slow_reasons != ()


def test_two_losses_that_ask_the_same_of_torch_are_two_programs():
    """A fraction is no part of what is asked, and one of them follows from the number of examples."""
    model, (x, y) = Changing(), data()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        engine.clipped(
            make_forward(model, lambda output, targets: squares(output, targets) * (0 * len(output) + 0.5), x, y)
        )
        assert engine.slow_reasons == ()
        engine.clipped(make_forward(model, lambda output, targets: squares(output, targets) * (1 / len(output)), x, y))
        assert engine.slow_reasons == ("what is computed depends on the number of examples",)


class Picky(nn.Module):
    """Fails on a record with a large number, as a table does on a token out of range."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 2)

    def forward(self, x):
        return self.table(x).sum(1)


def test_a_record_on_which_the_loss_fails_counts_as_zero():
    model = Picky()
    good, y = torch.randint(0, 5, (4, 3)), torch.zeros(4)
    bad = torch.cat([good, torch.tensor([[0, 9, 0]])])
    with ClippedGradients(model, clip_norm=0.5, is_tried=True) as engine:
        expected, _ = engine.clipped(make_forward(model, squares, good, y))
        found, norms = engine.clipped(make_forward(model, squares, bad, torch.zeros(5)))
    assert distance(found, expected) < 1e-6
    assert norms.isinf().tolist() == [False] * 4 + [True]


def test_records_that_all_fail_count_as_zero():
    model = Picky()
    with ClippedGradients(model, clip_norm=0.5, is_tried=True) as engine:
        found, norms = engine.clipped(make_forward(model, squares, torch.full((3, 3), 9), torch.zeros(3)))
    assert not any(value.any() for value in found.values())
    assert norms.isinf().all()


def test_what_fails_the_first_time_is_refused_and_not_taken_for_a_records_fault():
    model = Picky()
    with ClippedGradients(model, clip_norm=0.5) as engine, pytest.raises(IndexError):
        engine.clipped(make_forward(model, squares, torch.full((3, 3), 9), torch.zeros(3)))


def test_tensors_without_the_example_in_front_are_refused():
    model = Changing()
    with pytest.raises(InvalidArgument, match="example as first axis"):
        make_forward(model, squares, torch.randn(4, 3), torch.randn(5))


class Placed(nn.Module):
    """A parameter with a row for each place in the batch, all alike at first."""

    def __init__(self, rows) -> None:
        super().__init__()
        self.rows, self.head, self._choose = nn.Parameter(torch.zeros(20, 3)), nn.Linear(3, 2), rows

    def forward(self, x):
        return self.head(x + self._choose(self.rows, x))


@pytest.mark.parametrize(
    "rows",
    [lambda rows, x: rows[: len(x)], lambda rows, x: rows[len(x)], lambda rows, x: rows[torch.arange(len(x))]],
    ids=["by place", "by size", "by number"],
)
def test_rows_of_a_parameter_that_are_alike_at_first_are_no_constants(rows):
    model, (x, y) = Placed(rows), data()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        engine.clipped(make_forward(model, squares, x, y))
        assert engine.slow_reasons
    assert not model.rows.any()


class Scaled(nn.Module):
    def __init__(self, constant) -> None:
        super().__init__()
        self.head, self._constant = nn.Linear(3, 2), constant

    def forward(self, x):
        return self.head(self._constant(x))


@pytest.mark.parametrize(
    "constant",
    [
        lambda x: x * torch.full((1,), 1.0 if len(x) % 2 else -1.0),
        lambda x: x.roll(len(x), 1),
        lambda x: torch.cat([x[:, :2], torch.full((len(x), 1), float(len(x)))], 1),
        lambda x: x.masked_fill(x > 0, float(len(x) ** 3)),
    ],
    ids=["sign", "roll", "feature", "filling"],
)
def test_a_constant_that_follows_from_the_batch_size_goes_the_slow_way(constant):
    model, (x, y) = Scaled(constant), data(8)
    with ClippedGradients(model, clip_norm=0.5) as engine:
        whole, _ = engine.clipped(make_forward(model, squares, x, y))
        fewer, _ = engine.clipped(make_forward(model, squares, x[1:], y[1:]))
        assert engine.slow_reasons
    assert float((flat(whole) - flat(fewer)).norm()) <= 0.5


def test_a_mask_that_is_the_same_for_all_is_no_reason_to_be_slow():
    mask = torch.tensor([True, False, False])
    model, (x, y) = Scaled(lambda x: x.masked_fill(mask, 0.0)), data()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        engine.clipped(make_forward(model, squares, x, y))
        assert engine.slow_reasons == ()


class Unhashable:
    """A loss without a hash, as a dataclass is."""

    __hash__ = None

    def __call__(self, output, targets):
        return squares(output, targets)


def test_what_is_known_of_a_model_keeps_neither_it_nor_a_loss_alive():
    model, (x, y) = Changing(), data()
    loss = Unhashable()
    loss.model = model
    with ClippedGradients(model, clip_norm=0.5) as engine:
        engine.clipped(make_forward(model, loss, x, y))
    gone = weakref.ref(model)
    del model, loss, engine
    gc.collect()
    assert gone() is None


def test_losses_of_a_model_in_which_examples_may_meet_are_refused_from_the_first_batch_on():
    """Their gradients at the outputs come from a pass over the whole batch: one unusual record would change all."""
    model, (x, y) = Changing(), data(9)
    x[8] *= 60
    constant = x.clone()
    model.move = lambda hidden: hidden.relu() if float(constant.abs().max()) < 0 else hidden
    with ClippedGradients(model, clip_norm=0.5) as engine:
        engine.sum(squares(model(x), y))  # a constant decides here, and no example
    model.move = lambda hidden: hidden.relu() if float(hidden.detach().abs().max()) < 20 else -50 * hidden
    for some in (slice(3), slice(9)):
        with (
            ClippedGradients(model, clip_norm=0.5) as engine,
            pytest.raises(InvalidArgument, match="examples may meet in the model"),
        ):
            engine.sum(squares(model(x[some]), y[some]))


class Moded(nn.Module):
    """Adds up the batch, in ways that leave no trace in autograd's graph."""

    def __init__(self, is_mixing) -> None:
        super().__init__()
        self.head, self._is_mixing = nn.Linear(3, 2), is_mixing

    def forward(self, x):
        x = x.cumsum(0) if self._is_mixing(self, x) else x
        return self.head(x).sum(tuple(range(1, x.dim() - 1))) if x.dim() > 2 else self.head(x)


def test_a_mode_or_a_shape_that_was_not_seen_before_is_looked_at():
    torch.manual_seed(0)
    for is_mixing, before, after in (
        (
            lambda module, x: module.training,
            lambda m: m.eval() and torch.randn(6, 3),
            lambda m: m.train() and torch.randn(6, 3),
        ),
        (
            lambda module, x: x.dim() == 3 and x.shape[1] > 3,
            lambda m: torch.randn(6, 2, 3),
            lambda m: torch.randn(6, 5, 3),
        ),
        (lambda module, x: len(x) > 4, lambda m: torch.randn(3, 3), lambda m: torch.randn(8, 3)),
    ):
        model = Moded(is_mixing)
        with ClippedGradients(model, clip_norm=0.5) as engine:
            x = before(model)
            engine.clipped(make_forward(model, squares, x, torch.zeros(len(x))))
            assert engine.slow_reasons == ()
            x = after(model)
            engine.clipped(make_forward(model, squares, x, torch.zeros(len(x))))
            assert engine.slow_reasons == ("cumsum is not known to keep examples apart",)


class Deciding(nn.Module):
    """Does something to its inputs, which have no gradient, when Python says so."""

    def __init__(self, change) -> None:
        super().__init__()
        self.head, self.table, self.is_late = nn.Linear(3, 2), nn.Parameter(torch.full((32, 3), -1.0)), False
        self._change = change

    def forward(self, x):
        return self.head(self._change(self, x)) + 0 * self.table.sum()


def rolled(x):
    return x + 3 * x.roll(1, 0)


ORDERS = torch.arange(32).roll(1).clamp(max=10), torch.arange(32)


def caught(model, x):
    try:
        torch.embedding(model.table, (x[:, 0].abs() * 10).long())
    except IndexError:
        return 3 * x
    return x


def kept(model, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda value: value, lambda value: value.flip(0)):
        return x + 0 * model.head(x).sum(1, keepdim=True)


def forked(model, x):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.dropout(x, 0.5, train=True)


def reseeded(model, x):
    torch.manual_seed(7)
    return x * torch.randn(x.shape)


DECIDING = {
    "by a counter": lambda model, x: rolled(x) if model.is_late else x,
    "by which axis": lambda model, x: x + 3 * x.roll(1, int(not model.is_late)),
    "by which tensor": lambda model, x: (x * 1, rolled(x))[int(model.is_late)] * 2,
    "by which buffer": lambda model, x: x + 3 * x[(ORDERS[0] if model.is_late else ORDERS[1])[: len(x)]],
    "by a number of numpy": lambda model, x: x + 3 * x.flip(np.int64(not model.is_late)),
    "by the exact size": lambda model, x: rolled(x) if len(x) == 11 else x,
    "by an error that it catches": caught,
    "by a copy of the tensor": lambda model, x: x + copy.copy(x)[torch.arange(len(x) - 1, -1, -1)],
    "by a copy of another class": lambda model, x: x + nn.Parameter(x, requires_grad=False)[list(range(len(x)))[::-1]],
    "by memory that is shared": lambda model, x: x + torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)).flip(0),
    "by a table that learns": lambda model, x: x + model.table[: len(x)].relu(),
    "by a seed of its own": forked,
    "by a seed that stays": reseeded,
    "by a generator of its own": lambda model, x: x * torch.rand(x.shape, generator=torch.Generator().manual_seed(1)),
    "by what is kept for the backward pass": kept,
}


@pytest.mark.parametrize("name", DECIDING)
def test_what_python_decides_out_of_torchs_sight_moves_the_sum_by_at_most_the_clip(name):
    model, clip_norm = Deciding(DECIDING[name]), 0.1
    rest = [n for n in range(12) if n != 5]
    generator = torch.Generator().manual_seed(4)
    with ClippedGradients(model, clip_norm=clip_norm, is_tried=True) as engine:
        for step in range(30):
            x, y = torch.randn(12, 3, generator=generator).clamp(-3, 3), torch.randn(12, generator=generator)
            x[5] *= 30
            model.is_late = step > 10
            if step == 15:  # what was flat, and far from where it matters
                model.table.data += 1 + torch.randn(32, 3, generator=generator)
            everyone, _ = engine.clipped(make_forward(model, squares, x, y))
            others, _ = engine.clipped(make_forward(model, squares, x[rest], y[rest]))
            assert float((flat(everyone) - flat(others)).norm()) <= clip_norm * (1 + 1e-5)
        assert engine.slow_reasons


@pytest.mark.parametrize("number", [random.random, np.random.rand])
def test_what_pythons_random_numbers_decide_is_noticed_when_it_happens(number):
    random.seed(0)
    np.random.seed(0)
    model, (x, y), mixed = Deciding(lambda model, x: x), data(), []

    def change(_, x):
        mixed.append(number() < 0.05)
        return rolled(x) if mixed[-1] else x

    model._change = change
    with ClippedGradients(model, clip_norm=0.5) as engine:
        for _ in range(200):
            mixed.clear()
            engine.clipped(make_forward(model, squares, x, y))
            if mixed[0]:  # the pass itself, and not one that looks at it
                break
        assert len(mixed) > 1
        assert engine.slow_reasons


class Alias(torch.Tensor):
    """A tensor under another name."""


def looked_at(change):
    model, (x, y) = Deciding(change), data()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        return engine.way(make_forward(model, squares, x, y)).why


def test_memory_of_examples_is_theirs_under_any_name():
    """Rows that are all the same would pass for a constant."""

    def alike(x):
        same = x[:1].expand(len(x), 3).contiguous()
        return torch.Tensor.as_subclass(same, Alias).as_subclass(torch.Tensor)

    assert looked_at(lambda model, x: x + alike(x).mean(0)) is not None


def test_numbers_by_a_seed_of_the_models_own_are_no_noise():
    assert looked_at(lambda model, x: x * torch.rand_like(x)) is None
    generator = torch.Generator()
    own = looked_at(lambda model, x: x * torch.rand(x.shape, generator=generator.manual_seed(0)))
    assert own == "rand with a seed of its own is not known to keep examples apart"
    assert looked_at(forked) is not None
    assert looked_at(reseeded) == "randn with a seed of its own is not known to keep examples apart"


class Weighed(nn.Module):
    """A linear layer whose outputs are scaled by what is made of the batch."""

    def __init__(self, scale) -> None:
        super().__init__()
        self.head, self._scale = nn.Linear(3, 2), scale

    def forward(self, x):
        return self.head(x) * self._scale(x)


def shifted(x):
    return torch.arange(1.0, 3.0).roll(len(x) // 8)


def part(x):
    noise = torch.rand(len(x), 1)
    noise[len(x) // 2 :].fill_(-1.0)
    return noise


def hidden(x):
    found = x.clone()
    found.apply_(lambda value: value)
    return 1.0 + 0 * found[:, :1]


@pytest.mark.parametrize(
    "scale",
    [
        lambda x: torch.tensor([x.max(), 1.0]),
        lambda x: torch.as_tensor([x.detach().max(), 1.0]),
        lambda x: x.new_tensor([x.detach().max(), 1.0]),
        shifted,
        part,
        hidden,
        lambda x: torch.empty(0).set_(x.untyped_storage(), 0, x.shape).mean(),
        lambda x: 1.0 + 0 * x.mean(),
    ],
)
def test_what_is_made_of_a_batch_by_other_means_is_seen(scale):
    model, (x, y) = Weighed(scale), data(20)
    with ClippedGradients(model, clip_norm=0.5) as engine:
        assert engine.way(make_forward(model, squares, x, y)).why is not None


def test_what_is_the_same_for_few_rows_and_not_for_more_is_looked_at_with_more():
    """One class of sizes is looked at once: with its largest, so that later rows show."""
    x, y = data(17)
    for model in (
        Weighed(lambda x: (torch.arange(len(x)) < 20).float().unsqueeze(1)),
        Weighed(lambda x: x[:, : max(17, len(x))].sum(1, keepdim=True) * (len(x) <= 17)),
    ):
        with ClippedGradients(model, clip_norm=0.5) as engine:
            assert engine.way(make_forward(model, squares, x, y)).why is not None


def test_where_a_bare_parameter_meets_the_examples_is_found_behind_a_loss_of_ones_own():
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions, self.head = nn.Parameter(torch.randn(5, 4)), nn.Linear(4, 2)

        def forward(self, x):
            return self.head((x + self.positions).tanh()), x.sum((1, 2)) * self.head.bias[0]

    model = Positions()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        engine.sum(model(torch.randn(6, 5, 4))[0].sin().cos().flatten(1).sum(1))
        assert [[met.name for met in way.met] for way in engine._programs._ways.values()] == [["positions"]]


class Overflowing(nn.Module):
    """Chances by a spread that is no number where parameters are large; `change` is told what to do before."""

    def __init__(self, change=lambda model, hidden: hidden) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.table = nn.Parameter(torch.full((32, 4), -0.1))
        self.change = change
        for parameter in self.body.parameters():
            parameter.data *= 0.01

    def forward(self, x):
        hidden = self.change(self, self.body(x)) + 0 * self.table[0]
        return self.head(torch.exp(100 * hidden)).sigmoid()


def chances(output, targets):
    wanted = targets.sigmoid().unsqueeze(1).expand_as(output)
    return nn.functional.binary_cross_entropy(output, wanted, reduction="none").sum(1)


def chosen(output, targets):
    """A loss by random choices, which torch refuses to make of what is no number; their gradient is nothing."""
    chance = output.detach()
    drawn = torch.bernoulli(chance) + torch.multinomial(chance, 1) + torch.normal(0.0, chance)
    return squares(output, targets) + 0 * drawn.sum(1)


@pytest.mark.parametrize("loss", [chances, chosen])
def test_what_is_no_number_where_parameters_are_large_is_no_reason_to_be_slow(loss):
    model, (x, y) = Overflowing(), data()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        found, _ = engine.clipped(make_forward(model, loss, x, y))
        assert engine.slow_reasons == ()
    assert distance(found, alone(model, loss, x, y, 0.5)) < 1e-5


def test_what_is_flat_here_and_not_far_from_here_is_seen_where_a_loss_refuses_what_comes_of_it():
    model, (x, y) = Overflowing(lambda model, hidden: hidden + model.table[: len(hidden)].relu()), data()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        engine.clipped(make_forward(model, chances, x, y))
        assert engine.slow_reasons == ("add is not known to keep examples apart",)
        model.table.data += torch.rand(32, 4)
        found, _ = engine.clipped(make_forward(model, chances, x, y))
    assert distance(found, alone(model, chances, x, y, 0.5)) < 1e-5


def test_a_loss_that_is_refused_where_the_parameters_are_is_no_fast_program():
    """By whom the error is caught does not matter: a record decides whether it is raised."""

    def caught(output, targets):
        try:
            return chances(output * 3, targets)
        except RuntimeError:
            return chances(output, targets)

    model, (x, y) = Overflowing(), data()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        found, _ = engine.clipped(make_forward(model, caught, x, y))
        assert engine.slow_reasons
    assert distance(found, alone(model, caught, x, y, 0.5)) < 1e-5
