"""An audit trains the plan's own steps with canaries, and only a ledger lets it near private records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfed.audit.run import audit_plan, audit_records, count_parts, list_locals, reserve_audit, widen
from dpfed.audit.verdict import PRIVATE
from dpfed.errors import AdjacencyMismatch, InvalidArgument, PrivacyError
from dpfed.federated.torch.client import TorchClient
from dpfed.federated.torch.model import TorchModel
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.models.logistic import Logistic
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.randomness import SeededSource

LOCAL = LocalPlan(size=20, batch_size=20, steps=2, clip_norm=1.0, noise_multiplier=1.0)
PLAN = Plan("study", 2, {"ward": LOCAL})


@pytest.fixture
def ward():
    draws = SeededSource(1)
    records = draws.normal((20, 30)), draws.integers(2, 20)
    return TorchClient("ward", records, "ward-2026", TorchModel(Logistic, "cross_entropy"))


def test_sums_are_as_far_apart_as_steps_and_noise_say(ward):
    """Four steps at noise 1: 4 apart, spread 2. Five standard errors with 150 canaries: false alarm below 1e-6."""
    found = audit_records(PLAN, ward, 150, source=SeededSource(2))
    members, others = found.sums[found.is_in], found.sums[~found.is_in]
    assert members.mean() - others.mean() == pytest.approx(4.0, abs=5 * 2 * (4 / 150) ** 0.5)
    assert ((members.var() + others.var()) / 2) ** 0.5 == pytest.approx(2.0, rel=5 * (2 * 150) ** -0.5)


def test_a_plan_with_a_schedule_is_audited_in_the_rounds_with_the_least_noise():
    plan = replace(PLAN, rounds=3, noise_schedule=(3.0, 1.0, 2.0), max_participations=2)
    assert [local.noise_multiplier for local in list_locals(plan, "ward")] == [1.0, 2.0]


def test_a_small_model_gets_room_and_a_large_one_stays_as_it_is(ward):
    assert widen(ward.model, 62) is ward.model
    assert widen(ward.model, 100).layout.size == 100


def test_on_private_records_there_must_be_a_ledger_and_budget_for_it(ward, tmp_path):
    plan = PLAN.calibrated(Guarantee(4.0, 1e-5))
    with pytest.raises(InvalidArgument, match="there is no ledger to pay for it"):
        audit_plan(plan, ward, canaries=10, data=PRIVATE)
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open("ward-2026", epsilon=9.0, delta=1e-5)
        reserve_audit(plan, ward, ledger)
        assert ledger.has_run("study-audit-1")
        with pytest.raises(PrivacyError):
            [reserve_audit(plan, ward, ledger) for _ in range(5)]


def test_an_audit_on_private_records_is_refused_where_no_account_would_cover_its_line(ward, tmp_path):
    client = ClientPlan(clip_norm=1.0, noise_multiplier=1.0)
    hybrid = replace(PLAN, style="hybrid", client=client, weighting="equal")
    user = replace(hybrid, style="user", local={"ward": LocalPlan(size=20, batch_size=20, steps=2)})
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open("ward-2026", epsilon=90.0, delta=1e-5)
        with pytest.raises(InvalidArgument, match="no noise for a whole client"):
            audit_plan(hybrid, ward, canaries=10, data=PRIVATE, ledger=ledger)
        with pytest.raises(InvalidArgument, match="style user promises nothing for records"):
            audit_plan(user, ward, canaries=10, data=PRIVATE, ledger=ledger)
        assert not ledger.reservations(open_only=False)


def test_an_account_for_another_relation_does_not_pay_for_an_audit(ward, tmp_path):
    plan = PLAN.calibrated(Guarantee(4.0, 1e-5))
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open("ward-2026", epsilon=90.0, delta=1e-5, adjacency="replace_one")
        with pytest.raises(AdjacencyMismatch, match="account ward-2026 for replace_one"):
            reserve_audit(plan, ward, ledger)
        assert not ledger.has_run("study-audit-1")


def test_progress_is_told_after_every_step_as_often_as_was_said(ward):
    told = []
    audit_plan(PLAN.calibrated(Guarantee(4.0, 1e-5)), ward, canaries=10, advance=lambda: told.append(1))
    assert len(told) == count_parts(PLAN, "ward") == 4


def test_residual_scores_of_private_records_are_for_the_owner_alone(ward, tmp_path):
    plan = replace(PLAN, rounds=1).calibrated(Guarantee(4.0, 1e-5))
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open("ward-2026", epsilon=30.0, delta=1e-5)
        options = {"canaries": 30, "data": PRIVATE, "ledger": ledger}
        (residual,) = audit_plan(plan, ward, scoring="residual", **options)
        (released,) = audit_plan(plan, ward, scoring="released", **options)
    assert (residual.is_shareable, released.is_shareable) == (False, True)
    assert "this run's data" in released.line


def test_a_plan_without_promises_is_refused(ward):
    plan = Plan("study", 1, {"ward": replace(LOCAL, noise_multiplier=None, clip_norm=np.inf)}, style="none")
    with pytest.raises(InvalidArgument, match="style none promises nothing"):
        audit_plan(plan, ward)
