"""Whatever clients send, no malformed update reaches a rule, and none stops a round or moves the model."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.aggregation.robust_rules import RobustRule
from dpfed.aggregation.rules import RULES, Mean
from dpfed.aggregation.screening import Arrival, UpdateCheck
from dpfed.errors import UpdateRejected
from dpfed.federated.engine import Federation
from dpfed.federated.messages import Update
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.plan.plan import LocalPlan, Plan
from malformed import OVERSIZE, PICKLE, SIZE, good, make_message, put
from robust_cases import cases

NAMES, LIARS = "abcdefghijk", "lmn"
CHECK = UpdateCheck(round=3, shapes={"weights": (SIZE,)}, clients=NAMES, max_norm=1e6)
MALFORMED = {
    "reject_pickle_payload": Arrival("a", 3, PICKLE),
    "reject_replay_old_round": Arrival("a", 2, good()),
    "reject_huge": Arrival("a", 3, put(1e38)),
    "reject_wrong_dtype_int64": Arrival("a", 3, np.zeros(SIZE, dtype=np.int64)),
    "reject_nan": Arrival("a", 3, put(np.nan)),
    "reject_inf": Arrival("a", 3, put(np.inf)),
    "reject_neg_inf": Arrival("a", 3, put(-np.inf)),
    "reject_missing_key": Arrival("a", 3, {}),
    "reject_num_examples_negative": Arrival("a", 3, {"weights": good(), "num_examples": -89}),
    "reject_duplicate_identity": Arrival("b", 3, good()),
    "reject_oversize": Arrival("a", 3, OVERSIZE),
    "reject_replay_same_round": Arrival("b", 3, good()),
}


@pytest.mark.parametrize("case", cases("malformed_update"), ids=lambda case: case["id"])
def test_the_published_cases_are_refused_and_leave_what_was_accepted(case):
    arrival = MALFORMED[case["id"]]
    with pytest.raises(UpdateRejected, match="is refused"):
        CHECK.require(arrival, seen={"b"})
    screened = CHECK.screen([Arrival("b", 3, good()), arrival])
    assert list(screened.accepted) == ["b"]
    assert len(screened.refused) == 1


def test_what_is_right_is_returned():
    assert (CHECK.require(Arrival("a", 3, good())) == good()).all()


class Ward:
    account = ""

    def __init__(self, name):
        self.name = name

    def rehearse(self, local, weights):
        """Any plan fits."""

    def train(self, local, objective, source):
        return 0.1 * (1 - objective.start) + 0.001 * ord(self.name)


class Besieged(LocalRunner):
    """Between the honest updates of a round stand malformed messages; the last clients send nothing else."""

    sent = 0

    def train(self, task, cohort):
        draws = np.random.default_rng(task.round)
        for outcome in super().train(task, cohort):
            for _ in range(10):
                client, number, value = make_message(draws, LIARS, task.round)
                self.sent += 1
                yield Update(client, number, value, outcome.head)
            if outcome.client in NAMES:
                yield outcome
                yield outcome  # and once more, to count twice


def make_rule(kind):
    clip = {"clip_norm": 1.0} if kind in ("norm_bounded_mean", "centered_clipping") else {}
    return Mean() if kind == "mean" else RULES[kind](max_faulty=2, **clip)


@pytest.mark.parametrize("kind", RULES)
def test_no_malformed_update_reaches_a_rule(kind, tmp_path, monkeypatch, campaign_scale):
    """Some 130 malformed messages a round: a campaign has above 10⁵ over all rules."""
    rule, rounds = make_rule(kind), 8 * campaign_scale
    seen, home = [], Mean if kind == "mean" else RobustRule
    combined = home.combined

    def record(self, updates, size, *rest, **released):
        seen.append({name: update.copy() for name, update in updates.items()})
        return combined(self, updates, size, *rest, **released)

    monkeypatch.setattr(home, "combined", record)
    local = dict.fromkeys(NAMES + LIARS, LocalPlan(size=8, batch_size=4, steps=1))
    plan = Plan("study", rounds, local, style="none", weighting="equal", aggregation=rule)
    runner = Besieged([Ward(name) for name in NAMES + LIARS])
    results = list(Federation(plan, np.zeros(SIZE), runner, tmp_path))
    assert runner.sent >= 130 * rounds
    assert len(seen) == len(results) == rounds
    assert all("".join(updates) == NAMES for updates in seen)
    assert all(np.abs(update).max() < 1 and update.dtype == float for updates in seen for update in updates.values())
    assert all((update != good()).all() for updates in seen for update in updates.values())
    assert np.abs(results[-1].weights).max() < 2.1  # where the honest ones lead
