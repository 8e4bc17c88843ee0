from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clipped import distance, flat
from dpfed import LocalPlan, make_private
from dpfed.errors import InvalidArgument
from dpfed.training.engine.capture import Capture
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.engine.rules.bag import gather_rows
from dpfed.training.engine.rules.contributions import Call
from dpfed.training.engine.rules.registry import rule_of
from one_by_one import clipped, gradients, require_fast

WORDS, LENGTH, SIZE = 7, 5, 6
OPTIONS = {
    "sum": {"mode": "sum"},
    "mean": {"mode": "mean"},
    "max": {"mode": "max"},
    "sum with padding": {"mode": "sum", "padding_idx": 0},
    "mean with padding": {"mode": "mean", "padding_idx": 3},
    "max with padding": {"mode": "max", "padding_idx": 3},
    "padding from the end": {"mode": "mean", "padding_idx": -1},
    "with an offset at the end": {"mode": "sum", "include_last_offset": True},
}


class Bagged(nn.Module):
    """A bag of words and what comes after it; `call` says how the bag is asked."""

    def __init__(self, call=lambda model, words: model.bag(words), **options) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(WORDS, 4, **options), nn.Linear(4, 2)
        self.importance = nn.Embedding(WORDS, 1)
        self.by_place = nn.Parameter(torch.rand(LENGTH))
        self.call = call

    def forward(self, words):
        parts = 0 * (self.importance(words).flatten(1).sum(1, keepdim=True) + self.by_place.sum())
        return self.head(self.call(self, words).tanh()) + parts


def losses(model: nn.Module, words: Tensor) -> Tensor:
    return model(words).sin().sum(1)


def words(size: int = SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    found = torch.randint(WORDS, (size, LENGTH), generator=generator)
    found[0], found[1] = 3, torch.tensor([3, 0, 6, 0, 0])  # nothing but padding, and much of it
    return found


def importance(model: Bagged, words: Tensor) -> Tensor:
    return (words + 1.0).sqrt().to(model.bag.weight)


def in_a_row(model: Bagged, words: Tensor) -> Tensor:
    return model.bag(words.flatten(), torch.arange(0, words.numel(), words.shape[1]))


def by_name(model: Bagged, words: Tensor) -> Tensor:
    offsets = torch.arange(0, words.numel(), words.shape[1])
    return model.bag(offsets=offsets, input=words.flatten())


def one_word(model: Bagged, words: Tensor) -> Tensor:
    return model.bag(words[:, 1], torch.arange(len(words)))


def weighted(model: Bagged, words: Tensor) -> Tensor:
    return model.bag(words, per_sample_weights=importance(model, words))


def weighted_by_place(model: Bagged, words: Tensor) -> Tensor:
    return model.bag(words, None, torch.linspace(1, 2, LENGTH).to(model.bag.weight).expand(len(words), -1))


def weighted_in_a_row(model: Bagged, words: Tensor) -> Tensor:
    offsets = torch.arange(0, words.numel(), words.shape[1])
    return model.bag(words.flatten(), offsets, importance(model, words).flatten())


def learned(model: Bagged, words: Tensor) -> Tensor:
    return model.bag(words, per_sample_weights=model.importance(words).squeeze(2).sigmoid())


def learned_by_place(model: Bagged, words: Tensor) -> Tensor:
    return model.bag(words, per_sample_weights=model.by_place.expand(len(words), -1))


CALLS = {
    "in a row": in_a_row,
    "by name": by_name,
    "one word": one_word,
    "weighted": weighted,
    "weighted by place": weighted_by_place,
    "weighted in a row": weighted_in_a_row,
    "learned": learned,
    "learned by place": learned_by_place,
    "twice": lambda model, words: model.bag(words) + model.bag(words.flip(1)[:, :3]).cos(),
    "twice, once weighted": lambda model, words: weighted(model, words) + model.bag(words).cos(),
    "small numbers": lambda model, words: model.bag(words.int()),
}


def made(call=None, **options) -> Bagged:
    torch.manual_seed(0)
    return Bagged(**({} if call is None else {"call": CALLS[call]}), **options)


@pytest.mark.parametrize("options", OPTIONS)
def test_sums_are_those_of_torchs_layer(options):
    require_fast(made(**OPTIONS[options]), words(), losses)


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("call", CALLS)
def test_however_the_bag_is_asked(call, padding):
    require_fast(made(call, mode="sum", padding_idx=padding), words(), losses)


@pytest.mark.parametrize("mode", ["mean", "max"])
@pytest.mark.parametrize("call", ["in a row", "one word", "twice"])
def test_other_modes_however_the_bag_is_asked(call, mode):
    require_fast(made(call, mode=mode), words(), losses)


def test_a_table_with_sparse_gradients():
    model, plain = made(mode="sum", sparse=True), made(mode="sum")
    rows = gradients(losses(plain, words()), plain)
    with ClippedGradients(model, clip_norm=0.5) as engine:
        assert distance(engine.sum(losses(model, words())), clipped(rows, 0.5)) < 1e-5
        assert engine.slow_reasons == ()


def test_a_maximum_of_equals_goes_where_torchs_goes():
    model = made(mode="max")
    model.bag.weight.data.zero_()
    require_fast(model, words(), losses)


def test_nothing_as_large_as_the_table_is_made_for_an_example():
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(10_000, 4), nn.Linear(4, 2))
    with ClippedGradients(model, clip_norm=1.0) as engine:
        engine.sum(losses(model, words()))
    assert len(gather_rows(_call(model, words())).values) <= SIZE * LENGTH
    assert rule_of(model[0]).name == "bag"


