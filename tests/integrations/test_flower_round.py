"""One paid round of private steps in somebody else's code: what may start it, and what it gives out."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.integrations.flower_round import SampleRound
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import SeededSource
from dpfed.training.private import make_private

PLAN = LocalPlan(size=40, batch_size=40, steps=2, clip_norm=1.0, noise_multiplier=1e-9)
DATA = TensorDataset(torch.linspace(-1, 1, 120).reshape(40, 3), torch.ones(40, 1))


class Tied(nn.Module):
    """Two names for one parameter, a frozen one and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(3, 1)
        self.last.bias.requires_grad_(False)
        self.register_buffer("seen", torch.tensor(3))

    def forward(self, inputs):
        return self.last(self.second(self.first(inputs)))


def squares(output, target):
    return (output - target).square().sum(1)


def sent_of(model):
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def sgd(model, **settings):
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.5, **settings)


def run(own, model, optimizer=None, data=DATA):
    private = own.make_private(model, optimizer or sgd(model), data, loss=squares)
    for batch in private.loader:
        private.step(batch)
    return own.released()


def test_a_round_gives_out_what_make_private_trains():
    start = nn.Linear(3, 1)
    sent = sent_of(start)
    found = run(SampleRound(sent, PLAN, SeededSource(1)), nn.Linear(3, 1))
    private = make_private(start, sgd(start), DATA, PLAN, loss=squares, source=SeededSource(1))
    for batch in private.loader:
        private.step(batch)
    assert all(np.array_equal(found[name], value.detach().numpy()) for name, value in start.named_parameters())


def test_one_record_more_moves_a_step_by_at_most_the_clip_norm():
    plan = LocalPlan(size=41, batch_size=41, steps=1, clip_norm=1.0, noise_multiplier=1e-9)
    sent = sent_of(nn.Linear(3, 1))
    more = TensorDataset(
        torch.cat([DATA.tensors[0], torch.full((1, 3), 1e4)]), torch.cat([DATA.tensors[1], torch.ones(1, 1)])
    )
    with_it, without = (run(SampleRound(sent, plan), nn.Linear(3, 1), data=data) for data in (more, DATA))
    moved = np.concatenate([(with_it[name] - without[name]).ravel() for name in sent])
    assert np.linalg.norm(moved) == pytest.approx(0.5 * 1.0 / 41, rel=1e-3)  # rate × clip / batch size


def test_two_names_of_one_parameter_leave_alike_and_what_is_not_trained_as_it_came():
    model = Tied()
    sent = sent_of(model)
    found = run(SampleRound(sent, PLAN), Tied())
    assert np.array_equal(found["first.weight"], found["second.weight"])
    assert not np.array_equal(found["first.weight"], sent["first.weight"])
    assert found["last.bias"] is sent["last.bias"]
    assert found["seen"] is sent["seen"]


def test_arrays_without_names_are_taken_in_the_order_of_the_model():
    sent = {str(place): array for place, array in enumerate(sent_of(nn.Linear(3, 1)).values())}
    assert [array.shape for array in run(SampleRound(sent, PLAN), nn.Linear(3, 1)).values()] == [(1, 3), (1,)]


@pytest.mark.parametrize("change", [{"weight": np.zeros((1, 4))}, {"more": np.zeros(1)}, {"weight": None}])
def test_a_model_of_another_form_is_refused(change):
    sent = {name: array for name, array in {**sent_of(nn.Linear(3, 1)), **change}.items() if array is not None}
    model = nn.Linear(3, 1)
    with pytest.raises(InvalidArgument, match="server"):
        SampleRound(sent, PLAN).make_private(model, sgd(model), DATA, loss=squares)


class Hidden(nn.Linear):
    """A parameter more, which no state_dict shows."""

    def __init__(self):
        super().__init__(3, 1)
        self.own = nn.Parameter(torch.ones(1, 3))

    def state_dict(self, *args, **kwargs):
        found = super().state_dict(*args, **kwargs)
        return {name: value for name, value in found.items() if name != "own"}

    def load_state_dict(self, state):
        super().load_state_dict({**state, "own": self.own.data})

    def forward(self, inputs):
        return super().forward(inputs * self.own)


class Stubborn(nn.Linear):
    """A model that loads what it likes."""

    def __init__(self):
        super().__init__(3, 1)

    def load_state_dict(self, *_):
        return None


@pytest.mark.parametrize("kind", [Hidden, Stubborn])
def test_a_parameter_that_starts_elsewhere_is_refused(kind):
    model = kind()
    with pytest.raises(InvalidArgument, match="does not start from what the server sent"):
        SampleRound(sent_of(nn.Linear(3, 1)), PLAN).make_private(model, sgd(model), DATA, loss=squares)


def test_what_leaves_is_not_what_a_state_dict_of_its_own_says():
    class Telling(nn.Linear):
        is_telling = False

        def state_dict(self, *args, **kwargs):
            found = super().state_dict(*args, **kwargs)
            return {name: value + 9 for name, value in found.items()} if self.is_telling else found

    model = Telling(3, 1)
    own = SampleRound(sent_of(model), PLAN, SeededSource(1))
    private = own.make_private(model, sgd(model), DATA, loss=squares)
    model.is_telling = True
    for batch in private.loader:
        private.step(batch)
    assert np.array_equal(own.released()["weight"], model.weight.detach().numpy())


