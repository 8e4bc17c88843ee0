"""Charges apart from training: what is reserved, committed and counted, and that counts come back from the ledger."""

from __future__ import annotations

import pytest

from dpfed.errors import AdjacencyMismatch, InvalidArgument, NotReserved
from dpfed.federated.runners.charging import SharedLedger
from dpfed.ledger.ledger import Ledger
from dpfed.plan.cohort import PoissonCohort
from studies import SIZES, a_plan

ACCOUNTS = {name: f"account-{name}" for name in SIZES}


@pytest.fixture
def ledger(tmp_path):
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as opened:
        for account in ACCOUNTS.values():
            opened.open(account, epsilon=1000.0, delta=1e-5)
        opened.open("study", epsilon=1000.0, delta=1e-5, unit="client")
        yield opened


def reserved(ledger, plan, heads=()):
    charging = SharedLedger(ledger, ACCOUNTS, "study" if "client" in plan.units else None)
    charging.reserve(plan, heads)
    return charging


def test_a_client_has_as_many_charges_as_the_plan_gives_it_and_no_more(ledger):
    charging = reserved(ledger, a_plan("sample", SIZES, rounds=2))
    assert charging.left("north", 1) == 2
    charging.commit_local(["north", "west"], 1)
    charging.commit_local(["north"], 2)
    assert [charging.left(name, 2) for name in ("north", "west", "harbour")] == [0, 1, 2]
    with pytest.raises(NotReserved):
        charging.commit_local(["north"], 2)
    assert charging.charged().local == {"north": 2, "west": 1, "harbour": 0}
    assert [charging.times(name) for name in ("north", "west", "harbour")] == [2, 1, 0]


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
@pytest.mark.parametrize("is_secret", [False, True])
def test_counts_come_back_from_the_ledger(ledger, style, is_secret):
    plan = a_plan(style, SIZES, cohort=PoissonCohort(0.5, secret=is_secret))
    charging = reserved(ledger, plan)
    first = charging.head
    charging.commit_local(["north", "harbour"], 1)
    if style != "sample":
        charging.commit_release(1, 1)
    again = reserved(ledger, plan, [first])
    assert again.charged() == charging.charged()
    assert again.charged().local == ({} if style == "user" else {"north": 1, "west": 0, "harbour": 1})


def test_where_clients_are_not_charged_each_can_always_train(ledger):
    charging = reserved(ledger, a_plan("user", SIZES))
    charging.commit_local(list(SIZES), 1)
    assert charging.left("north", 1) == 1
    assert charging.charged().local == {}


def test_without_a_ledger_nothing_is_reserved_that_must_be_paid():
    free = SharedLedger(None, ACCOUNTS)
    free.reserve(a_plan("none", SIZES))
    assert (free.head, free.key(a_plan("none", SIZES)), free.commit_release(1, 1)) == ("0:none", b"", "0:none")
    with pytest.raises(InvalidArgument, match="give the runner a ledger"):
        free.reserve(a_plan("sample", SIZES))


def test_clients_and_accounts_that_are_not_the_plans_are_refused_and_nothing_is_reserved(ledger):
    with pytest.raises(InvalidArgument, match="the plan is for"):
        SharedLedger(ledger, {"north": "account-north"}).reserve(a_plan("sample", SIZES))
    ledger.open("persons", epsilon=4.0, delta=1e-5, unit="person")
    with pytest.raises(InvalidArgument, match="whose unit is record"):
        SharedLedger(ledger, {**ACCOUNTS, "west": "persons"}).reserve(a_plan("sample", SIZES))
    ledger.open("replaced", epsilon=4.0, delta=1e-5, adjacency="replace_one")
    with pytest.raises(AdjacencyMismatch, match="replace_one"):
        SharedLedger(ledger, {**ACCOUNTS, "west": "replaced"}).reserve(a_plan("sample", SIZES))
    assert ledger.reservations() == ()


def test_what_was_never_committed_is_returned(ledger):
    charging = reserved(ledger, a_plan("sample", SIZES))
    charging.commit_local(["north"], 2)
    charging.release("study")
    charging.release("study")
    assert ledger.reservations() == ()
