"""Teachers: one record is in one teacher, and no other teacher's bits know of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfed.errors import InvalidArgument
from dpfed.models.mlp import MLP
from dpfed.pate.teachers import FIXED_VOTE, TeacherPlan, assign_teachers, train_student, train_teachers

torch.set_num_threads(1)
PLAN = TeacherPlan(teachers=12, steps=6, batch_size=4, at_once=5)
CLASSES = 3


def world(records=20, *, outlier=True):
    """Few records for many teachers: some have none, some one, some a batch; one record makes its teacher diverge."""
    draws = np.random.default_rng(1)
    features, labels = draws.normal(size=(records, 3)).astype(np.float32), draws.integers(0, CLASSES, records)
    if outlier:
        features[7] = [3e38, -3e38, 3e38]
    return features, labels


def train(features, labels, plan=PLAN, hidden=(4,), persons=None):
    return train_teachers(MLP(3, hidden, CLASSES, seed=3), features, labels, plan, persons=persons)


def bits(teachers):
    """Return the bytes of each teacher's parameters, with whether it is able to vote."""
    flat = torch.cat([value.flatten(1) for value in teachers.parameters.values()], dim=1).numpy()
    return [(row.tobytes(), bool(able)) for row, able in zip(flat, teachers.is_able, strict=True)]


def without(values, place):
    return np.delete(values, place, axis=0)


