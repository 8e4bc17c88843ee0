"""Packed sequences on the fast way: torch's numbers, each record's gradient clipped as one, and nothing else served."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from clipped import distance
from dpfed.plan import LocalPlan
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.engine.watch.calls import CallRecorder
from dpfed.training.layers import twins
from dpfed.training.private import make_private
from dpfed.training.slowness import explain
from one_by_one import clipped, mean_norm

Pair = tuple[Tensor, Tensor]

LONGEST = 6
LENGTHS = (3, 6, 1, 2, 6, 4, 5, 1)
KINDS = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN": nn.RNN,
    "RNN with ReLU": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "projected LSTM": lambda *sizes, **options: nn.LSTM(*sizes, proj_size=2, **options),
}
OPTIONS = {
    "plain": {},
    "without bias": {"bias": False},
    "both directions": {"bidirectional": True},
    "two layers in both directions": {"num_layers": 2, "bidirectional": True, "dropout": 0.3},
}


def made(kind: str, **options) -> nn.RNNBase:
    torch.manual_seed(0)
    return KINDS[kind](3, 4, **options).double().eval()


def records(lengths: tuple[int, ...] = LENGTHS) -> Pair:
    return torch.randn(len(lengths), LONGEST, 3).double(), torch.tensor(lengths)


def each(states) -> tuple[Tensor, ...]:
    return states if isinstance(states, tuple) else (states,)


class Packing(nn.Module):
    """A layer before the packing, a recurrent one on what was packed, and all that it gives, in one row per record."""

    def __init__(self, layer: nn.RNNBase, *, is_first: bool = True, total: int | None = LONGEST) -> None:
        super().__init__()
        self.below, self.layer, self.is_first, self.total = nn.Linear(3, 3).double(), layer, is_first, total

    def forward(self, pair: Pair) -> Tensor:
        x, lengths = pair
        x = self.below(x if self.is_first else x.transpose(0, 1))
        packed = pack_padded_sequence(x, lengths, batch_first=self.is_first, enforce_sorted=False)
        outputs, states = self.layer(packed, *self.start(x))
        padded, found = pad_packed_sequence(outputs, self.is_first, padding_value=0.5, total_length=self.total)
        padded = padded if self.is_first else padded.transpose(0, 1)
        ends = [(state.transpose(0, 1) + 0.3).pow(3).flatten(1) for state in each(states)]
        return torch.cat([padded.flatten(1) * found.unsqueeze(1), *ends], 1)

    def start(self, x: Tensor) -> tuple:
        return ()


class Started(Packing):
    """The same with a first state of the record's own."""

    def start(self, x: Tensor) -> tuple:
        first = x[:, 0] if self.is_first else x[0]
        wide = torch.cat([first, first.mean(1, keepdim=True)], 1)
        state = torch.stack([wide] * (self.layer.num_layers * (1 + self.layer.bidirectional)))
        return ((state, state.cos()),) if isinstance(self.layer, nn.LSTM) else (state,)


def sines(output: Tensor, _: Tensor) -> Tensor:
    return output.sin().sum(1)


def alone(model: nn.Module, pair: Pair) -> dict[str, Tensor]:
    """The gradient of each record, by a pass of torch's own layers over it alone."""
    plain = copy.deepcopy(model)
    names = [name for name, p in plain.named_parameters() if p.requires_grad]
    rows = [
        torch.autograd.grad(sines(plain((x[None], n[None])), n).sum(), [plain.get_parameter(name) for name in names])
        for x, n in zip(*pair, strict=True)
    ]
    return {name: torch.stack([row[place] for row in rows]) for place, name in enumerate(names)}


def summed(engine: ClippedGradients, model: nn.Module, pair: Pair) -> dict[str, Tensor]:
    return engine.clipped(make_forward(model, sines, pair, torch.zeros(len(pair[0]))))[0]


def require_exact(model: nn.Module, pair: Pair, *, is_fast: bool = True) -> tuple[str, ...]:
    """Fails unless the sum is that of the records alone, by the way that is expected; returns why it is slow."""
    rows = alone(model, pair)
    clip = mean_norm(rows)
    with ClippedGradients(model, clip_norm=clip) as engine:
        assert distance(summed(engine, model, pair), clipped(rows, clip)) < 1e-10
        assert (engine.slow_reasons == ()) == is_fast, engine.slow_reasons
        return engine.slow_reasons


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_record_is_clipped_as_one(kind, options, is_first):
    require_exact(Packing(made(kind, batch_first=is_first, **OPTIONS[options]), is_first=is_first), records())


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_first_state_that_has_a_gradient(kind):
    require_exact(Started(made(kind, num_layers=2, bidirectional=True)), records())


