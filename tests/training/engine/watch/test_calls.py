"""What a pass asks of torch tells one in which Python decided otherwise."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from torch.overrides import _get_current_function_mode

from dpfed.training.engine.watch.calls import CallRecorder, remove_idle_modes

X = torch.randn(6, 3)


def asked(function, x=X):
    with CallRecorder(len(x), [x]) as calls:
        function(x)
    return calls.log


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x, lambda x: x.roll(1, 0)),
        (lambda x: x.roll(1, 0), lambda x: x.roll(1, 1)),
        (lambda x: x[:, :2], lambda x: x[:2, :]),
        (lambda x: x.sum(dim=0), lambda x: x.sum(dim=1)),
        (lambda x: (x.abs(), x.neg())[0].exp(), lambda x: (x.abs(), x.neg())[1].exp()),
        (lambda x: x.view(6, 3), lambda x: x.view(3, 6)),
        (lambda x: x.to(torch.float64), lambda x: x.to(torch.device("cpu"))),
    ],
)
def test_other_calls_numbers_or_tensors_are_told_apart(one, other):
    assert asked(one) == asked(one)
    assert asked(one) != asked(other)


def test_numbers_that_follow_from_the_size_are_the_same_for_every_size():
    def function(x):
        return x.view(len(x), -1).reshape(len(x) * 3).new_zeros(len(x)) * 0.5

    assert asked(function) == asked(function, torch.randn(11, 3))


def test_an_error_that_is_caught_shows():
    def caught(x):
        with contextlib.suppress(IndexError):
            torch.embedding(x, torch.tensor([len(x) + 5 if x[0, 0] > 1 else 0]))

    calm, wild = X.clamp(max=0), X + 100
    assert asked(caught, calm) != asked(caught, wild)


def test_what_is_made_keeps_its_number_when_others_have_gone():
    """An id is used again as soon as its tensor is gone: two different tensors must not pass for one."""

    def same(x):
        for _ in range(20):
            kept = x * 1
        return kept + kept

    assert asked(same).sources[-2:] == (20, 20)


def test_a_mode_that_was_left_below_another_one_goes_with_it():
    first, second = CallRecorder(2, []), CallRecorder(2, [])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    torch.ones(1) + 1
    assert first.log.calls == ()
    second.__exit__(None, None, None)
    remove_idle_modes()
    assert not isinstance(_get_current_function_mode(), CallRecorder)


def test_a_constant_that_is_gone_is_not_taken_for_another_at_the_same_place():
    """Arrays of numpy become tensors out of torch's sight, and the next one may lie where the last one was."""
    x = torch.ones(4, 3)

    def scaled():
        with CallRecorder(4, [x]) as calls:
            x * torch.from_numpy(np.ones(3, dtype=np.float32))
        return calls.log

    table = torch.ones(3)

    def by_table():
        with CallRecorder(4, [x]) as calls:
            x * table
        return calls.log

    seen = [scaled() for _ in range(5)]
    assert all(one != two for number, one in enumerate(seen) for two in seen[:number])
    assert len({one.calls for one in seen}) == 1
    assert by_table() == by_table()
