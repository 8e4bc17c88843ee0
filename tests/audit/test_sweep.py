"""Settings of a sweep, and on which records they may be tried."""

from __future__ import annotations

import math

import pytest
from tests.support import done_runs

from dpfed.audit.sweep import GENERATED, PRIVATE, PUBLIC, find_kind, read_settings, run_sweep
from dpfed.errors import InvalidArgument
from dpfed.ledger.ledger import Ledger

RUN = done_runs.RUN.replace("noise_multiplier: 1.0", "epsilon: 3")
LEDGER = 'ledger: {url: "ledger.db", client_accounts: "{id}"}\n'


def test_everything_that_varies_is_combined():
    settings = read_settings(RUN, epsilons=[math.inf, 2.0], clip_norms=[0.5, 1.0], batch_sizes=[10], deltas=[1e-6])
    assert [setting.label for setting in settings[2:]] == [
        "ε = 2, C = 0.5, δ = 1e-06, batch 10",
        "ε = 2, C = 1, δ = 1e-06, batch 10",
    ]
    assert settings[0].config.privacy.style == "none"
    block = settings[3].config.privacy.record
    assert (block.epsilon, block.clip_norm, block.delta, settings[3].config.local.batch_size) == (2.0, 1.0, 1e-6, 10)


def test_a_given_noise_makes_way_for_an_epsilon():
    (setting,) = read_settings(done_runs.RUN, epsilons=[2.0])
    assert (setting.epsilon, setting.config.privacy.record.noise_multiplier) == (2.0, None)


@pytest.mark.parametrize("text", ["[1]", "base: {}", "variants: {}", "base: 3\nvariants: {a: {}}"])
def test_a_file_that_is_neither_a_run_nor_variants_of_one_is_refused(text):
    with pytest.raises(InvalidArgument, match="a sweep is the file of a run, or has base"):
        read_settings(text)


def test_private_records_are_used_only_if_asked_and_never_without_noise_or_ledger():
    private = read_settings(RUN)
    assert find_kind(private, is_public=False, is_private=False) == GENERATED
    assert find_kind(private, is_public=True, is_private=False) == PUBLIC
    with pytest.raises(InvalidArgument, match="the file names no ledger"):
        find_kind(private, is_public=False, is_private=True)
    with pytest.raises(InvalidArgument, match="ε = ∞ on private records"):
        find_kind(read_settings(RUN + LEDGER, epsilons=[math.inf]), is_public=False, is_private=True)
    assert find_kind(read_settings(RUN + LEDGER), is_public=False, is_private=True) == PRIVATE


def test_on_private_records_every_run_is_reserved_before_the_first(tmp_path):
    (tmp_path / "iris.csv").write_text(done_runs.table())
    with Ledger(tmp_path / "ledger.db") as ledger:
        for name in ("north", "south"):
            ledger.open(name, epsilon=30.0, delta=1e-5)
    outcomes = run_sweep(read_settings(RUN + LEDGER, epsilons=[2.0, 1.0]), PRIVATE, tmp_path, shadows=0)
    first = next(outcomes)
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.has_run("flowers-sweep-1")  # which has not trained yet
    assert first.epsilon <= 2.0
    assert first.auc is not None


def test_generated_records_take_the_place_of_private_ones(tmp_path):
    (tmp_path / "iris.csv").write_text(done_runs.table())
    (found,) = run_sweep(read_settings(RUN), GENERATED, tmp_path, shadows=0)
    assert found.failure == ""
    assert found.score > 0.3
