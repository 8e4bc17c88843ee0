"""One run at one site: reserved, executed and charged by the same plan."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.errors import InvalidArgument, MessageRefused
from dpfed.federated.messages import Failure
from dpfed.federated.sent import SentStore
from dpfed.federated.site_run import OneAccount, SiteRun
from dpfed.ledger.ledger import Ledger
from dpfed.plan.plan import Algorithm, LocalPlan, Plan
from dpfed.randomness import SeededSource

LOCAL = LocalPlan(size=8, batch_size=4, steps=3, clip_norm=1.0, noise_multiplier=9.0)
PLAN = Plan("study-1", rounds=2, local={"north": LOCAL, "south": LOCAL}, weighting="equal")


class Ward:
    name, account = "north", "north-2026"
    takes_plain_steps = True
    fails = False

    def rehearse(self, local, weights): ...

    def train(self, local, objective, source):
        if self.fails:
            raise ValueError("of a record")
        return source.normal(2)


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger.db") as made:
        made.open("north-2026", epsilon=4.0, delta=1e-5)
        yield made


@pytest.fixture
def open_run(ledger, tmp_path):
    def opens(plan=PLAN, client=None):
        run = SiteRun(
            "study-1", plan, client or Ward(), ledger, SentStore(tmp_path / "sent", bytes(32)), SeededSource(1)
        )
        run.open(np.zeros(2), [])
        return run

    return opens


def test_only_the_site_s_own_part_is_reserved(open_run, ledger):
    run = open_run()
    (held,) = ledger.reservations()
    assert dict(held.reserved) == {"north-2026": PLAN.local_charges("north")}
    assert run.counts == [0]


def test_an_answer_is_charged_stored_and_found_again(open_run, ledger):
    run = open_run()
    task = run.make_task(1, {"weights": np.zeros(2)}, None, 0)
    left = run.answer(task, "plan", "model")
    assert run.counts == [1]
    assert run.find_kept(1, "plan", "model").tobytes() == left.tobytes()
    assert run.find_kept(1, "plan", "another") is None
    assert run.find_kept(2, "plan", "model") is None


def test_a_client_that_fails_is_charged_and_leaves_nothing(open_run):
    client = Ward()
    client.fails = True
    run = open_run(client=client)
    found = run.answer(run.make_task(1, {"weights": np.zeros(2)}, None, 0), "plan", "model")
    assert isinstance(found, Failure)
    assert run.counts == [1]
    assert run.find_kept(1, "plan", "model") is None


@pytest.mark.parametrize(
    ("number", "vectors"),
    [
        (0, {"weights": np.zeros(2)}),
        (3, {"weights": np.zeros(2)}),
        (1, {}),
        (1, {"weights": np.zeros(3)}),
        (1, {"weights": np.zeros((2, 1))}),
        (1, {"weights": np.zeros(2), "more": np.zeros(2)}),
        (1, {"weights": np.array([0.0, np.nan])}),
        (1, {"weights": np.array([0.0, 1e300])}),
    ],
)
def test_a_task_of_another_form_is_refused_before_anything_is_charged(open_run, number, vectors):
    run = open_run()
    with pytest.raises(MessageRefused):
        run.make_task(number, vectors, None, 0)
    assert run.counts == [0]


def test_state_is_stored_with_the_value_and_read_from_the_round_that_counts(open_run):
    plan = Plan(
        "study-1",
        rounds=2,
        local={"north": LOCAL, "south": LOCAL},
        weighting="equal",
        algorithm=Algorithm("scaffold", {}),
    )
    run = open_run(plan)
    vectors = {"weights": np.zeros(2), "control": np.zeros(2)}
    names = set(run._expected)
    vectors = {name: np.zeros(2) for name in names}
    run.answer(run.make_task(1, vectors, None, 0), "plan", "model")
    assert run._store.read("study-1", 1).state
    run.answer(run.make_task(2, vectors, None, 1), "plan", "model")
    with pytest.raises(InvalidArgument, match="is gone"):
        run._held.read("north", 5)


def test_an_account_of_one_client_knows_no_other(ledger):
    charging = OneAccount(ledger, {"north": "north-2026"})
    assert charging.charges(PLAN) == {"north-2026": PLAN.local_charges("north")}
    raw = Plan("raw", rounds=2, local={"north": LocalPlan(size=8, batch_size=4, steps=3)}, style="none")
    assert charging.charges(raw) == {}