@pytest.mark.parametrize("total", [LONGEST, LONGEST + 2])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_states_and_plain_gradients_are_torchs(kind, total):
    model, pair = Packing(made(kind, num_layers=2, bidirectional=True), total=total), records()
    before = list(model.state_dict())
    found = []
    for is_fast in (False, True):
        stand_ins = twins.install(model) if is_fast else {}
        with CallRecorder(len(pair[0]), pair):
            packed = pack_padded_sequence(pair[0], pair[1], batch_first=True, enforce_sorted=False)
            outputs, states = model.layer(packed)
            assert isinstance(outputs, PackedSequence)
            assert all(torch.equal(a, b) for a, b in zip(packed[1:], outputs[1:], strict=True))
            losses = sines(model(pair), pair[1]).sum() + outputs.data.cos().sum()
        assert list(model.state_dict()) == before
        assert type(outputs.data.grad_fn).__name__.startswith("Pack") == is_fast
        found.append([outputs.data, *each(states), *torch.autograd.grad(losses, list(model.parameters()))])
        for each_one in stand_ins.values():
            each_one.leave()
    assert all(torch.allclose(one, two, atol=1e-10) for one, two in zip(*found, strict=True))


@pytest.mark.parametrize("lengths", [(4,), (LONGEST,), (2, 2, 2), (1, 1)])
def test_few_records_and_records_of_one_length(lengths):
    require_exact(Packing(made("GRU", bidirectional=True)), records(lengths))


def test_one_layer_may_be_given_what_another_one_packed():
    class Stacked(Packing):
        def __init__(self) -> None:
            super().__init__(made("GRU", bidirectional=True))
            self.above = nn.LSTM(8, 2).double()

        def forward(self, pair: Pair) -> Tensor:
            packed = pack_padded_sequence(self.below(pair[0]), pair[1], batch_first=True, enforce_sorted=False)
            return self.above(self.layer(packed)[0])[1][1][0]

    require_exact(Stacked(), records())


@pytest.mark.parametrize("frozen", ["below", "layer"])
def test_frozen_layers_on_packed_sequences(frozen):
    model = Packing(made("GRU", num_layers=2))
    model.get_submodule(frozen).requires_grad_(False)
    require_exact(model, records())