def queries():
    return np.random.default_rng(2).normal(size=(40, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def trained():
    return train(*world())


def test_the_world_has_teachers_of_all_kinds(trained):
    sizes = [len(part) for part in assign_teachers(*world(), PLAN)]
    assert {0, 1} <= set(sizes)
    assert max(sizes) > PLAN.batch_size - 1
    assert 0 < (~trained.is_able).sum() - sizes.count(0) < 3  # that of the outlier
    assert sum(sizes) == 20


def test_removing_each_record_in_turn_changes_one_teacher_and_one_vote(trained):
    """The bits of all others stay; at zero noise the counts move by 2 in L1, √2 in L2, and the largest by 1."""
    features, labels = world()
    parts, before, largest = assign_teachers(features, labels, PLAN), trained.count_votes(queries()), 0
    for place in range(len(labels)):
        teachers = train(without(features, place), without(labels, place))
        pairs = zip(bits(trained), bits(teachers), strict=True)
        changed = [number for number, (one, two) in enumerate(pairs) if one != two]
        assert changed == [number for number, part in enumerate(parts) if place in part]
        moved = teachers.count_votes(queries()) - before
        assert np.abs(moved).sum(axis=1).max() <= 2
        assert np.linalg.norm(moved, axis=1).max() <= np.sqrt(2) + 1e-12
        assert np.abs((before + moved).max(axis=1) - before.max(axis=1)).max() <= 1
        largest = max(largest, np.abs(moved).sum(axis=1).max())
    assert largest == 2  # it is reached: half the noise would not do


def test_replacing_a_record_moves_the_counts_by_two_teachers(trained):
    features, labels = world()
    before, largest = trained.count_votes(queries()), 0
    for place in range(5):
        other, marked = features.copy(), labels.copy()
        other[place], marked[place] = [3.0, -3.0, 0.5], (labels[place] + 1) % CLASSES
        after = train(other, marked).count_votes(queries())
        assert np.abs(after - before).sum(axis=1).max() <= 4
        assert np.linalg.norm(after - before, axis=1).max() <= 2 * np.sqrt(2) + 1e-12
        assert np.abs(after.max(axis=1) - before.max(axis=1)).max() <= 2
        largest = max(largest, np.abs(after - before).sum(axis=1).max())
    assert largest > 2


def test_the_order_of_the_data_changes_nothing(trained):
    features, labels = world()
    order = np.random.default_rng(3).permutation(len(labels))
    assert bits(train(features[order], labels[order])) == bits(trained)


def test_every_query_has_a_vote_of_every_teacher(trained):
    assert (trained.count_votes(queries()).sum(axis=1) == PLAN.teachers).all()
    assert trained.count_votes(queries()).shape == (40, CLASSES)
    assert trained.vote(queries()).shape == (40, PLAN.teachers)
    assert trained.count_votes(queries()[:0]).shape == (0, CLASSES)


def test_teachers_without_a_model_cast_the_fixed_vote(trained):
    assert (trained.vote(queries())[:, ~trained.is_able] == FIXED_VOTE).all()
    assert not (trained.vote(queries())[:, trained.is_able] == FIXED_VOTE).all()


def test_a_query_on_which_a_teacher_overflows_gets_the_fixed_vote():
    features, labels = world(outlier=False)
    teachers = train(features, np.full_like(labels, 2))
    assert (teachers.vote(np.full((1, 3), 3e38))[0] == FIXED_VOTE).any()
    assert teachers.count_votes(np.full((1, 3), 3e38)).sum() == PLAN.teachers


def test_no_records_at_all_do_not_stop_a_run():
    features, labels = world()
    teachers = train(features[:0], labels[:0])
    assert not teachers.is_able.any()
    assert teachers.count_votes(queries()[:2]).tolist() == [[PLAN.teachers, 0, 0]] * 2


def test_all_rows_of_a_person_are_at_one_teacher():
    features, labels = world(60, outlier=False)
    persons = np.arange(60) // 3
    holders = {}
    for number, part in enumerate(assign_teachers(features, labels, PLAN, persons)):
        for place in part:
            holders.setdefault(persons[place], set()).add(number)
    assert len(holders) == 20
    assert all(len(each) == 1 for each in holders.values())
    assert len(set.union(*holders.values())) > 5


def test_removing_a_person_changes_the_bits_of_one_teacher():
    features, labels = world(60, outlier=False)
    persons = np.arange(60) // 3
    before = bits(train(features, labels, persons=persons))
    for person in (0, 7):
        kept = persons != person
        after = bits(train(features[kept], labels[kept], persons=persons[kept]))
        assert sum(one != two for one, two in zip(before, after, strict=True)) == 1


def test_another_key_assigns_otherwise():
    features, labels = world(60)
    one, two = (assign_teachers(features, labels, TeacherPlan(teachers=12, key=key)) for key in (0, 1))
    assert any(set(a) != set(b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("other", [1.0, True, b"1", float("nan"), None])
@pytest.mark.parametrize("as_array", [False, True])
def test_names_of_which_two_may_be_one_person_are_refused(other, as_array):
    persons = [1, "ann", other] + ["ben"] * 17
    with pytest.raises(InvalidArgument, match="persons"):
        assign_teachers(*world(), PLAN, np.array(persons, dtype=object) if as_array else persons)


def test_a_number_and_its_text_are_one_person():
    persons = [1, "1"] * 10
    assert [len(part) for part in assign_teachers(*world(), PLAN, persons) if len(part)] == [20]


@pytest.mark.parametrize("persons", [[1, 2], np.zeros((20, 2), int), np.full(20, 0.5)])
def test_persons_that_do_not_name_each_record_are_refused(persons):
    with pytest.raises(InvalidArgument, match="persons"):
        assign_teachers(*world(), PLAN, persons)


@pytest.mark.parametrize(
    "wrong",
    [
        {"teachers": 0},
        {"steps": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"momentum": -1.0},
        {"key": -1},
        {"key": 2**128},
    ],
)
def test_plans_that_are_none_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        TeacherPlan(**wrong)


def test_a_student_that_diverges_is_trained_again_with_a_smaller_rate():
    features, labels = world(40, outlier=False)
    model = MLP(3, (), CLASSES, seed=3)
    train_student(model, torch.from_numpy(features * 1e3), torch.from_numpy(labels), steps=20, learning_rate=1e38)
    assert all(bool(value.isfinite().all()) for value in model.parameters())


def test_a_student_learns_what_it_is_told():
    features = np.linspace(-1, 1, 60, dtype=np.float32).reshape(-1, 1)
    labels = torch.from_numpy((features[:, 0] > 0).astype(int))
    model = MLP(1, (), 2, seed=3)
    train_student(model, torch.from_numpy(features), labels, steps=200, learning_rate=0.5)
    assert (model(torch.from_numpy(features)).argmax(dim=1) == labels).float().mean() > 0.95
