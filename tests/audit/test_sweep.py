"""Settings of a sweep, and on which records they may be tried."""

from __future__ import annotations

import math
from textwrap import indent

import pytest
from tests.support import done_runs

from dpfed.audit.settings import read_settings
from dpfed.audit.sweep import GENERATED, PRIVATE, PUBLIC, find_kind, run_sweep
from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InvalidArgument
from dpfed.ledger.ledger import Ledger

RUN = done_runs.RUN.replace("noise_multiplier: 1.0", "epsilon: 3")
LEDGER = 'ledger: {url: "ledger.db", client_accounts: "{id}"}\n'
VARIANTS = f"base:{indent(RUN + LEDGER, '  ')}\nvariants:\n  other: {{CHANGE}}\n"


def test_private_records_are_used_only_if_asked_and_never_without_noise_or_ledger():
    private = read_settings(RUN)
    assert find_kind(private, is_public=False, is_private=False) == GENERATED
    assert find_kind(private, is_public=True, is_private=False) == PUBLIC
    with pytest.raises(InvalidArgument, match="the file names no ledger"):
        find_kind(private, is_public=False, is_private=True)
    with pytest.raises(InvalidArgument, match="ε = ∞ on private records"):
        find_kind(read_settings(RUN + LEDGER, epsilons=[math.inf]), is_public=False, is_private=True)
    assert find_kind(read_settings(RUN + LEDGER), is_public=False, is_private=True) == PRIVATE


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (VARIANTS.replace("CHANGE", "privacy: {style: none}"), {}, "ε = ∞ on private records"),
        (VARIANTS.replace("CHANGE", "pate: {privacy: {epsilon: 2, delta: 1e-5}}"), {}, "for which there is no account"),
        (RUN + LEDGER + "seed: 3\n", {}, "noise from a seed protects nobody"),
        (RUN + LEDGER, {"is_public": True}, "cannot be public and private at once"),
    ],
    ids=["no noise", "teachers", "seed", "public"],
)
def test_no_option_and_no_variant_trains_on_private_records_without_noise_or_payment(text, options, message, flowers):
    settings = read_settings(text)
    with pytest.raises(InvalidArgument, match=message):
        find_kind(settings, **{"is_public": False, "is_private": True, **options})
    if not options:  # whoever calls run_sweep alone is refused as well
        with pytest.raises(InvalidArgument, match=message):
            next(run_sweep(settings, PRIVATE, flowers, shadows=0))


@pytest.fixture
def flowers(tmp_path):
    """A folder with the table and a ledger that has an account for each site."""
    (tmp_path / "iris.csv").write_text(done_runs.table())
    with Ledger(tmp_path / "ledger.db") as ledger:
        for name in ("north", "south"):
            ledger.open(name, epsilon=30.0, delta=1e-5)
    return tmp_path


def list_runs(folder, *, open_only):
    with Ledger(folder / "ledger.db") as ledger:
        return {each.run for each in ledger.reservations(open_only=open_only)}


def test_on_private_records_every_run_is_reserved_before_the_first(flowers):
    outcomes = run_sweep(read_settings(RUN + LEDGER, epsilons=[2.0, 1.0]), PRIVATE, flowers, shadows=0)
    first = next(outcomes)
    assert len(list_runs(flowers, open_only=True)) == 1  # the second, which has not trained yet
    assert len(list_runs(flowers, open_only=False)) == 2
    assert first.epsilon <= 2.0
    assert first.auc is not None


def test_a_sweep_that_is_stopped_gives_back_what_it_did_not_commit_and_can_be_run_again(flowers):
    settings = read_settings(RUN + LEDGER, epsilons=[2.0, 1.0])
    outcomes = run_sweep(settings, PRIVATE, flowers, shadows=0)
    next(outcomes)
    outcomes.close()  # as Ctrl-C does
    assert list_runs(flowers, open_only=True) == set()
    with Ledger(flowers / "ledger.db") as ledger:
        spent = ledger.balance("north").share
    again = list(run_sweep(settings, PRIVATE, flowers, shadows=0))
    assert [each.failure for each in again] == ["", ""]
    with Ledger(flowers / "ledger.db") as ledger:
        assert ledger.balance("north").share > spent > 0  # nothing was trained on what was paid for before


def test_a_sweep_that_does_not_fit_as_a_whole_reserves_nothing(flowers):
    with pytest.raises(BudgetExceeded):
        list(run_sweep(read_settings(RUN + LEDGER, epsilons=[20.0, 21.0]), PRIVATE, flowers, shadows=0))
    assert list_runs(flowers, open_only=True) == set()


def test_accounts_for_another_unit_are_refused_before_any_run_trains(tmp_path):
    (tmp_path / "iris.csv").write_text(done_runs.table())
    with Ledger(tmp_path / "ledger.db") as ledger:
        for name in ("north", "south"):
            ledger.open(name, epsilon=30.0, delta=1e-5, adjacency="replace_one")
    with pytest.raises(AdjacencyMismatch, match="account north for replace_one"):
        list(run_sweep(read_settings(RUN + LEDGER), PRIVATE, tmp_path, shadows=0))
    assert list_runs(tmp_path, open_only=False) == set()


def test_other_accounts_on_the_same_data_pay_for_a_sweep_in_style_local(tmp_path):
    (tmp_path / "iris.csv").write_text(done_runs.table())
    with Ledger(tmp_path / "ledger.db") as ledger:
        for name in ("north", "south"):
            ledger.open(f"{name}-records", epsilon=90.0, delta=1e-5, adjacency="replace_one", source=name)
            ledger.open(name, epsilon=90.0, delta=1e-5, unit="client", adjacency="replace_one", source=name)
    text = (RUN + LEDGER).replace("style: sample, record:", "style: local, client:")
    (found,) = run_sweep(read_settings(text), PRIVATE, tmp_path, shadows=0)
    assert found.failure == ""
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.balance("north-records").share > 0


def test_generated_records_take_the_place_of_private_ones(tmp_path):
    (tmp_path / "iris.csv").write_text(done_runs.table())
    (found,) = run_sweep(read_settings(RUN), GENERATED, tmp_path, shadows=0)
    assert found.failure == ""
    assert found.score > 0.3


def test_teachers_and_a_student_are_a_row_beside_the_others(tmp_path):
    (tmp_path / "iris.csv").write_text(done_runs.table())
    text = VARIANTS.replace("CHANGE", "pate: {teachers: {count: 8, steps: 20}, privacy: {epsilon: 5, delta: 1e-5}}")
    (found,) = run_sweep(read_settings(text, epsilons=[3.0]), GENERATED, tmp_path, shadows=2)
    assert found.failure == ""
    assert 0 < found.epsilon <= 3.0
    assert found.score is not None
    assert found.attack != ""
