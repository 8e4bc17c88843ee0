from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from dpfed.training.engine.watch.independence import ExampleWatch
from dpfed.training.engine.watch.marks import MIXED, NONE, Marks

SIZE = 5


def watched(function, *given: Tensor) -> tuple[ExampleWatch, Tensor]:
    with ExampleWatch(SIZE, given) as watch:
        output = function(*given)
    return watch, output


def numbers() -> Tensor:
    return torch.randn(SIZE, 3)


MOVING = {
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "sorted": lambda x: x[x[:, 0].argsort()],
    "sorted and back": lambda x: x[x[:, 0].argsort()][x[:, 0].argsort().argsort()],
    "permuted": lambda x: x[torch.randperm(SIZE)],
    "index_select": lambda x: x.index_select(0, torch.arange(SIZE).flip(0)),
    "gather": lambda x: x.gather(0, x.argsort(0)),
    "scatter": lambda x: torch.zeros_like(x).scatter(0, x.argsort(0), x),
    "einsum over the batch": lambda x: torch.einsum("bd,be->de", x, x)[:1].expand(SIZE, 3),
    "a view across the batch": lambda x: x.t().reshape(SIZE, 3),
    "strides": lambda x: x.as_strided((SIZE, 3), (1, SIZE)),
    "centred": lambda x: x - x.mean(0),
    "centred without a gradient": lambda x: x - x.detach().mean(0),
    "softmax over the batch": lambda x: x.softmax(0),
    "cumulated": lambda x: x.cumsum(0),
    "written to another row": lambda x: _to_next(x),
    "scaled by the largest": lambda x: x / x.abs().max(),
    "row by column": lambda x: (x[:, :1] - x[:, 0]).mean(1, keepdim=True),
}


def _to_next(x: Tensor) -> Tensor:
    out = x.clone()
    out[1:] = x[:-1]
    return out


@pytest.mark.parametrize("name", MOVING)
def test_an_operation_that_moves_or_mixes_rows_is_seen(name):
    watch, output = watched(MOVING[name], numbers())
    assert not watch.marks.is_in_front(output)


def test_whole_numbers_that_move_are_seen():
    tokens, table = torch.randint(0, 7, (SIZE, 3)), torch.randn(7, 4)
    for move in (lambda x: x.roll(1, 0), lambda x: x[torch.randperm(SIZE)], lambda x: x.sort(0).values):
        _, output = watched(lambda x, move=move: torch.nn.functional.embedding(move(x), table), tokens)
        assert output.grad_fn is None
        watch, output = watched(lambda x, move=move: torch.nn.functional.embedding(move(x), table).sum((1, 2)), tokens)
        assert not watch.marks.is_in_front(output)
    watch, output = watched(lambda x: torch.nn.functional.embedding(x, table).sum((1, 2)), tokens)
    assert watch.marks.is_in_front(output)


@pytest.mark.parametrize(
    "constant",
    [
        lambda: torch.arange(SIZE).unsqueeze(1),
        lambda: torch.linspace(0, 1, SIZE).unsqueeze(1),
        lambda: torch.randperm(SIZE).unsqueeze(1),
        lambda: torch.rand(SIZE, 1).sort(0).values,
        lambda: torch.eye(SIZE)[:, :1],
    ],
)
@pytest.mark.parametrize("use", [torch.mul, torch.add, lambda x, c: torch.cat([x, c.expand(-1, 3)], 1)])
def test_constants_that_differ_by_the_place_in_the_batch_are_seen(constant, use):
    watch, output = watched(lambda x: use(x, constant()), numbers())
    assert not watch.marks.is_in_front(output)


@pytest.mark.parametrize("constant", [lambda: torch.ones(SIZE, 1), lambda: torch.rand(SIZE, 1), lambda: torch.rand(1)])
def test_constants_and_masks_that_are_alike_for_all_are_allowed(constant):
    watch, output = watched(lambda x: x * constant(), numbers())
    assert watch.marks.is_in_front(output)


@pytest.mark.parametrize(
    "escape",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x[0, 0].tolist(),
        lambda x: x.numpy(),
        lambda x: np.asarray(x),
        lambda x: x.data,
        lambda x: x[x > 0],
        lambda x: torch.unique(x),
        lambda x: (x > 0).nonzero(),
        lambda x: float(x[0, 0]),
        lambda x: torch.equal(x, x),
    ],
)
def test_what_tells_python_of_the_examples_is_seen(escape):
    watch, _ = watched(lambda x: escape(x) is None, numbers())
    assert watch.escaped is not None or watch.why is not None


def test_a_hook_on_a_tensor_is_seen():
    watch, _ = watched(lambda x: (x * 2).register_hook(lambda g: g.flip(0)), numbers().requires_grad_())
    assert watch.escaped == "register_hook"


def test_numbers_that_are_not_of_examples_tell_nothing():
    watch, _ = watched(lambda x: (torch.rand(1).item(), torch.ones(3).tolist()), numbers())
    assert watch.escaped is None


def test_two_passes_agree_unless_a_number_follows_from_their_size():
    def looks(function):
        with ExampleWatch(4, [x := torch.randn(4, 3)]) as one:
            function(x)
        with ExampleWatch(3, [x := torch.randn(3, 3)]) as two:
            function(x)
        return one.agrees_with(two)

    assert looks(lambda x: (x * 2 + torch.ones(3)).relu().sum(1))
    assert looks(lambda x: x @ torch.ones(3, 2))
    assert not looks(lambda x: x / len(x))
    assert not looks(lambda x: x * torch.tensor(1.0 / len(x)))
    assert not looks(lambda x: x * torch.full((len(x), 1), 1.0 / len(x)))
    assert not looks(lambda x: torch.addmm(torch.zeros(2), x, torch.ones(3, 2), alpha=len(x)))
    assert not looks(lambda x: x.relu() if len(x) > 3 else x)


