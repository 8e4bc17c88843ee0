"""What a site allows its own Flower client: plans that are refused, and what each training is charged to."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InvalidArgument, LedgerError, LedgerRolledBack, NotReserved
from dpfed.integrations.flower_policy import SitePolicy
from dpfed.ledger.ledger import Ledger
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.randomness import SeededSource
from flower_apps import count_charges

STEPS = LocalPlan(size=40, batch_size=10, steps=3, clip_norm=1.0)
BUDGET = {"epsilon": 8.0, "delta": 1e-5}


@pytest.fixture
def url(tmp_path):
    found = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger(found) as ledger:
        ledger.open("site", **BUDGET, unit="client", adjacency="replace_one", source=b"ward")
        ledger.open("rows", **BUDGET, source=b"other ward")
    return found


def local(url, account="site", **settings):
    settings = {"rounds": 2, "clip_norm": 1.0, **BUDGET} | settings
    return SitePolicy.local("study", ledger=url, account=account, **settings)


def sample(url, account="rows", **settings):
    return SitePolicy.sample(
        "study", **({"rounds": 2, "steps": STEPS, "ledger": url, "account": account, **BUDGET} | settings)
    )


@pytest.mark.parametrize("make", [local, sample])
def test_all_trainings_together_cost_what_was_asked_for(url, make):
    policy = make(url)
    (promise,) = policy.plan.guarantees
    cost = policy.plan.client_epsilon if policy.plan.noises_updates else policy.plan.record_epsilon
    assert 7.9 < cost(1e-5) <= promise.epsilon == 8.0


def test_every_training_is_one_charge_and_the_next_one_is_refused(url):
    policy = local(url)
    assert [policy.pay().number, policy.pay().number] == [1, 2]
    with pytest.raises(NotReserved, match="all 2 trainings"):
        policy.pay()
    assert count_charges(url, "site") == 2


def test_what_does_not_fit_the_account_is_refused_before_the_first_training(url):
    with pytest.raises(BudgetExceeded):
        local(url, epsilon=9.0).pay()
    assert count_charges(url, "site") == 0


def test_other_accounts_on_the_same_data_pay_as_well(url):
    with Ledger(url) as ledger:
        ledger.open("its-rows", **BUDGET, adjacency="replace_one", source=b"ward")
    local(url).pay()
    assert count_charges(url, "its-rows") == 1


@pytest.mark.parametrize(("make", "account"), [(local, "rows"), (sample, "site")])
def test_an_account_for_something_else_is_refused(url, make, account):
    with pytest.raises((InvalidArgument, AdjacencyMismatch)):
        make(url, account).pay()
    assert count_charges(url, account) == 0


def test_a_changed_plan_under_the_same_name_is_refused(url):
    local(url).pay()
    with pytest.raises(InvalidArgument, match="another plan"):
        local(url, clip_norm=1.0, epsilon=4.0).pay()


def test_no_ledger_is_made_where_there_is_none(tmp_path):
    with pytest.raises(LedgerError):
        local(f"sqlite:///{tmp_path / 'none.db'}").pay()
    assert not (tmp_path / "none.db").exists()


def test_a_ledger_that_was_replaced_by_an_older_copy_is_refused(url):
    with pytest.raises(LedgerRolledBack):
        local(url).pay(heads=[f"999:{'0' * 64}"])
    head = local(url).pay().head
    assert local(url).pay(heads=[head]).number == 2


def test_a_ledger_that_was_put_back_while_the_supernode_was_away_is_refused(url, tmp_path):
    """Nothing remembers a head then but the file beside the ledger."""
    local(url).pay()
    before = (tmp_path / "ledger.db").read_bytes()
    assert local(url).pay().number == 2
    (tmp_path / "ledger.db").write_bytes(before)
    for policy in (local(url), sample(url)):
        with pytest.raises(LedgerRolledBack):
            policy.pay()
    assert (tmp_path / "ledger.db.head").stat().st_mode & 0o777 == 0o600


def test_noise_that_others_can_repeat_is_named(url):
    assert "NOT PRIVATE" in local(url, source=SeededSource(1)).explain()
    assert "NOT PRIVATE" not in local(url).explain()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"style": "hybrid", "client": ClientPlan(clip_norm=1.0, noise_multiplier=2.0)}, "'local' or 'sample'"),
        ({"local": {"ward": replace(STEPS, noise_multiplier=1.0)}}, "this site alone"),
        ({"noise_schedule": (1.0, 2.0)}, "which round"),
        ({"local": {"site": STEPS}}, "no noise yet"),
    ],
)
def test_a_plan_that_a_site_cannot_keep_alone_is_refused(url, change, says):
    plan = Plan("study", 2, {"site": replace(STEPS, noise_multiplier=1.0)})
    with pytest.raises(InvalidArgument, match=says):
        SitePolicy(replace(plan, **change), url, "rows")


@pytest.mark.parametrize("weight", [0, -1, 1.5, True])
def test_a_weight_is_a_positive_count(url, weight):
    with pytest.raises(InvalidArgument, match="weight"):
        local(url, weight=weight)


@pytest.mark.parametrize(("make", "what"), [(local, "whole update"), (sample, "private steps")])
def test_the_explanation_says_what_leaves_and_whom_the_site_trusts(url, make, what):
    text = make(url).explain()
    for part in (what, "ε = 8", "whoever can start runs", "`dpfed site serve`", "Not covered: how long"):
        assert part in text


def test_everything_but_flowers_own_types_is_there_without_flower():
    names = ("integrations.flower_policy", "integrations.flower_round", "integrations.opacus", "cli.main")
    imports = "; ".join(f"import dpfed.{name}" for name in names)
    text = f"import sys; sys.modules['flwr'] = None; {imports}"
    subprocess.run([sys.executable, "-c", text], check=True)