def _call(model: nn.Module, *inputs: Tensor) -> Call:
    capture = Capture(model)
    output = model(*inputs)
    call = capture.take()[0]
    capture.close()
    call.gradient = torch.ones(call.shape, dtype=output.dtype)
    return call


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_table_that_is_tied_to_an_embedding_or_to_the_last_layer(mode):
    class Tied(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(WORDS, 4, mode=mode)
            self.other = nn.Embedding(WORDS, 4) if kind == "embedding" else nn.Linear(4, WORDS, bias=False)
            self.other.weight = self.bag.weight

        def forward(self, words):
            found = self.bag(words)
            return found * self.other(words).mean(1) if isinstance(self.other, nn.Embedding) else self.other(found)

    for kind in ("embedding", "product"):
        torch.manual_seed(0)
        require_fast(Tied(kind), words(), losses)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_count_as_zero(value):
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.head = nn.EmbeddingBag(WORDS, 4, mode="sum"), nn.Linear(4, 2)

        def forward(self, pair):
            return self.head(self.bag(pair[0], per_sample_weights=pair[1]))

    torch.manual_seed(0)
    model, weights = Given(), torch.rand(SIZE, LENGTH)
    weights[2, 1] = value
    rest = [0, 1, 3, 4, 5]
    with ClippedGradients(model, clip_norm=0.1) as engine:

        def found(rows):
            pair = words()[rows], weights[rows]
            return engine.clipped(make_forward(model, lambda out, _: out.sin().sum(1), pair, torch.zeros(len(rows))))[0]

        found(rest)
        assert torch.allclose(flat(found(list(range(SIZE)))), flat(found(rest)), atol=1e-7)
        assert engine.slow_reasons == ()


def test_weights_that_are_overwritten_after_their_use_are_those_that_were_used():
    class Overwriting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.head = nn.EmbeddingBag(WORDS, 4, mode="sum"), nn.Linear(4, 2)

        def forward(self, words):
            weights = (words + 1.0).sqrt()
            found = self.bag(words, per_sample_weights=weights if not self.training else weights.clone())
            weights.zero_()
            return self.head(found)

    torch.manual_seed(0)
    model = Overwriting()
    rows = gradients(losses(model, words()), model)
    model.eval()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        found, _ = engine.clipped(make_forward(model, lambda out, _: out.sin().sum(1), words(), torch.zeros(SIZE)))
    assert distance(found, clipped(rows, 0.5)) < 1e-5


def test_words_that_are_overwritten_after_their_use_are_refused_as_by_torch():
    def overwriting(model: Bagged, words: Tensor) -> Tensor:
        own = words.clone()
        found = model.bag(own.flatten(), torch.arange(0, own.numel(), LENGTH))
        own.zero_()
        return found

    torch.manual_seed(0)
    model = Bagged(overwriting, mode="sum")
    with ClippedGradients(model, clip_norm=0.5) as engine, pytest.raises(InvalidArgument):
        engine.clipped(make_forward(model, lambda out, _: out.sin().sum(1), words(), torch.zeros(SIZE)))


@pytest.mark.parametrize("call", ["weighted", "in a row", "twice"])
@pytest.mark.parametrize(("norm", "is_exact"), [("l1", False), ("l2", True), ("l1", True)])
def test_other_norms_and_exact_sums(call, norm, is_exact):
    model, y = made(call, mode="sum", padding_idx=3), torch.zeros(SIZE)
    forward = make_forward(model, lambda out, _: out.sin().sum(1), words(), y)
    with ClippedGradients(model, clip_norm=0.5, norm=norm, is_exact=is_exact) as engine:
        found, _ = engine.clipped(forward)
        assert engine.slow_reasons == ()
    with ClippedGradients(model, clip_norm=0.5, norm=norm, is_exact=is_exact, methods={"bag": "whole"}) as engine:
        alone, _ = engine.clipped(forward)
        assert engine.slow_reasons == ("bag is pinned to 'whole'",)
    assert distance(found, alone) < 1e-5
    assert {value.dtype for value in found.values()} == {torch.float64 if is_exact else torch.float32}


ACROSS = {
    "offsets that divide the words otherwise": lambda model, x: model.bag(
        x.flatten(), torch.tensor([0, *range(6, x.numel(), 5)][: len(x)])
    ),
    "weights that differ by the place in the batch": lambda model, x: model.bag(
        x, per_sample_weights=torch.linspace(1, 2, x.numel()).view(x.shape)
    ),
    "weights of the neighbour": lambda model, x: model.bag(x, per_sample_weights=(x + 1.0).roll(1, 0)),
    "lengths of their own": lambda model, x: model.bag(
        x.flatten(), torch.cat([x.new_zeros(1), (1 + x.flatten(1).ne(0).sum(1))[:-1].cumsum(0)])
    ),
}


@pytest.mark.parametrize("name", ACROSS)
def test_bags_in_which_examples_meet_go_the_slow_way(name):
    torch.manual_seed(0)
    model, x = Bagged(ACROSS[name], mode="sum"), words(8)
    y = torch.zeros(8)
    with ClippedGradients(model, clip_norm=0.1) as engine:
        whole, _ = engine.clipped(make_forward(model, lambda out, _: out.sin().sum(1), x, y))
        assert engine.slow_reasons
        for place in range(8):
            rest = [n for n in range(8) if n != place]
            fewer, _ = engine.clipped(make_forward(model, lambda out, _: out.sin().sum(1), x[rest], y[rest]))
            assert float((flat(whole) - flat(fewer)).norm()) <= 0.1


@pytest.mark.parametrize("offsets", [[0, 6, 10], [0, 5, 10, 14], [0, 4, 10], [0, 0, 0]], ids=str)
def test_which_words_belong_to_whom_is_read_off_at_every_call(offsets):
    """A program is looked at once, so that offsets are compared with those of bags of one length each time."""
    bag, x = nn.EmbeddingBag(WORDS, 4, mode="sum"), words(3).flatten()
    assert _call(bag, x, torch.tensor([0, 5, 10])).x.shape == (3, LENGTH)
    assert _call(bag, x, torch.tensor(offsets)).x.shape == x.shape


@pytest.mark.parametrize("options", OPTIONS)
def test_one_record_moves_a_step_without_noise_by_at_most_the_clip_norm(options):
    def moved(rows: list[int]) -> Tensor:
        model = made(**OPTIONS[options])
        before = copy.deepcopy(model.state_dict())
        plan = LocalPlan(size=len(rows), batch_size=len(rows), steps=1, clip_norm=0.05, noise_multiplier=1e-9)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        data = TensorDataset(words()[rows], torch.zeros(len(rows)))
        private = make_private(model, optimizer, data, plan, loss=lambda out, _: out.sin().sum(1))
        private.step(next(iter(private.loader)))
        assert private.slow_reasons == ()
        private.close()
        assert list(model.state_dict()) == list(before)
        return len(rows) * torch.cat([(before[n] - v).flatten() for n, v in model.state_dict().items()])

    whole = moved(list(range(SIZE)))
    for place in range(SIZE):
        fewer = moved([n for n in range(SIZE) if n != place])
        assert float((whole - fewer).norm()) <= 0.05 * (1 + 1e-4)


def test_outputs_are_torchs_while_it_is_trained():
    model = made(mode="mean")
    before = model(words())
    with ClippedGradients(model, clip_norm=1.0):
        assert torch.equal(model(words()), before)


def test_a_subclass_with_a_pass_of_its_own_has_no_rule():
    class Own(nn.EmbeddingBag):
        def forward(self, input, offsets=None, per_sample_weights=None):
            return super().forward(input, offsets, per_sample_weights).flip(0)

    assert rule_of(Own(3, 2)).name == "leaf"