def test_an_optimizer_that_made_steps_before_is_refused():
    model = nn.Linear(3, 1)
    optimizer = sgd(model, momentum=0.9)
    squares(model(DATA.tensors[0]), DATA.tensors[1]).sum().backward()
    optimizer.step()
    with pytest.raises(InvalidArgument, match="steps before"):
        SampleRound(sent_of(model), PLAN).make_private(model, optimizer, DATA, loss=squares)


@pytest.mark.parametrize("name", ["first.weight", "last.bias", "seen"])
def test_a_model_that_was_changed_between_two_steps_takes_no_other(name):
    model = Tied()
    private = SampleRound(sent_of(model), PLAN).make_private(model, sgd(model), DATA, loss=squares)
    batches = private.loader
    private.step(next(batches))
    model.state_dict()[name].add_(1)
    batch = next(batches)
    with pytest.raises(PrivacyError, match="changed between"):
        private.step(batch)


def test_nothing_is_released_before_the_last_step():
    model = nn.Linear(3, 1)
    own = SampleRound(sent_of(model), PLAN)
    with pytest.raises(PrivacyError, match="no private model"):
        own.released()
    private = own.make_private(model, sgd(model), DATA, loss=squares)
    private.step(next(private.loader))
    with pytest.raises(PrivacyError, match="all of private"):
        own.released()


def test_a_round_trains_one_model():
    model = nn.Linear(3, 1)
    own = SampleRound(sent_of(model), PLAN)
    run(own, model)
    with pytest.raises(InvalidArgument, match="paid for once"):
        own.make_private(model, sgd(model), DATA, loss=squares)


# ---- what a site's own code does beside the private steps ----


def shift(model, optimizer):
    """A step without noise, of a gradient that nobody clipped."""
    for value in model.parameters():
        value.grad = torch.full_like(value, -1000.0)
    optimizer.step()


def begin(optimizer_of=sgd, **settings):
    model = nn.Linear(3, 1)
    own, optimizer = SampleRound(sent_of(model), PLAN), optimizer_of(model, **settings)
    return own, model, optimizer


def take_all(private):
    for batch in private.loader:
        private.step(batch)


@pytest.mark.parametrize("again", ["raw", "private", "another optimizer"])
def test_what_is_trained_after_the_private_steps_stays_at_the_site(again):
    own, model, optimizer = begin()
    private = own.make_private(model, optimizer, DATA, loss=squares)
    take_all(private)
    paid = sent_of(model)
    private.close()
    if again == "private":  # with noise of next to nothing, that nobody was charged for
        take_all(make_private(model, optimizer, DATA, PLAN, loss=squares))
    else:
        shift(model, optimizer if again == "raw" else sgd(model))
    assert not np.array_equal(sent_of(model)["weight"], paid["weight"])
    for name, array in own.released().items():
        assert np.array_equal(array, paid[name])


def test_a_step_that_failed_is_not_made_up_for_by_one_without_noise():
    own, model, optimizer = begin()
    private = own.make_private(model, optimizer, DATA, loss=squares)
    batches = iter(private.loader)
    private.step(next(batches))
    after_one = {name: value.clone() for name, value in model.state_dict().items()}
    last = next(batches)
    optimizer.param_groups[0]["lr"] = float("inf")
    with pytest.raises(PrivacyError, match="no longer finite"):
        private.step(last)
    private.close()
    model.load_state_dict(after_one)
    optimizer.param_groups[0]["lr"] = 0.5
    shift(model, optimizer)
    with pytest.raises(PrivacyError, match="a round has 2 steps"):
        own.released()


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_an_optimizer_with_hooks_is_refused_whenever_it_got_them(register):
    def change(optimizer, args, kwargs):
        model.weight.data.fill_(1000.0)

    own, model, optimizer = begin()
    hook = getattr(optimizer, register)(change)
    with pytest.raises(InvalidArgument, match="has hooks"):
        own.make_private(model, optimizer, DATA, loss=squares)
    hook.remove()
    private = own.make_private(model, optimizer, DATA, loss=squares)
    getattr(optimizer, register)(change)
    with pytest.raises(PrivacyError, match="got hooks"):
        take_all(private)


@pytest.mark.parametrize("steps", [0, 1])
def test_an_optimizer_whose_memory_was_changed_takes_no_step(steps):
    own, model, optimizer = begin(momentum=0.9)
    private = own.make_private(model, optimizer, DATA, loss=squares)
    batches = iter(private.loader)
    for batch in islice(batches, steps):
        private.step(batch)
    batch = next(batches)
    optimizer.state[model.weight]["momentum_buffer"] = torch.full_like(model.weight, -1000.0)
    with pytest.raises(PrivacyError, match="a state of its own"):
        private.step(batch)


def test_an_optimizer_with_a_memory_of_private_steps_goes_on():
    own, model, optimizer = begin(lambda model: torch.optim.Adam(model.parameters(), lr=0.1))
    take_all(own.make_private(model, optimizer, DATA, loss=squares))
    assert np.array_equal(own.released()["weight"], sent_of(model)["weight"])
