"""A poll: charged before its noise, for refused queries too, and silent when its budget is spent."""

from __future__ import annotations

import math

import pytest

from dpfed.accounting.queries import epsilon
from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InvalidArgument
from dpfed.events import Composed, Gaussian, Repeated
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.mechanisms.gaussian import GaussianMechanism
from dpfed.pate.poll import Poll, PollPlan
from dpfed.pate.vote.noisy_max import ConfidentGNMax, GNMax, LNMax

AGREED, SPLIT = [100, 0, 0], [34, 33, 33]
CONFIDENT = ConfidentGNMax(2.0, threshold=70, threshold_sigma=3.0)


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger.db") as opened:
        yield opened


def committed(ledger):
    """Return how often each event was committed on any account."""
    found = {}
    for line in ledger.statement("ward").lines:
        if line.kind == "committed":
            found[line.event] = found.get(line.event, 0) + line.count
    return found


def test_a_plan_charges_for_every_threshold_and_every_answer():
    plan = PollPlan(CONFIDENT, queries=50, max_answers=20)
    assert plan.charges == {Gaussian(3.0): 50, GNMax(2.0).event: 20}
    assert plan.event == Composed((Repeated(Gaussian(3.0), 50), Repeated(GNMax(2.0).event, 20)))


def test_a_plan_without_a_threshold_charges_for_answers_only():
    assert PollPlan(GNMax(2.0), queries=50).charges == {GNMax(2.0).event: 50}
    assert PollPlan(LNMax(2.0), queries=50, max_answers=80).charges == {LNMax(2.0).event: 50}


def test_a_threshold_with_the_noise_of_a_vote_is_counted_beside_it():
    vote = ConfidentGNMax(2.0, threshold=70, threshold_sigma=GNMax(2.0).event.noise_multiplier)
    plan = PollPlan(vote, queries=50, max_answers=20)
    assert plan.charges == {vote.event: 70}
    poll = Poll(plan)
    assert poll.ask_all([AGREED] * 60).count(0) == 20


def test_thresholds_and_answers_cost_what_one_gaussian_costs():
    """μ² = Q/σ₁² + 2A/σ²: the exact ε of the whole, by hand."""
    plan = PollPlan(ConfidentGNMax(40.0, threshold=200, threshold_sigma=150.0), queries=1000, max_answers=300)
    mu = math.sqrt(1000 / 150**2 + 2 * 300 / 40**2)
    assert plan.guarantee(1e-5).epsilon == pytest.approx(epsilon(Gaussian(1 / mu), 1e-5), rel=1e-6)


def test_a_refused_query_is_charged_for_its_threshold_and_leaves_the_answer(ledger):
    account = ledger.open("ward", epsilon=1000.0, delta=1e-5)
    with Poll(PollPlan(CONFIDENT, queries=4, max_answers=2), account=account, run="poll") as poll:
        assert [poll.ask(counts) for counts in (SPLIT, AGREED, SPLIT)] == [None, 0, None]
        assert poll.answers_left == 1
        assert committed(ledger) == {Gaussian(3.0): 3, GNMax(2.0).event: 1}
    assert not ledger.reservations()
    assert ledger.verify()


@pytest.mark.parametrize("vote", [GNMax(2.0), CONFIDENT], ids=["plain", "confident"])
def test_every_charge_is_on_disk_before_its_noise_is_drawn(ledger, monkeypatch, vote):
    account, seen, draw = ledger.open("ward", epsilon=1000.0, delta=1e-5), [], GaussianMechanism.add_noise

    def watch(self, x):
        seen.append(committed(ledger).get(self.event, 0))
        return draw(self, x)

    monkeypatch.setattr(GaussianMechanism, "add_noise", watch)
    Poll(PollPlan(vote, queries=3), account=account, run="poll").ask_all([AGREED] * 3)
    assert seen == ([1, 2, 3] if vote.threshold_event is None else [1, 1, 2, 2, 3, 3])


