"""No record acts on another, or stops a step, by the way in which it is read and collated."""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, default_collate

from dpfed import LocalPlan, make_private
from dpfed.errors import InvalidArgument
from dpfed.training.reading import Collator, Readable


def shapes(pieces):
    return [(tuple(piece.values[0].shape), piece.drawn) for piece in pieces]


def test_records_of_one_form_are_collated_as_torch_does():
    records = [(torch.full((2,), float(n)), {"a": n, "b": np.float32(n), "c": "text"}, [n / 2]) for n in range(5)]
    (piece,) = Collator(default_collate)(records)
    expected = default_collate(records)
    assert torch.equal(piece.values[0], expected[0])
    assert torch.equal(piece.values[1]["b"], expected[1]["b"])
    assert piece.values[1]["c"] == expected[1]["c"]
    assert piece.drawn == 5


def test_a_collate_fn_of_ones_own_gives_what_it_gives_for_one_record():
    def collate(records):
        inputs = torch.stack([x for x, _ in records])
        return inputs + inputs.mean(0), [name for _, name in records], {"scale": 2}

    records = [(torch.full((2,), float(n)), f"kind {n // 3}") for n in range(4)]
    first, second = Collator(collate)(records)
    assert torch.equal(first.values[0], torch.stack([2 * x for x, _ in records[:3]]))
    assert first.values[1:] == (["kind 0"] * 3, {"scale": 2})
    assert (second.values[1], second.drawn) == (["kind 1"], 1)


def test_a_collate_fn_that_writes_to_one_place_again_and_again_gives_each_record_its_own():
    place = torch.zeros(1, 2)

    def collate(records):
        return place.copy_(records[0])

    (piece,) = Collator(collate)([torch.full((2,), float(n)) for n in range(3)])
    assert piece.values[:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "odd",
    [
        torch.ones(3),
        torch.ones(2, dtype=torch.float64),
        None,
        np.ones((2,))[::-1],
        np.array(["text", "text"]),
        object(),
    ],
)
def test_an_odd_record_leaves_the_others_as_they_are(odd):
    usual = [(torch.full((2,), float(n)), n) for n in range(3)]
    pieces = Collator(default_collate)([usual[0], (odd, 1), *usual[1:]])
    assert torch.equal(pieces[0].values[0], default_collate(usual)[0])
    assert all(piece.drawn == 1 for piece in pieces[1:])
    pieces = Collator(default_collate)([(torch.ones(2), n) for n in (0, 2**64, 1)])
    assert pieces[0].values[1].tolist() == [0, 1]


def test_pieces_that_are_filled_have_one_size_whoever_was_drawn():
    together = Collator(default_collate, rows=4, spare=(torch.zeros(2), 7))
    usual = [(torch.ones(2), 1)] * 3
    assert shapes(together(usual)) == [((4, 2), 3)]
    assert shapes(together([])) == [((4, 2), 0)]
    assert shapes(together([*usual, (torch.ones(5), 1)])) == [((4, 2), 3), ((4, 5), 1)]


def test_one_record_that_cannot_be_read_is_left_out_and_a_disk_that_cannot_is_an_error():
    class Records(Dataset):
        bad = (3,)

        def __len__(self):
            return 6

        def __getitem__(self, number):
            if number in self.bad:
                raise OSError("no such file")
            return torch.tensor([number])

        def __getitems__(self, numbers):
            return [self[number] for number in numbers]

    records = Records()
    (piece,) = Collator(default_collate)(Readable(records).__getitems__([1, 3, 5]))
    assert piece.values.flatten().tolist() == [1, 5]
    records.bad = range(6)
    with pytest.raises(OSError, match="no such file"):
        Readable(records).__getitems__([1, 3, 5])


class Odd(Dataset):
    """Records of which one, if it is there, is unlike the others."""

    def __init__(self, odd=None, size=12):
        generator = torch.Generator().manual_seed(0)
        self.records = [(torch.randn(5, 3, generator=generator), torch.tensor(n % 2)) for n in range(size)]
        if odd is not None:
            self.records.insert(5, odd)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, number):
        record = self.records[number]
        if isinstance(record, BaseException):
            raise record
        return record

    def __getitems__(self, numbers):
        """Return several, padded to the longest: nobody may ask for that."""
        found = [self[number] for number in numbers]
        length = max(len(record[0]) for record in found)
        return [(nn.functional.pad(x, (0, 0, 0, length - len(x))), y) for x, y in found]


