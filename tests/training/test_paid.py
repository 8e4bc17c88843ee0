"""Blocks of steps paid ahead: however a run dies, no step was taken that was not charged before."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpfed.errors import BudgetExceeded, InvalidArgument, PrivacyError
from dpfed.ledger.account import LedgerHold
from dpfed.plan.plan import LocalPlan
from dpfed.training.noise import NoiseSource
from dpfed.training.paid import reserve_steps
from dpfed.training.private import make_private

PLAN = LocalPlan(size=20, batch_size=10, steps=5, clip_norm=1.0, noise_multiplier=4.0)
ALIVE = 77


def charged(ledger):
    return sum(found.committed for found in ledger.reservations(open_only=False))


def a_run(ledger, ahead=2):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    data = TensorDataset(torch.randn(20, 3), torch.zeros(20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return make_private(
        model,
        optimizer,
        data,
        PLAN,
        loss=nn.MSELoss(reduction="none"),
        account=ledger.account("icu"),
        run="r",
        ahead=ahead,
    )


def in_child(work) -> tuple[int, bytes]:
    """How the forked child ended, and what it wrote until then."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work(lambda text: os.write(write, text))
        finally:
            os._exit(ALIVE)
    _, status = os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return os.waitstatus_to_exitcode(status), pipe.read()


def around(method, tick):
    def ticked(*arguments, **keywords):
        tick()
        found = method(*arguments, **keywords)
        tick()
        return found

    return ticked


def killed_at(ledger, point, monkeypatch) -> tuple[int, int]:
    """How the child ended that dies at that point, before or after a commit or a draw of noise; and its draws."""

    def train(write):
        left = [point]

        def tick():
            left[0] -= 1
            if left[0] < 0:
                os._exit(0)

        add = NoiseSource.add

        def drawn(*arguments):
            write(b"n")
            return add(*arguments)

        monkeypatch.setattr(LedgerHold, "commit", around(LedgerHold.commit, tick))
        monkeypatch.setattr(NoiseSource, "add", around(drawn, tick))
        private = a_run(ledger)
        for batch in private.loader:
            private.step(batch)

    code, wrote = in_child(train)
    return code, len(wrote)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("point", range(17))
def test_killed_at_any_point_a_run_has_charged_what_it_took_and_resumes_with_what_is_left(ledger, point, monkeypatch):
    """Three commits (2, 2 and 1 steps) and five draws, each with a point before and one behind: 16, then the end."""
    code, taken = killed_at(ledger, point, monkeypatch)
    assert code == (ALIVE if point == 16 else 0)
    before = charged(ledger)
    assert taken <= before <= taken + 2
    assert before in (0, 2, 4, 5)
    if before == 5:
        with pytest.raises(BudgetExceeded, match="all 5 steps"):
            a_run(ledger)
        return
    second = a_run(ledger)
    assert second.steps_taken == before
    steps = [second.step(batch) for batch in second.loader]
    assert before + len(steps) == second.steps_taken == charged(ledger) == 5


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_cannot_take_steps_that_were_paid_for(ledger):
    private = a_run(ledger, ahead=4)
    batches = private.loader
    private.step(next(batches))
    assert charged(ledger) == 4

    def step_again(write):
        try:
            private.step(next(private.loader))
        except BudgetExceeded as refusal:
            write(str(refusal).encode())
            private.close()

    _, wrote = in_child(step_again)
    assert b"forked process" in wrote
    for batch in batches:
        private.step(batch)
    assert private.steps_taken == charged(ledger) == 5


def test_steps_are_charged_a_block_at_a_time_before_their_noise(ledger, monkeypatch):
    private, seen = a_run(ledger, ahead=2), []
    add = NoiseSource.add
    monkeypatch.setattr(NoiseSource, "add", lambda self, *a: (seen.append(charged(ledger)), add(self, *a))[1])
    assert charged(ledger) == 0
    for batch in private.loader:
        private.step(batch)
    assert seen == [2, 2, 4, 4, 5]


def test_a_closed_run_loses_the_rest_of_its_block_and_gives_the_others_back(ledger):
    private = a_run(ledger, ahead=3)
    private.step(next(private.loader))
    private.close()
    assert charged(ledger) == 3
    assert not ledger.reservations()
    assert (private.steps_taken, private._paid.left) == (1, 4)


def test_a_block_that_was_not_committed_pays_for_no_step(ledger):
    steps = reserve_steps(PLAN, ledger.account("icu"), "r", ahead=2)
    ledger.freeze("icu", reason="the owner asks what for")
    for _ in range(3):
        with pytest.raises(PrivacyError, match="frozen"):
            steps.take()
    assert (steps.left, charged(ledger)) == (5, 0)
    ledger.unfreeze("icu", reason="answered")
    steps.take()
    assert (steps.left, charged(ledger)) == (4, 2)


@pytest.mark.parametrize(("steps", "ahead"), [(1, 1), (199, 1), (200, 2), (10_000, 32)])
def test_a_block_is_a_hundredth_of_the_plan_and_at_most_32(ledger, steps, ahead):
    plan = LocalPlan(size=1000, batch_size=1, steps=steps, clip_norm=1.0, noise_multiplier=20.0)
    reserve_steps(plan, ledger.account("icu"), "r").take()
    assert charged(ledger) == ahead


@pytest.mark.parametrize("ahead", [0, -1, 1.5])
def test_a_block_is_a_whole_number_of_steps_and_nothing_is_reserved_for_another(ledger, ahead):
    with pytest.raises(InvalidArgument, match="ahead"):
        a_run(ledger, ahead=ahead)
    assert not ledger.reservations(open_only=False)


def test_a_run_that_was_resumed_does_not_repeat_the_noise(ledger):
    """From the same start, on no data at all: what moved the model is noise alone."""
    ends = []
    for _ in range(2):
        private = a_run(ledger, ahead=1)
        for value in private.model.parameters():
            value.data.zero_()
        private.step(next(private.loader))
        ends.append(torch.cat([value.detach().flatten() for value in private.model.parameters()]))
    assert private.steps_taken == 2
    assert not torch.isclose(*ends).any()
