from __future__ import annotations

import pytest
from pydantic import ValidationError

from dpfed.config import RunConfig
from dpfed.config.privacy import LedgerBlock, Privacy, RecordPrivacy


def test_given_noise_has_no_promise_to_calibrate_to(plain):
    config = RunConfig.of(plain({"privacy.record.epsilon": None, "privacy.record.noise_multiplier": "1.5"}))
    assert config.guarantees == ()
    assert config.privacy.record.noise_multiplier == 1.5


RECORD = {"epsilon": 4, "delta": 1e-5, "clip_norm": 1}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"noise_multiplier": 1.0}, "epsilon"),
        ({"epsilon": None}, "epsilon"),
        ({"clip_norm": 0}, "clip_norm"),
    ],
)
def test_a_unit_is_protected_by_a_budget_or_by_noise_and_clipped(change, what):
    RecordPrivacy(**RECORD)
    with pytest.raises(ValidationError, match=what):
        RecordPrivacy(**{**RECORD, **change})


def test_a_style_needs_the_blocks_of_its_own_units_and_no_others():
    assert Privacy(style="sample", record=RECORD).local == RecordPrivacy(**RECORD)
    for style, blocks in [("sample", {}), ("user", {"record": RECORD}), ("none", {"record": RECORD})]:
        with pytest.raises(ValidationError):
            Privacy(style=style, **blocks)


def test_a_ledger_names_an_account_for_each_client():
    assert LedgerBlock(url="ledger.db", client_accounts="c-{id}").client_accounts == "c-{id}"
    with pytest.raises(ValidationError, match="id"):
        LedgerBlock(url="ledger.db", client_accounts="the-same-for-all")