def test_a_tensor_written_in_place_carries_its_examples_to_all_that_share_its_memory():
    x = numbers()

    def good(x):
        out = torch.zeros(SIZE, 2, 3)
        early = out[:, 0]
        out[:, 0] = x
        out[:, 1].copy_(x * 2)
        return early + out.sum(1)

    def bad(x):
        out = torch.zeros(SIZE, 2, 3)
        early = out[:, 0]
        out[:, 0] = x.flip(0)
        return early

    for function, is_kept in ((good, True), (bad, False)):
        watch, output = watched(function, x)
        assert watch.marks.is_in_front(output) == is_kept


def test_a_watch_that_is_left_inside_another_is_taken_off_later():
    inner = ExampleWatch(SIZE, [])
    with ExampleWatch(SIZE, []):
        inner.__enter__()
    inner.__exit__(None, None, None)
    assert torch.ones(2).sum() == 2
    with ExampleWatch(SIZE, []):
        pass
    gc.collect()
    assert _get_current_dispatch_mode() is None


@pytest.mark.parametrize(
    "noise",
    [
        lambda: torch.rand(SIZE, 1) * torch.arange(SIZE).unsqueeze(1),
        lambda: torch.randn(SIZE, 1) + torch.linspace(0, 9, SIZE).unsqueeze(1),
        lambda: torch.bernoulli(torch.linspace(0, 1, SIZE)).unsqueeze(1),
        lambda: torch.normal(torch.arange(float(SIZE)), 1e-3).unsqueeze(1),
        lambda: torch.empty(SIZE).bernoulli_(torch.linspace(0, 1, SIZE)).unsqueeze(1),
        lambda: torch.rand(SIZE, 1).cumsum(0),
    ],
)
def test_random_numbers_that_differ_by_the_place_in_the_batch_are_seen(noise):
    watch, output = watched(lambda x: x + noise(), numbers())
    assert not watch.marks.is_in_front(output)


def test_noise_of_one_strength_is_allowed():
    watch, output = watched(lambda x: x + torch.randn(SIZE, 3) * 0.5 + torch.rand_like(x).mul_(2), numbers())
    assert watch.marks.is_in_front(output)


def test_aliases_do_not_keep_what_was_overwritten():
    def stale_place(x):
        z = x[:, :1].expand(SIZE, SIZE).clone()
        alias = z.view(SIZE, SIZE)
        z.copy_(x[:, :1].t().expand(SIZE, SIZE))
        return alias.sum(1)

    def stale_noise(x):
        noise = torch.rand(SIZE)
        alias = noise.view(-1)
        noise.copy_(torch.arange(SIZE))
        return x * alias.unsqueeze(1)

    for function in (stale_place, stale_noise):
        watch, output = watched(function, numbers())
        assert not watch.marks.is_in_front(output)


def test_distances_between_all_points_are_seen():
    watch, output = watched(lambda x: torch.cdist(x, x).sum(1), numbers())
    assert not watch.marks.is_in_front(output)


def test_shapes_that_follow_from_numbers_are_seen():
    for function in (lambda x: x[x > 1].shape, lambda x: torch.repeat_interleave((x > 1).long().flatten())):
        watch, _ = watched(function, numbers())
        assert watch.escaped is not None


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("start", [torch.zeros, torch.empty])
def test_the_place_in_the_batch_written_beside_the_examples_is_seen(is_before, start):
    def numbered(x, count):
        out = start(SIZE, 2, 3)
        if is_before:
            out[:, 0] = count()
        out[:, 1] = x
        if not is_before:
            out[:, 0] = count()
        return out

    watch, output = watched(lambda x: numbered(x, lambda: torch.arange(SIZE).unsqueeze(1).float()), numbers())
    assert not watch.marks.is_in_front(output)
    watch, output = watched(lambda x: numbered(x, lambda: torch.ones(SIZE, 1)), numbers())
    assert watch.marks.is_in_front(output)


def test_a_column_overwritten_by_the_place_in_the_batch_is_seen():
    def numbered(x):
        x = x.clone()
        x[:, 0] = torch.arange(SIZE)
        return x

    watch, output = watched(numbered, numbers())
    assert not watch.marks.is_in_front(output)


def test_an_error_that_a_pass_may_catch_is_seen():
    x = torch.tensor([[1], [9], [2]])
    with ExampleWatch(3, [x]) as watch, pytest.raises(IndexError):
        torch.embedding(torch.ones(4, 2), x)
    assert watch.escaped == "IndexError"
    with ExampleWatch(3, [x]) as watch, pytest.raises(IndexError):
        torch.embedding(torch.ones(4, 2), torch.tensor([9]))
    assert watch.escaped is None


def test_an_operation_of_ones_own_with_the_name_of_one_of_torchs_is_seen():
    library = torch.library.Library("dpfed_tests", "FRAGMENT")
    library.define("tanh(Tensor x) -> Tensor")
    library.impl("tanh", lambda x: x.flip(0).tanh(), "CPU")
    watch, output = watched(torch.ops.dpfed_tests.tanh, numbers())
    library._destroy()
    assert not watch.marks.is_in_front(output)
    assert watch.why == "dpfed_tests::tanh"


def test_memory_of_examples_that_nobody_has_seen_being_named_may_show_them_in_any_order():
    x, marks = torch.randn(4, 3), Marks(4)
    marks.put(x, 3)
    other = torch.empty(0).set_(x.untyped_storage(), 0, (4, 3))
    assert marks.of(x) == 3
    assert marks.of(other) == MIXED
    assert marks.of(torch.randn(4, 3)) == NONE