def test_a_frozen_layer_between_data_and_what_is_learned():
    class Above(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = made("GRU").requires_grad_(False), nn.Linear(4, 2).double()

        def forward(self, pair: Pair) -> Tensor:
            packed = pack_padded_sequence(*pair, batch_first=True, enforce_sorted=False)
            return self.head(pad_packed_sequence(self.layer(packed)[0], True, total_length=LONGEST)[0]).flatten(1)

    require_exact(Above(), records())


def test_other_lengths_are_the_same_program():
    model = Packing(made("LSTM", bidirectional=True))
    plain = copy.deepcopy(model)
    with ClippedGradients(model, clip_norm=0.5) as engine:
        for _ in range(4):
            pair = records(tuple(torch.randint(1, LONGEST + 1, (8,)).tolist()))
            assert distance(summed(engine, model, pair), clipped(alone(plain, pair), 0.5)) < 1e-10
        assert len(engine._programs._ways) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_behind_the_end_of_a_record_moves_nothing(kind):
    model, (x, lengths) = Packing(made(kind, bidirectional=True)), records()
    model.below = nn.Identity()
    behind = torch.arange(LONGEST) >= lengths.unsqueeze(1)
    with ClippedGradients(model, clip_norm=0.5) as engine:
        base, *others = (
            summed(engine, model, (x.masked_fill(behind.unsqueeze(2), value), lengths))
            for value in (0.0, 1e300, torch.inf, torch.nan)
        )
        assert engine.slow_reasons == ()
    assert all(distance(other, base) == 0 for other in others)


def test_steps_after_the_end_may_overflow():
    """A state of a plain ReLU layer may grow at each of them, and 0 times infinity is not 0."""
    layer = nn.RNN(1, 1, nonlinearity="relu", bias=False)
    with torch.no_grad():
        layer.weight_ih_l0.fill_(1.0)
        layer.weight_hh_l0.fill_(1e30)
    model, pair = Packing(layer), (torch.ones(4, LONGEST, 1), torch.tensor([1, 1, 1, 1]))
    model.below = nn.Identity()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        found = summed(engine, model, pair)
        assert engine.slow_reasons == ()
    assert distance(found, clipped(alone(model, pair), 0.5)) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_not_finite_counts_as_zero(kind):
    model, (x, lengths) = Packing(made(kind, bidirectional=True)), records()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        base = summed(engine, model, (x, lengths))
        bad = torch.cat([x, torch.full_like(x[:1], torch.nan)]), torch.cat([lengths, lengths[:1]])
        assert distance(summed(engine, model, bad), base) < 1e-12


@pytest.mark.parametrize("length", [0, -1, LONGEST + 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_of_a_length_that_cannot_be_packed_neither_stops_nor_moves_others(kind, length):
    """They must be served by the same way as without it: two ways round differently."""
    model, (x, lengths) = Packing(made(kind, bidirectional=True)), records()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        base = summed(engine, model, (x, lengths))
        bad = torch.cat([x, torch.randn_like(x[:1])]), torch.cat([lengths, torch.tensor([length])])
        assert distance(summed(engine, model, bad), base) == 0
        assert engine.slow_reasons == ()


def test_a_length_beyond_all_positions_is_refused_before_memory_is_taken_for_it():
    model, (x, lengths) = made("GRU"), records()
    stand_ins = twins.install(model)
    with CallRecorder(len(x), (x, lengths)), pytest.raises((ValueError, IndexError)) as raised:
        model(pack_padded_sequence(x, lengths.clone().fill_(LONGEST + 1), batch_first=True, enforce_sorted=False))
    assert "longer than the 6 positions" in str(raised.value)
    for each_one in stand_ins.values():
        each_one.leave()


class Sentences(Dataset):
    """Records of two tensors, of which the first are `count` of the same."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def __len__(self) -> int:
        return len(self.pair[0])

    def __getitem__(self, number: int) -> tuple[Pair, Tensor]:
        return (self.pair[0][number], self.pair[1][number]), torch.tensor(0.0)


def _moved(pair: Pair, size: int, *, in_a_loop: bool) -> Tensor:
    model = Packing(made("LSTM", bidirectional=True)).float()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = LocalPlan(size=size, batch_size=size, steps=1, clip_norm=0.05, noise_multiplier=1e-9)
    optimizer = torch.optim.SGD(model.parameters(), lr=size)
    private = make_private(model, optimizer, Sentences(pair), plan, loss=None if in_a_loop else sines)
    for batch in private.loader:
        if not in_a_loop:
            private.step(batch)
            continue
        for inputs, targets in batch:
            private.backward(sines(model(inputs), targets))
        optimizer.step()
    assert private.slow_reasons == ()
    private.close()
    after = model.state_dict()
    assert list(after) == list(before)
    return torch.cat([(after[name] - before[name]).flatten() for name in before])


@pytest.mark.filterwarnings("error::dpfed.errors.SlowModelWarning")
@pytest.mark.parametrize("in_a_loop", [False, True])
def test_one_record_more_moves_the_sum_by_at_most_the_clip_norm(in_a_loop):
    x, lengths = records((*LENGTHS, 6, 1, 3))
    x = (x * 4).float()
    whole = _moved((x, lengths), len(x), in_a_loop=in_a_loop)
    for place in (1, 2, 10):  # the longest, the shortest, and one between
        kept = [row for row in range(len(x)) if row != place]
        own = float((whole - _moved((x[kept], lengths[kept]), len(x), in_a_loop=in_a_loop)).norm())
        assert 0.049 < own <= 0.05 * (1 + 1e-4)


@pytest.mark.parametrize("length", [0, 1, LONGEST + 1])
def test_no_first_record_decides_whether_a_model_is_refused_or_how_it_is_served(length):
    pair = records((length, length, 2, 3))
    model = Packing(made("GRU"))
    plan = LocalPlan(size=4, batch_size=4, steps=1, clip_norm=1.0, noise_multiplier=1.0)
    private = make_private(model, torch.optim.SGD(model.parameters()), Sentences(pair), plan, loss=sines)
    assert private.slow_reasons == ()
    private.close()


# --- what is not served, and stays exact ---


class Odd(Packing):
    """A model that does something else with what was packed."""

    def __init__(self, use) -> None:
        super().__init__(made("GRU"))
        self.use = use

    def forward(self, pair: Pair) -> Tensor:
        return self.use(self, self.below(pair[0]), pair[1])


def _packed(x: Tensor, lengths: Tensor) -> PackedSequence:
    return pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)


def _sorted_by_hand(model: Odd, x: Tensor, lengths: Tensor) -> Tensor:
    lengths, order = lengths.sort(descending=True)
    return model.layer(pack_padded_sequence(x[order], lengths, batch_first=True))[1][0][order.argsort()]


def _by_size(model: Odd, x: Tensor, lengths: Tensor, ask) -> Tensor:
    packed = _packed(x, lengths)
    return model.layer(packed)[1][0] * (1.0 if ask(packed) > 20 else 0.5)


def _mapped(model: Odd, x: Tensor, lengths: Tensor) -> Tensor:
    packed = _packed(x, lengths)
    return model.layer(packed._replace(data=packed.data * packed.data.mean()))[1][0]


def _exchanged(model: Odd, x: Tensor, lengths: Tensor) -> Tensor:
    packed = _packed(x, lengths)
    return model.layer(PackedSequence(packed[0], packed[1], packed[3], packed[2]))[1][0]


def _left_sorted(model: Odd, x: Tensor, lengths: Tensor) -> Tensor:
    packed = _packed(x, lengths)
    return pad_packed_sequence(model.layer(packed)[0]._replace(unsorted_indices=None), True, total_length=LONGEST)[
        0
    ].flatten(1)


def _checkpointed(model: Odd, x: Tensor, lengths: Tensor) -> Tensor:
    def run(x: Tensor) -> Tensor:
        return pad_packed_sequence(model.layer(_packed(x, lengths))[0], True, total_length=LONGEST)[0].flatten(1)

    return checkpoint(run, x, use_reentrant=False)


@torch.jit.script
def _pack_and_scale(rows: Tensor, keys: Tensor, states: Tensor) -> Tensor:
    data, _ = torch._pack_padded_sequence(rows, keys, True)
    return states * (1.0 if data.size(0) > 1000 else 0.5)  # no look has so many


@torch.jit.script
def _scale(states: Tensor, data: Tensor) -> Tensor:
    return states * (1.0 if data.size(0) > 1000 else 0.5)


def _packed_by_a_script(model: Odd, x: Tensor, lengths: Tensor) -> Tensor:
    keys, order = lengths.sort(descending=True)
    return _pack_and_scale(x.index_select(0, order), keys, model.layer(_packed(x, lengths))[1][0])


def _told_to_a_script(model: Odd, x: Tensor, lengths: Tensor) -> Tensor:
    packed = _packed(x, lengths)
    return _scale(model.layer(packed)[1][0], packed.data)


def _caught(model: Odd, x: Tensor, lengths: Tensor) -> Tensor:
    """Compute something else if a record is longer than others: torch refuses to pad it, in no function that shows."""
    packed = _packed(x, lengths)
    scale = 1.0
    try:
        pad_packed_sequence(packed, True, total_length=LONGEST - 1)
    except ValueError:
        scale = 0.5
    return model.layer(packed)[1][0] * scale


ODD = {
    "packed by a script": _packed_by_a_script,
    "told to a script": _told_to_a_script,
    "a refusal that is caught": _caught,
    "sorted by hand": _sorted_by_hand,
    "as long as the longest": lambda model, x, n: pad_packed_sequence(model.layer(_packed(x, n))[0], True)[0].sum(1),
    "by the number of positions": lambda *given: _by_size(*given, lambda packed: packed.data.shape[0]),
    "by the length of a tensor": lambda *given: _by_size(*given, lambda packed: len(packed.data)),
    "by what is like it": lambda *given: _by_size(*given, lambda packed: torch.zeros_like(packed.data).numel()),
    "by the longest": lambda *given: 3 * _by_size(*given, lambda packed: 4 * packed.batch_sizes.size(0)),
    "mapped": _mapped,
    "a checkpoint": _checkpointed,
}


@pytest.mark.parametrize("name", ODD)
def test_other_uses_of_packed_sequences_are_slow_and_exact(name):
    model, pair = Odd(ODD[name]), records()
    (reason,) = require_exact(model, pair, is_fast=False)
    assert "(" in explain(model, [reason])


def test_whether_a_record_was_too_long_to_be_padded_does_not_decide_the_way():
    """Neither where the model catches torch's refusal, nor where such a record counts as zero."""
    model, (x, lengths) = Odd(_caught), records()
    short = lengths.clamp(max=LONGEST - 1)
    assert require_exact(model, (x, short), is_fast=False) == require_exact(Odd(_caught), (x, lengths), is_fast=False)
    model = Packing(made("GRU"), total=LONGEST - 1)
    with ClippedGradients(model, clip_norm=0.5) as engine:
        base = summed(engine, model, (x, short))
        (reason,) = engine.slow_reasons
        bad = torch.cat([x, torch.randn_like(x[:1])]), torch.cat([short, torch.tensor([LONGEST])])
        assert distance(summed(engine, model, bad), base) == 0
        assert engine.slow_reasons == (reason,)
    assert "total_length" in explain(model, [reason])


@pytest.mark.parametrize("use", [_exchanged, _left_sorted])
def test_an_order_that_is_not_undone_is_never_served(use):
    model, pair = Odd(use), records()
    with ClippedGradients(model, clip_norm=0.5) as engine:
        summed(engine, model, pair)
        assert engine.slow_reasons != ()


def test_the_remedies_are_named():
    model = Odd(ODD["as long as the longest"])
    (reason,) = require_exact(model, records(), is_fast=False)
    assert "total_length" in explain(model, [reason])
    model = Odd(ODD["sorted by hand"])
    (reason,) = require_exact(model, records(), is_fast=False)
    assert "enforce_sorted=False" in explain(model, [reason])