def test_when_the_answers_are_spent_there_is_no_further_answer_and_no_further_look(ledger):
    account = ledger.open("ward", epsilon=1000.0, delta=1e-5)
    poll = Poll(PollPlan(CONFIDENT, queries=10, max_answers=2), account=account, run="poll")
    assert poll.ask_all([AGREED] * 5) == [0, 0, None, None, None]
    assert poll.is_spent
    with pytest.raises(BudgetExceeded, match="no budget is left"):
        poll.ask(AGREED)
    assert committed(ledger) == {Gaussian(3.0): 2, GNMax(2.0).event: 2}


def test_when_the_queries_are_spent_there_is_no_further_answer():
    poll = Poll(PollPlan(CONFIDENT, queries=2, max_answers=2))
    assert poll.ask_all([SPLIT, SPLIT, AGREED]) == [None, None, None]
    with pytest.raises(BudgetExceeded):
        poll.ask(AGREED)


def test_a_poll_that_the_account_cannot_pay_is_refused_before_anything_is_asked(ledger):
    account = ledger.open("ward", epsilon=0.5, delta=1e-5)
    with pytest.raises(BudgetExceeded):
        Poll(PollPlan(GNMax(2.0), queries=10), account=account, run="poll")
    assert committed(ledger) == {}


def test_a_poll_that_was_stopped_goes_on_with_what_is_left(ledger):
    account, plan = ledger.open("ward", epsilon=1000.0, delta=1e-5), PollPlan(GNMax(2.0), queries=5)
    Poll(plan, account=account, run="poll").ask_all([AGREED] * 3)
    again = Poll(plan, account=account, run="poll")
    assert again.answers_left == 2
    assert again.ask_all([AGREED] * 5) == [0, 0, None, None, None]
    assert committed(ledger) == {GNMax(2.0).event: 5}


def test_blocks_are_paid_ahead_and_never_too_little(ledger):
    account = ledger.open("ward", epsilon=1000.0, delta=1e-5)
    poll = Poll(PollPlan(GNMax(2.0), queries=25), account=account, run="poll", ahead=10)
    poll.ask(AGREED)
    assert committed(ledger) == {GNMax(2.0).event: 10}
    poll.ask_all([AGREED] * 24)
    assert committed(ledger) == {GNMax(2.0).event: 25}


@pytest.mark.parametrize(
    ("terms", "error"), [({"adjacency": "replace_one"}, AdjacencyMismatch), ({"unit": "client"}, InvalidArgument)]
)
def test_an_account_of_another_promise_is_refused(ledger, terms, error):
    account = ledger.open("ward", epsilon=1000.0, delta=1e-5, **terms)
    with pytest.raises(error):
        Poll(PollPlan(GNMax(2.0), queries=10), account=account, run="poll")


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("vote", [GNMax(1.0), LNMax(1.0), CONFIDENT], ids=["gnmax", "laplace", "confident"])
def test_a_calibrated_plan_keeps_the_promise_and_wastes_little(vote, adjacency):
    promise = Guarantee(2.0, 1e-5, "person", adjacency)
    plan = PollPlan(vote, queries=100, max_answers=60).calibrated(promise)
    kept = plan.guarantee(1e-5)
    assert kept <= promise
    assert kept.epsilon > 0.999 * promise.epsilon
    assert (plan.unit, plan.adjacency) == ("person", adjacency)


def test_replace_one_needs_twice_the_noise():
    one, two = (
        PollPlan(GNMax(1.0), queries=100).calibrated(Guarantee(2.0, 1e-5, adjacency=each)).vote.sigma
        for each in ("add_remove", "replace_one")
    )
    assert two == pytest.approx(2 * one, rel=1e-4)


def test_pure_answers_keep_a_promise_without_delta():
    plan = PollPlan(LNMax(1.0), queries=20).calibrated(Guarantee(1.0, 0.0))
    assert plan.vote.epsilon == pytest.approx(1 / 20, rel=1e-4)


@pytest.mark.parametrize("wrong", [{"queries": 0}, {"max_answers": 0}, {"unit": "teacher"}, {"adjacency": "near"}])
def test_plans_that_are_none_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        PollPlan(GNMax(1.0), **({"queries": 5} | wrong))


def test_counts_that_are_none_cost_nothing():
    poll = Poll(PollPlan(GNMax(2.0), queries=5))
    with pytest.raises(InvalidArgument, match="counts"):
        poll.ask([0.5, 3])
    assert poll.answers_left == 5
