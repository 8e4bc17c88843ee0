"""Samples of many models are Poisson, each model's own, and seeded ones are those of the sampler for one model."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from scipy import stats

from dpfed.plan.local import LocalPlan
from dpfed.randomness import SeededSource, SystemSource
from dpfed.training.many import draws
from dpfed.training.sampling import PoissonSampler

FALSE_ALARM = 1e-6
SIZES, RATES = [20, 7, 0, 31], [0.5, 0.3, 0.9, 0.1]


def sources(count: int, *, seeded: bool) -> list:
    return [SeededSource(5).once(str(n)) if seeded else SystemSource() for n in range(count)]


def drawn(tables, records: int) -> np.ndarray:
    """(steps, records): who is in which step."""
    found = []
    for table in tables:
        row = np.zeros(records + 1, dtype=int)
        np.add.at(row, table.rows[table.is_there], 1)
        assert (table.rows[~table.is_there] == records).all()
        found.append(row[:-1])
    return np.array(found)


@pytest.mark.parametrize("seeded", [False, True])
def test_every_record_is_drawn_by_its_models_rate_and_on_its_own(seeded):
    steps, total = 20_000, sum(SIZES)
    heads = drawn(draws.draw_poisson(SIZES, RATES, steps, sources(4, seeded=seeded)), total)
    assert set(np.unique(heads)) == {0, 1}
    rates = np.repeat(RATES, SIZES)
    scores = (heads.sum(0) - steps * rates) / np.sqrt(steps * rates * (1 - rates))
    assert stats.chi2.sf((scores**2).sum(), total) > FALSE_ALARM
    # Pairs of records, of one model and of two, and a record in two steps that follow: no correlation.
    centred = (heads - rates) / np.sqrt(rates * (1 - rates))
    between = (centred.T @ centred / np.sqrt(steps))[np.triu_indices(total, 1)]
    following = (centred[1:] * centred[:-1]).sum(0) / np.sqrt(steps - 1)
    every = np.concatenate([between, following])
    assert np.abs(every).max() < stats.norm.isf(FALSE_ALARM / every.size / 2)


@pytest.mark.parametrize("seeded", [False, True])
def test_the_size_of_a_sample_is_binomial(seeded):
    steps = 20_000
    counts = [table.is_there.sum(1)[0] for table in draws.draw_poisson([8], [0.3], steps, sources(1, seeded=seeded))]
    expected = stats.binom.pmf(np.arange(9), 8, 0.3) * steps
    found = np.bincount(counts, minlength=9)
    found, expected = np.append(found[:6], found[6:].sum()), np.append(expected[:6], expected[6:].sum())
    assert stats.chisquare(found, expected).pvalue > FALSE_ALARM


def test_seeded_samples_are_those_of_the_sampler_for_one_model():
    own = sources(4, seeded=True)
    tables = list(draws.draw_poisson(SIZES, RATES, 5, sources(4, seeded=True)))
    for number, (size, rate) in enumerate(zip(SIZES, RATES, strict=True)):
        start = sum(SIZES[:number])
        for table, draw in zip(tables, PoissonSampler(size, rate, 5, source=own[number]), strict=True):
            rows = table.rows[number][table.is_there[number]]
            assert (rows - start).tolist() == draw.indices.tolist()


def test_a_model_without_records_and_a_step_without_anybody_have_their_rows():
    tables = list(draws.draw_poisson([0, 0], [0.5, 0.5], 3, sources(2, seeded=False)))
    assert [table.rows.shape for table in tables] == [(2, 0)] * 3
    everybody = list(draws.draw_poisson([3, 1], [1.0, 1.0], 2, sources(2, seeded=False)))
    assert everybody[0].rows.tolist() == [[0, 1, 2], [3, 4, 4]]


def test_samples_are_thrown_when_they_are_asked_for():
    tables = draws.draw_poisson([1000], [0.5], 10**12, sources(1, seeded=False))
    assert next(tables).is_there.sum() != 0


@pytest.mark.parametrize("seeded", [False, True])
def test_a_pass_gives_every_record_once_in_an_order_of_its_own(seeded):
    sizes, batches, steps = [20, 7, 0, 3], [10, 3, 2, 5], 6
    tables = list(draws.draw_shuffled(sizes, batches, steps, sources(4, seeded=seeded)))
    assert len(tables) == steps
    for number, (size, batch) in enumerate(zip(sizes, batches, strict=True)):
        start = sum(sizes[:number])
        rows = [(table.rows[number][table.is_there[number]] - start).tolist() for table in tables]
        each = -(-size // batch)
        for first in range(0, steps - each + 1, each or steps):
            assert sorted(chain(*rows[first : first + each])) == list(range(size))
        assert max(map(len, rows)) <= batch
    assert sorted(tables[0].rows[0]) != tables[0].rows[0].tolist()


@pytest.mark.parametrize("sizes", [[20, 7], [1, 7], [0, 7], [0, 0]])
def test_batches_are_as_wide_as_the_plans_say_however_many_records_there_are(sizes):
    for table in draws.draw_shuffled(sizes, [10, 3], 3, sources(2, seeded=True)):
        assert table.rows.shape == table.is_there.shape == (2, 10)


def test_a_pinned_width_is_that_of_every_table_and_adds_padding_alone():
    narrow = draws.draw_shuffled([20, 7], [10, 3], 3, sources(2, seeded=True))
    for table, other in zip(draws.draw_shuffled([20, 7], [10, 3], 3, sources(2, seeded=True), 15), narrow, strict=True):
        assert table.rows.shape == (2, 15)
        assert table.rows[table.is_there].tolist() == other.rows[other.is_there].tolist()


@pytest.mark.parametrize("width", [1, 4, 7, 100])
def test_a_table_in_pieces_of_one_width_has_every_record_once(width):
    for table in draws.draw_poisson(SIZES, RATES, 5, sources(4, seeded=True)):
        pieces = list(table.split(width))
        assert {piece.rows.shape for piece in pieces} == {(4, width)}
        assert len(pieces) == -(-table.rows.shape[1] // width)
        assert drawn(pieces, sum(SIZES)).sum(0).tolist() == drawn([table], sum(SIZES))[0].tolist()


def test_the_width_of_batches_follows_from_the_plans():
    plain = [LocalPlan(size=20, batch_size=size, steps=4) for size in (3, 10)]
    assert draws.find_width(plain, 1000) == 10
    noised = LocalPlan(size=1000, batch_size=100, steps=4, clip_norm=1.0, noise_multiplier=1.0)
    widths = [draws.find_width([noised], models) for models in (1, 16, 1000)]
    assert widths == sorted(set(widths))
    assert 100 < widths[0] < widths[-1] < 150
    assert draws.find_width([LocalPlan(size=10, batch_size=10, steps=4, clip_norm=1.0, noise_multiplier=1.0)], 9) == 10


def test_first_places_of_a_pass_are_uniform():
    passes, size = 8_000, 6
    tables = draws.draw_shuffled([size, 4], [size, 4], passes, sources(2, seeded=False))
    firsts = np.array([[table.rows[0, 0], table.rows[1, 0] - size] for table in tables])
    for number, count in enumerate((size, 4)):
        assert stats.chisquare(np.bincount(firsts[:, number], minlength=count)).pvalue > FALSE_ALARM
    both = np.histogram2d(*firsts.T, bins=(size, 4))[0]
    assert stats.chi2_contingency(both).pvalue > FALSE_ALARM
