from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.data import partition
from dpfed.errors import InvalidArgument

LABELS = np.repeat(np.arange(10), 30)

KINDS = {
    "iid": lambda seed: partition.iid(300, 7, seed),
    "quantity": lambda seed: partition.quantity(300, [200, 70, 29, 1], seed),
    "dirichlet": lambda seed: partition.dirichlet(LABELS, 20, 0.1, seed),
    "shards": lambda seed: partition.shards(LABELS, 15, 2, seed),
    "by_class": lambda seed: partition.by_class(LABELS, 6, 3, seed),
}


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**40))
def test_every_record_is_in_exactly_one_part_and_no_client_has_nothing(kind, seed):
    parts = KINDS[kind](seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(300))
    assert min(map(len, parts)) >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_parts_and_another_seed_others(kind):
    def listed(seed):
        return [part.tolist() for part in KINDS[kind](seed)]

    assert listed(3) == listed(3)
    assert listed(3) != listed(4)


def test_iid_parts_differ_by_at_most_one_record():
    assert sorted({len(part) for part in partition.iid(300, 7)}) == [42, 43]


def test_quantity_gives_the_sizes_in_their_order():
    assert [len(part) for part in partition.quantity(10, [1, 7, 2])] == [1, 7, 2]


@pytest.mark.parametrize("sizes", [[], [5, 4], [5, 6], [10, 0], [-1, 11], [5.5, 4.5], [True, 9]])
def test_sizes_that_do_not_take_all_records_are_refused(sizes):
    with pytest.raises(InvalidArgument, match="sizes must"):
        partition.quantity(10, sizes)


def skew(parts):
    """The mean over clients of the largest class's share: 0.1 for ten equal classes, 1 for one class only."""
    return np.mean([np.bincount(LABELS[part], minlength=10).max() / len(part) for part in parts])


def test_a_smaller_alpha_makes_clients_more_unlike():
    skews = [skew(partition.dirichlet(LABELS, 5, alpha, 1)) for alpha in (1000.0, 1.0, 0.01)]
    assert skews[0] < 0.2 < skews[1] < 0.5 < skews[2]


def test_dirichlet_leaves_clients_empty_only_when_asked():
    parts = partition.dirichlet(LABELS, 100, 0.01, 1, minimum=0)
    assert min(map(len, parts)) == 0
    assert sum(map(len, parts)) == 300
    assert min(map(len, partition.dirichlet(LABELS, 100, 0.01, 1, minimum=2))) >= 2


def test_a_tiny_alpha_gives_a_class_to_one_client():
    parts = partition.dirichlet(LABELS, 4, 1e-300, 1, minimum=0)
    holders = [client for part, client in zip(parts, range(4), strict=True) for _ in set(LABELS[part])]
    assert len(holders) == 10


def test_shards_bound_the_classes_a_client_sees():
    parts = partition.shards(LABELS, 15, 2, 1)  # 30 shards of 10 lie within one class each
    assert max(len(set(LABELS[part])) for part in parts) <= 2
    assert {len(part) for part in parts} == {20}


@pytest.mark.parametrize(("clients", "classes"), [(10, 1), (6, 3), (20, 1), (4, 10)])
def test_by_class_gives_each_client_so_many_classes_and_each_class_to_somebody(clients, classes):
    parts = partition.by_class(LABELS, clients, classes, 1)
    assert {len(set(LABELS[part])) for part in parts} == {classes}
    assert set(LABELS[np.concatenate(parts)]) == set(range(10))


@pytest.mark.parametrize(("clients", "classes"), [(3, 1), (3, 11), (400, 1)])
def test_classes_that_cannot_be_shared_are_refused(clients, classes):
    with pytest.raises(InvalidArgument, match=r"cannot share|too few"):
        partition.by_class(LABELS, clients, classes)


def test_a_column_names_the_clients_and_a_record_more_moves_no_other():
    before = partition.by_column(["b", "a", "b"])
    after = partition.by_column(["b", "a", "b", "a"])
    assert {name: part.tolist() for name, part in before.items()} == {"a": [1], "b": [0, 2]}
    assert {name: part.tolist() for name, part in after.items()} == {"a": [1, 3], "b": [0, 2]}


@pytest.mark.parametrize("records", [0, 3, -1])
def test_too_few_records_are_refused(records):
    with pytest.raises(InvalidArgument):
        partition.iid(records, 4)


@pytest.mark.parametrize("bad", [-1, 1.5, True, None])
def test_a_seed_that_is_no_whole_number_is_refused(bad):
    with pytest.raises(InvalidArgument, match="seed must"):
        partition.iid(10, 2, bad)


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
def test_an_alpha_out_of_range_is_refused(alpha):
    with pytest.raises(InvalidArgument, match="alpha must"):
        partition.dirichlet(LABELS, 4, alpha)


def test_labels_must_be_one_per_record():
    with pytest.raises(InvalidArgument, match="one label per record"):
        partition.shards(np.zeros((4, 2)), 2)


def test_numbers_as_names_sort():
    names = partition.number_clients(1000)
    assert (names[0], names[-1]) == ("0001", "1000")
    assert list(names) == sorted(names)


def test_hashes_depend_on_the_content_the_seed_and_the_purpose():
    features, labels = np.arange(12.0).reshape(4, 3), np.arange(4)
    found = partition.hash_rows(features, labels, 1)
    assert (partition.hash_rows(features[::-1], labels[::-1], 1)[::-1] == found).all()
    assert not set(found) & set(partition.hash_rows(features, labels, 2))
    assert not set(found) & set(partition.hash_rows(features, labels, 1, b"other"))
    assert len(partition.hash_rows(features[:0], labels[:0], 1)) == 0


def test_hashes_of_names_are_those_of_their_texts():
    assert (partition.hash_names([1, 2], 3) == partition.hash_names(["1", "2"], 3)).all()


def test_a_name_that_is_no_unicode_has_a_hash_and_is_not_quoted():
    assert len(set(partition.hash_names(["ann\ud800", "ann"], 3).tolist())) == 2