class Last(nn.Module):
    """A model that a padded sequence tells its padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x).tanh().sum(1) / x.shape[1] + self.layer(x[:, -1])


def padded(records):
    inputs, targets = zip(*records, strict=True)
    return pad_sequence(inputs, batch_first=True), torch.stack(targets)


class Panic(BaseException):
    """What libraries in Rust raise where they fail: no Exception."""


def warned(records):
    """Collated records, with a warning for one that is all ones."""
    inputs, targets = default_collate(records)
    if bool((inputs == 1).all()):
        warnings.warn("a record that is all ones", stacklevel=1)
    return inputs, targets


def unsendable(records):
    """Collated records, with a function beside one that is all ones, which no worker can send."""
    inputs, targets = default_collate(records)
    return (inputs, targets, lambda: None) if bool((inputs == 1).all()) else (inputs, targets)


def learning(records):
    """Collated records, with a graph for one that is all ones, which no worker can send."""
    inputs, targets = default_collate(records)
    return inputs * torch.ones(1, requires_grad=bool((inputs == 1).all())), targets


def crops(records):
    """One row for each record, and several for one that is all ones."""
    inputs, targets = default_collate(records)
    count = 5 if bool((inputs == 1).all()) else 1
    return inputs.repeat(count, 1, 1), targets.repeat(count)


def mixed(records):
    inputs, targets = default_collate(records)
    return inputs + inputs.roll(1, 0), targets


ODD = {
    "of another type": ((torch.ones(5, 3, dtype=torch.float64), torch.tensor(1)), default_collate),
    "of another length": ((torch.ones(9, 3), torch.tensor(1)), default_collate),
    "without a target": ((torch.ones(5, 3), None), default_collate),
    "that cannot be read": (ValueError("a broken image"), default_collate),
    "to which all are padded": ((torch.ones(90, 3), torch.tensor(1)), padded),
    "that is mixed into another": ((50 * torch.ones(5, 3), torch.tensor(1)), mixed),
    "of three parts": ((torch.ones(5, 3), torch.tensor(1), 7), default_collate),
    "of no tuple": (torch.ones(5, 3), default_collate),
    "of text": (("text", "text"), default_collate),
    "of nothing": ((), default_collate),
    "like nothing else": ((torch.nested.nested_tensor([torch.ones(2)]), torch.tensor(1)), default_collate),
    "of several rows": ((torch.ones(5, 3), torch.tensor(1)), crops),
    "read with the others": ((torch.ones(90, 3), torch.tensor(1)), default_collate),
    "that panics": (Panic("a library in Rust"), default_collate),
    "that is warned of": ((torch.ones(5, 3), torch.tensor(1)), warned),
    "that no worker can send": ((torch.ones(5, 3), torch.tensor(1)), unsendable),
    "with a graph": ((torch.ones(5, 3, requires_grad=True) * 1, torch.tensor(1)), default_collate),
    "collated with a graph": ((torch.ones(5, 3), torch.tensor(1)), learning),
    "whose label is of another type": ((torch.ones(5, 3), torch.tensor(1.0)), default_collate),
}


@contextmanager
def stopped_by_nobody():
    try:
        yield
    except BaseException as error:  # a panic is no Exception
        pytest.fail(f"one record stops the step: {error!r}")


def released(data, collate, *, is_own, **settings):
    """What one step over all records releases, in clip norms, at next to no noise."""
    model, loss = Last(), nn.CrossEntropyLoss(reduction="none")
    before = [value.detach().clone() for value in model.parameters()]
    plan = LocalPlan(size=13, batch_size=13, steps=1, clip_norm=0.1, noise_multiplier=1e-9)
    optimizer = torch.optim.SGD(model.parameters(), lr=13 / 0.1)
    private = make_private(
        model, optimizer, DataLoader(data, 2, collate_fn=collate, **settings), plan, loss=None if is_own else loss
    )
    with stopped_by_nobody():
        for batch in private.loader:
            if not is_own:
                private.step(batch)
                continue
            for x, y in batch:
                private.backward(loss(model(x), y.long()))
            private.optimizer.step()
    private.close()
    return torch.cat([(b - a.detach()).flatten() for b, a in zip(before, model.parameters(), strict=True)])


@pytest.mark.parametrize("name", ODD)
def test_an_odd_record_moves_the_sum_by_at_most_the_clip_norm_and_stops_nobody(name):
    odd, collate = ODD[name]
    usual = released(Odd(), collate, is_own=False)
    assert usual.norm() > 1.5
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert (released(Odd(odd), collate, is_own=False) - usual).norm() <= 1 + 1e-5
    assert [str(each.message) for each in heard] == []


@pytest.mark.parametrize("name", ["that panics", "that no worker can send", "collated with a graph"])
def test_the_same_in_a_worker(name):
    odd, collate = ODD[name]
    moved = released(Odd(odd), collate, is_own=False, num_workers=1, timeout=20) - released(
        Odd(), collate, is_own=False
    )
    assert moved.norm() <= 1 + 1e-5


def test_nobody_hears_of_a_record_of_which_the_model_warns():
    class Warning(Last):
        def forward(self, x):
            if x.shape[1] > 5:
                warnings.warn("a long record", stacklevel=1)
            return super().forward(x)

    model = Warning()
    plan = LocalPlan(size=13, batch_size=13, steps=1, clip_norm=0.1, noise_multiplier=1e-9)
    data, loss = Odd((torch.ones(9, 3), torch.tensor(1))), nn.CrossEntropyLoss(reduction="none")
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), data, plan, loss=loss)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        private.step(next(private.loader))
    assert [str(each.message) for each in heard] == []
    private.close()


def test_a_broken_record_stops_nobody_where_reading_is_a_matter_of_luck():
    """Another record is read to see whose fault it is: with the same random numbers as when it was read first."""

    class Lucky(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, number):
            if number == 2 or (number == 0 and torch.rand(()) < 0.4):
                raise ValueError("there is nothing in this crop")
            return torch.tensor([number])

    torch.manual_seed(0)
    for _ in range(30):
        with stopped_by_nobody():
            assert len(Readable(Lucky()).__getitems__([1, 2, 3])) == 3


@pytest.mark.parametrize(
    "name",
    [
        "of another length",
        "that cannot be read",
        "that panics",
        "with a graph",
        "to which all are padded",
        "of several rows",
    ],
)
def test_the_same_in_a_loop_of_ones_own(name):
    odd, collate = ODD[name]
    usual = released(Odd(), collate, is_own=True)
    assert (usual - released(Odd(), collate, is_own=False)).norm() < 1e-4
    assert (released(Odd(odd), collate, is_own=True) - usual).norm() <= 1 + 1e-5


def test_a_collate_fn_whose_values_cannot_be_joined_is_refused_before_anything_is_drawn():
    def positions_first(records):
        inputs, targets = default_collate(records)
        return inputs.movedim(1, 0), targets

    with pytest.raises(InvalidArgument, match="the example as first axis"):
        released(Odd(), positions_first, is_own=False)
