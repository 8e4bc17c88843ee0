from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.nn.utils.rnn import invert_permutation, pack_padded_sequence

from dpfed.training.engine.watch.independence import ExampleWatch
from dpfed.training.engine.watch.marks import MIXED, Marks, Place, Role
from dpfed.training.layers import packed

SIZE, LONGEST = 5, 4


def given() -> tuple[Tensor, Tensor, Tensor]:
    """Sequences of both layouts, their lengths, and other whole numbers of each."""
    return torch.randn(SIZE, LONGEST, 3), torch.tensor([2, 4, 1, 3, 4]), torch.tensor([5, 1, 4, 2, 3])


def watched(function) -> tuple[ExampleWatch, Tensor]:
    x, lengths, others = given()
    with ExampleWatch(SIZE, [x, lengths, others]) as watch:
        output = function(x, lengths, others)
    return watch, output


def unpacked(data: Tensor, sizes: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    with DisableTorchFunction():  # as a layer does it
        places, _ = torch.ops.dpfed.places(sizes, order, inverse)
        return torch.ops.dpfed.unpack(data, places, LONGEST, SIZE).transpose(0, 1)


def ordered(lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found, order = torch.sort(lengths, descending=True)
    return found, order, invert_permutation(order)


def padded(x: Tensor, lengths: Tensor, *, by=None, at=None, exchange: bool = False) -> Tensor:
    """Pack rows as torch does, and unpack them; `by` and `at` give orders of another sort to either of these."""
    keys, order, inverse = ordered(lengths)
    rows = x.index_select(0, order if by is None else by)
    data, sizes = torch._VF._pack_padded_sequence(rows, keys, True)
    order, inverse = (order, inverse) if at is None else ordered(at)[1:]
    return unpacked(data, sizes, *((inverse, order) if exchange else (order, inverse)))


def test_what_torch_sorts_and_packs_comes_back_to_its_places():
    watch, output = watched(lambda x, n, _: padded(x, n))
    assert watch.marks.is_in_front(output)
    assert watch.why is watch.escaped is None


def put_back(x: Tensor, n: Tensor) -> Tensor:
    _, order, inverse = ordered(n)
    return x[order].index_select(0, inverse)


def test_an_order_may_be_copied_to_another_device():
    def run(x: Tensor, n: Tensor, _: Tensor) -> Tensor:
        order = n.sort(descending=True)[1].to(torch.int64, copy=True)
        return x.index_select(0, order).index_select(0, invert_permutation(order).to(torch.int64, copy=True))

    watch, output = watched(run)
    assert watch.marks.is_in_front(output)
    assert watch.why is watch.escaped is None


def written(x: Tensor, n: Tensor, *, what: str) -> Tensor:
    keys, order, inverse = ordered(n)
    rows = x.index_select(0, order)
    {"rows": rows, "order": order, "inverse": inverse, "keys": keys}[what].copy_(
        {"rows": rows.flip(0), "order": order.flip(0), "inverse": inverse.flip(0), "keys": keys}[what]
    )
    if what == "keys":
        data, sizes = torch._VF._pack_padded_sequence(rows, keys, True)
        return unpacked(data, sizes, order, inverse)
    return x.index_select(0, order).index_select(0, inverse) if what != "rows" else rows.index_select(0, inverse)


def test_rows_that_a_sort_moved_come_back_by_its_inverse():
    watch, output = watched(lambda x, n, _: put_back(x, n))
    assert watch.marks.is_in_front(output)
    assert watch.why is watch.escaped is None


WRONG = {
    "rows in another order": lambda x, n, o: padded(x, n, by=ordered(o)[1]),
    "rows as they were": lambda x, n, _: _packed_as_is(x, n),
    "places of another sort": lambda x, n, o: padded(x, n, at=o),
    "places of the same numbers, sorted again": lambda x, n, _: padded(x, n, at=n),
    "order and inverse exchanged": lambda x, n, _: padded(x, n, exchange=True),
    "put back by another sort": lambda x, n, o: x.index_select(0, ordered(n)[1]).index_select(0, ordered(o)[2]),
    "put back by the order": lambda x, n, _: _twice(x, ordered(n)[1]),
    "put back along another axis": lambda x, n, _: x[:, :1].expand(SIZE, SIZE, 3).index_select(0, ordered(n)[1]),
    "an inverse that counts from the end": lambda x, n, _: _by(x, ordered(n)[1], torch.arange(SIZE - 1, -1, -1)),
    "an inverse of a part": lambda x, n, _: _by(x, ordered(n)[1], torch.arange(SIZE) // 2),
    "the smallest first": lambda x, n, _: _by(x, n.sort()[1], torch.arange(SIZE)),
    "left in the order of the sort": lambda x, n, _: x.index_select(0, ordered(n)[1]),
    "keys that were written": lambda x, n, _: written(x, n, what="keys"),
    "rows that were written": lambda x, n, _: written(x, n, what="rows"),
    "an order that was written": lambda x, n, _: written(x, n, what="order"),
    "an inverse that was written": lambda x, n, _: written(x, n, what="inverse"),
    "numbers that have no order": lambda x, n, _: x.index_select(0, ordered(x[:, 0, 0])[1]),
}


def _packed_as_is(x: Tensor, n: Tensor) -> Tensor:
    keys, order, inverse = ordered(n)
    data, sizes = torch._VF._pack_padded_sequence(x, keys, True)
    return unpacked(data, sizes, order, inverse)


def _twice(x: Tensor, order: Tensor) -> Tensor:
    return x.index_select(0, order).index_select(0, order)


def _by(x: Tensor, order: Tensor, counted: Tensor) -> Tensor:
    return x.index_select(0, order).index_select(0, torch.empty_like(order).scatter_(0, order, counted))


@pytest.mark.parametrize("name", WRONG)
def test_rows_that_are_not_back_at_their_places_are_mixed(name):
    watch, output = watched(WRONG[name])
    assert not watch.marks.is_in_front(output)


ASKED = {
    "shape": lambda packed: packed.data.shape,
    "size": lambda packed: packed.batch_sizes.size(0),
    "len": lambda packed: len(packed.data),
    "numel": lambda packed: packed.data.numel(),
    "stride": lambda packed: packed.batch_sizes.nbytes,
    "like": lambda packed: torch.empty_like(packed.data),
    "new": lambda packed: packed.data.new_zeros(1),
    "iterate": lambda packed: list(packed.batch_sizes),
    "by a function of torch that gives something as large": lambda packed: _in_torchs_module(packed.batch_sizes),
    "through torch.ops": lambda packed: torch.ops.aten.sym_size.int(packed.data, 0),
    "unbind": lambda packed: packed.data.unbind(0),
}


def _in_torchs_module(values: Tensor) -> Tensor:
    """Ask from where torch's own functions of packed sequences do, as ``invert_permutation`` does."""
    module = {"__name__": invert_permutation.__module__, "torch": torch}
    exec("def ask(values): return torch.empty_like(values)", module)  # noqa: S102
    return module["ask"](values)


@pytest.mark.parametrize("name", ASKED)
def test_whoever_asks_how_much_was_packed_is_seen(name):
    x, lengths, _ = given()
    with ExampleWatch(SIZE, [x, lengths]) as watch:
        ASKED[name](pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    assert watch.escaped is not None


def test_packing_alone_shows_nothing():
    x, lengths, _ = given()
    with ExampleWatch(SIZE, [x, lengths]) as watch:
        found = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False).to(torch.device("cpu"))
    assert watch.escaped is watch.why is None
    assert watch.marks.of(found.data) == watch.marks.of(found.batch_sizes) == MIXED


def test_a_role_is_lost_by_a_write():
    marks, values = Marks(SIZE), torch.arange(SIZE)
    marks.give_role(values, Role("order", object()))
    assert marks.role(values) is not None
    values.view(-1)[0] = 3
    assert marks.role(values) is None


@pytest.mark.parametrize("is_first", [True, False])
def test_padding_to_a_length_that_is_known_keeps_the_order_of_the_sort(is_first):
    def run(x: Tensor, lengths: Tensor, _: Tensor) -> Tensor:
        keys, order, inverse = ordered(lengths)
        data, sizes = torch._VF._pack_padded_sequence(x.index_select(0, order), keys, True)
        values, found = packed.Pad.apply(data, sizes, is_first, 0.0, LONGEST)
        return values.index_select(0 if is_first else 1, inverse), found[inverse], values

    watch, (back, lengths, values) = watched(run)
    assert watch.marks.place(back) == Place(0 if is_first else 1)
    assert watch.marks.is_in_front(lengths)
    assert not watch.marks.is_in_front(values)
