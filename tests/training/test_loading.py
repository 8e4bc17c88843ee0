"""Batches are the draws of the sampler, whatever the data, and nothing of one draw counts for another."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from dpfed.errors import InvalidArgument
from dpfed.randomness import SeededSource
from dpfed.training.loading import Batch, Loader
from dpfed.training.sampling import PoissonSampler


class Squares(Dataset[tuple[int, int]]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index**2


def stacked(records: list[tuple[int, int]]) -> Tensor:
    return torch.tensor(records)


def read(batch: Batch) -> list[int]:
    return [int(record) for micro_batch in batch for record in micro_batch[0]]


class OneByOne(TensorDataset):
    """Another type, which is not read at once."""


@pytest.mark.parametrize("parts", [0, 2])
def test_rows_of_a_tensor_dataset_read_at_once_are_those_read_one_by_one(parts: int):
    tensors = torch.randn(60, 3, 2).transpose(1, 2), torch.arange(60), torch.randn(60, 4)[:, ::2], torch.ones(60, 0)
    served = [
        list(Loader(kind(*tensors), PoissonSampler(60, 0.1, 20, SeededSource(8)), max_physical_batch=5, parts=parts))
        for kind in (TensorDataset, OneByOne)
    ]
    for fast, slow in zip(*served, strict=True):
        for one, other in zip(fast.pieces(), slow.pieces(), strict=True):
            assert one.drawn == other.drawn
            for left, right in zip(one.values, other.values, strict=True):
                assert (left.dtype, left.shape) == (right.dtype, right.shape)
                assert torch.equal(left[: one.drawn], right[: one.drawn])


@pytest.mark.parametrize("rate", [0.005, 0.3])
def test_batches_hold_the_records_of_their_draws_in_micro_batches(rate: float):
    data = TensorDataset(torch.arange(100), torch.arange(100) ** 2)
    loader = Loader(data, PoissonSampler(100, rate, 40, SeededSource(8)), max_physical_batch=7)
    draws = list(PoissonSampler(100, rate, 40, SeededSource(8)))
    assert len(loader) == 40
    seen = 0
    for batch, draw in zip(loader, draws, strict=True):
        assert (batch.number, batch.is_empty) == (draw.number, len(draw.indices) == 0)
        assert batch.token.number == draw.number
        micro_batches = list(batch)
        assert [len(x) for x, _ in micro_batches] == [len(part) for part in draw.indices.split(7) if len(part)]
        assert [int(i) for x, _ in micro_batches for i in x] == draw.indices.tolist()
        seen += 1
    assert seen == 40


def test_empty_batches_come_with_their_token_and_count_first_last_and_between():
    sizes = [len(draw.indices) for draw in PoissonSampler(10, 0.05, 60, SeededSource(9))]
    loader = Loader(Squares(10), PoissonSampler(10, 0.05, 60, SeededSource(9)), max_physical_batch=4)
    batches = [(batch.number, len(read(batch))) for batch in loader]
    assert batches == list(enumerate(sizes))
    assert 0 in sizes


def test_no_records_at_all_make_empty_batches():
    loader = Loader(Squares(0), PoissonSampler(0, 0.5, 3), max_physical_batch=4)
    assert [(batch.number, batch.is_empty, list(batch)) for batch in loader] == [(i, True, []) for i in range(3)]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_was_not_read_of_a_batch_is_no_part_of_the_next(workers):
    draws = list(PoissonSampler(50, 0.5, 4, SeededSource(10)))
    data = DataLoader(Squares(50), num_workers=workers)
    loader = Loader(data, PoissonSampler(50, 0.5, 4, SeededSource(10)), max_physical_batch=5)
    batches = iter(loader)
    next(batches)
    next(iter(next(batches)))
    assert read(next(batches)) == draws[2].indices.tolist()
    assert read(next(batches)) == draws[3].indices.tolist()


def test_coming_back_to_the_loop_goes_on_with_the_next_draw():
    loader = Loader(Squares(50), PoissonSampler(50, 0.5, 4), max_physical_batch=5)
    for batch in loader:
        assert batch.number == 0
        break
    assert [batch.number for batch in loader] == [1, 2, 3]


def test_what_is_shown_of_a_batch_tells_nothing_of_the_sample():
    (batch,) = Loader(Squares(50), PoissonSampler(50, 0.5, 1), max_physical_batch=5)
    assert repr(batch) == "Batch(number=0)"


def test_a_batch_that_is_read_again_has_the_same_records():
    for workers in (0, 2):
        given = DataLoader(Squares(50), 8, num_workers=workers)
        draws = [draw.indices.tolist() for draw in PoissonSampler(50, 0.5, 3, SeededSource(12))]
        loader = Loader(given, PoissonSampler(50, 0.5, 3, SeededSource(12)), max_physical_batch=5)
        for batch, draw in zip(loader, draws, strict=True):
            next(iter(batch))  # left after the first
            assert read(batch) == draw
            assert read(batch) == draw


def test_collate_and_workers_of_a_data_loader_are_kept():
    given = DataLoader(Squares(60), batch_size=8, collate_fn=stacked, num_workers=2, shuffle=True, prefetch_factor=3)
    loader = Loader(given, PoissonSampler(60, 0.2, 12, SeededSource(11)), max_physical_batch=5)
    draws = list(PoissonSampler(60, 0.2, 12, SeededSource(11)))
    for batch, draw in zip(loader, draws, strict=True):
        micro_batches = list(batch)
        assert all(len(part) <= 5 for part in micro_batches)
        rows = torch.cat([torch.empty((0, 2), dtype=torch.int64), *micro_batches])
        assert torch.equal(rows, torch.stack([draw.indices, draw.indices**2], dim=1))


def test_settings_of_a_data_loader_reach_ours_but_not_what_seeds_its_workers():
    generator = torch.Generator()
    given = DataLoader(
        Squares(6), 2, collate_fn=stacked, num_workers=1, timeout=9, generator=generator, pin_memory=False
    )
    ours = Loader(given, PoissonSampler(6, 0.5, 1), max_physical_batch=2)._ahead._make()
    for name in ("num_workers", "timeout", "pin_memory", "prefetch_factor"):
        assert getattr(ours, name) == getattr(given, name)
    assert ours.collate_fn._collate is stacked
    assert ours.generator is not generator
    assert ours.worker_init_fn is not None


class Named(NamedTuple):
    x: Tensor
    rest: object


def named(records: list[tuple[int, int]]) -> Named:
    return Named(torch.tensor(records), {"deep": [torch.ones(1), "text"]})


def test_records_of_any_form_are_moved_to_the_device():
    """To the device that only knows shapes: no other one can be counted on besides the CPU, where they come from."""
    given = DataLoader(Squares(6), 2, collate_fn=named)
    loader = Loader(given, PoissonSampler(6, 1.0, 1), max_physical_batch=4, device=torch.device("meta"))
    micro_batches = list(next(iter(loader)))
    assert len(micro_batches) == 2
    for piece in micro_batches:
        assert isinstance(piece, Named)
        assert piece.x.is_meta
        assert piece.rest["deep"][0].is_meta
        assert piece.rest["deep"][1] == "text"


class Broken(Squares):
    def __getitem__(self, index: int) -> tuple[int, int]:
        if index == 3:
            raise ValueError("a broken image")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_record_that_cannot_be_read_leaves_its_draw_alone_and_stops_nobody(workers):
    draws = [draw.indices.tolist() for draw in PoissonSampler(12, 0.3, 20, SeededSource(13))]
    assert any(3 in draw for draw in draws)
    given = DataLoader(Broken(12), 2, num_workers=workers)
    loader = Loader(given, PoissonSampler(12, 0.3, 20, SeededSource(13)), max_physical_batch=2)
    for batch, draw in zip(loader, draws, strict=True):
        assert read(batch) == [index for index in draw if index != 3]


class Gone(Squares):
    """A disk that cannot be read for a while, from a certain record on."""

    is_gone = False

    def __getitem__(self, index: int) -> tuple[int, int]:
        was_gone, self.is_gone = self.is_gone, index == 3
        if was_gone or self.is_gone:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_failure_no_record_counts_for_another_draw(workers):
    draws = [draw.indices.tolist() for draw in PoissonSampler(12, 0.3, 20, SeededSource(13))]
    assert 3 not in draws[0]
    assert any(3 in draw for draw in draws)
    given = DataLoader(Gone(12), 2, num_workers=workers)
    loader = Loader(given, PoissonSampler(12, 0.3, 20, SeededSource(13)), max_physical_batch=2)
    for batch, draw in zip(loader, draws, strict=True):
        if 3 not in draw:
            assert read(batch) == draw
            continue
        for _ in range(2):
            with pytest.raises(OSError, match="disk"):
                read(batch)


class Stream(IterableDataset[int]):
    def __iter__(self):
        return iter(range(10))


BAD = {
    "a sampler of its own": lambda d: DataLoader(d, 2, sampler=SubsetRandomSampler(range(5))),
    "a sampler of its own ": lambda d: DataLoader(d, 2, sampler=WeightedRandomSampler([1.0] * 10, 10)),
    "a sampler of its own  ": lambda d: DataLoader(d, 2, sampler=RandomSampler(d, replacement=True)),
    "a sampler of its own   ": lambda d: DataLoader(d, 2, sampler=RandomSampler(d, num_samples=5)),
    "drop_last": lambda d: DataLoader(d, 2, drop_last=True),
    "its own batches": lambda d: DataLoader(d, batch_sampler=BatchSampler(SequentialSampler(d), 2, False)),
    "its own batches ": lambda d: DataLoader(d, batch_size=None),
    "a stream": lambda d: Stream(),
    "a stream ": lambda d: DataLoader(Stream(), 2),
    "drawn by number": lambda d: iter(range(10)),
    "use size_of_data=11": lambda d: Squares(11),
}


@pytest.mark.parametrize("reason", BAD)
def test_data_that_cannot_be_sampled_as_poisson_is_refused(reason: str):
    sampler = PoissonSampler(10, 0.5, 2)
    with pytest.raises(InvalidArgument, match=reason.strip()):
        Loader(BAD[reason](Squares(10)), sampler, max_physical_batch=4)
    assert len(sampler) == 2


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_a_physical_batch_must_hold_a_record(size: object):
    with pytest.raises(InvalidArgument, match="max_physical_batch"):
        Loader(Squares(10), PoissonSampler(10, 0.5, 2), max_physical_batch=size)
